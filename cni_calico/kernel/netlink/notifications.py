"""A netlink socket that receives notifications and sends nothing.

Rule: it never blocks; whoever waits polls it together with its own wake-up.
"""

from __future__ import annotations

import socket

NETLINK_NETFILTER, NFTABLES_GROUP = 12, 1 << 6
_SO_RCVBUFFORCE = 33


def listen(family: int, groups: int, *, buffer_bytes: int = 0) -> socket.socket:
    """Raises OSError. ``buffer_bytes``: the size of its buffer, if the kernel allows it; 0: the usual one."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
    try:
        if buffer_bytes:
            try:
                opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
            except OSError:
                pass  # a lost message only causes a comparison
        opened.bind((0, groups))
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened
