"""A netlink socket that receives notifications and sends nothing.

Rule: it never blocks; whoever waits polls it together with its own wake-up. What a socket is not to hear never enters
its buffer: a large transaction is reported while it is committed, when nobody can read, and what does not fit is lost.
"""

from __future__ import annotations

import socket
import struct
import sys
from array import array

NETLINK_NETFILTER, NFTABLES_GROUP = 12, 1 << 6
_SO_RCVBUFFORCE, _SO_ATTACH_FILTER = 33, 26
_PORT_AT = 12  # in a message's header
# of linux/bpf_common.h: load four bytes in the network's order, jump if equal, return
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALL = 0xFFFFFFFF


def listen(family: int, groups: int, *, buffer_bytes: int = 0, deaf_to: int = 0) -> socket.socket:
    """Raises OSError. ``buffer_bytes``: the size of its buffer, if the kernel allows it; 0: the usual one. ``deaf_to``:
    the port of a socket whose changes are not reported; 0: of none.
    """
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
    try:
        if buffer_bytes:
            try:
                opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
            except OSError:
                pass  # a lost message only causes a comparison
        if deaf_to:
            _leave_out(opened, deaf_to)
        opened.bind((0, groups))
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def _leave_out(listening: socket.socket, port: int) -> None:
    """Datagrams whose first message is of this port; the messages of one are of one transaction. Raises OSError."""
    seen = int.from_bytes(port.to_bytes(4, sys.byteorder), "big")
    steps = ((_LOAD, 0, 0, _PORT_AT), (_JUMP_IF_EQUAL, 0, 1, seen), (_RETURN, 0, 0, 0), (_RETURN, 0, 0, _ALL))
    program = array("B", b"".join(struct.pack("=HBBI", *step) for step in steps))
    address, _ = program.buffer_info()
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(steps), address))
