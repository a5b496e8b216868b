"""Whether connection tracking knows a TCP connection.

Rule: nothing is changed, and one entry is asked for by its own ends, so that the cost does not grow with the host's
connections.
"""

from __future__ import annotations

import socket
from errno import ENOENT
from struct import Struct

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink.nfnetlink import CTNETLINK, Nfnetlink, general
from cni_calico.kernel.netlink.wire import attribute, nested

Ends = tuple[bytes, int, bytes, int]  # packed address and port of this side, then of the other
_GET = CTNETLINK << 8 | 1
_ORIGINAL = 1
_IP, _PROTOCOL = 1, 2  # in a tuple
_ADDRESSES = {4: ("ip", 1, 2), 16: ("ip6", 3, 4)}  # by size: family, attributes of source, destination
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
_PORT = Struct(">H")


def is_tracked(netlink: Nfnetlink, ends: Ends, deadline: Deadline) -> bool:
    """Whether there is an entry with these ends, in either direction. Raises KernelError."""
    own, own_port, other, other_port = ends
    family, source, destination = _ADDRESSES[len(own)]
    protocol = nested(
        _PROTOCOL,
        attribute(_NUMBER, bytes((socket.IPPROTO_TCP,))),
        attribute(_SOURCE_PORT, _PORT.pack(own_port)),
        attribute(_DESTINATION_PORT, _PORT.pack(other_port)),
    )
    addresses = nested(_IP, attribute(source, own), attribute(destination, other))
    try:
        netlink.request(_GET, 0, general(family) + nested(_ORIGINAL, addresses, protocol), "look up an entry", deadline)
    except KernelError as e:
        if e.errno != ENOENT:
            raise
        return False
    return True
