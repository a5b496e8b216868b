"""TCP connections of this process, whichever library opened them: their ends, and when the kernel probes them.

Rule: nothing is sent by the process itself and nothing of the connection's protocol is touched; nor is what a library
asked for about probes that nobody answers: a peer that is gone must be found out, and one that is slow must not be
given up sooner. A connection that comes or goes meanwhile is skipped.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv6Address, ip_address

_DESCRIPTORS = "/proc/self/fd"
_TCP_REPAIR, _ENDED = 19, 0  # Python does not name them
_USUAL_S = 20  # idle until the first probe: what this program's own connections have


def probe_when_idle(idle_s: int) -> int:
    """Have the kernel probe each connection that has been idle that long; one that already has is probed at once. 0:
    as long as usual. Returns the number of connections.
    """
    count = 0
    for one in _connections():
        with suppress(OSError):
            one.getpeername()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s or _USUAL_S)
            count += 1
    return count


def probe_now() -> int:
    """Have the kernel send a probe without data on each connection, also where something was said a moment ago. Needs
    CAP_NET_ADMIN. Returns the number of connections.
    """
    count = 0
    for one in _connections():
        with suppress(OSError):
            one.getpeername()
            # the end of a repair, which none of these was in, is announced to the other side
            one.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _ENDED)
            count += 1
    return count


def read_own_connections() -> set[tuple[bytes, int, bytes, int]]:
    """Of each: packed address and port of this side, then of the other. IPv4 inside of IPv6 sockets counts as IPv4."""
    found = set()
    for one in _connections():
        with suppress(OSError, ValueError):
            found.add((*_end(one.getsockname()), *_end(one.getpeername())))
    return found


def _end(name: tuple[str, int]) -> tuple[bytes, int]:
    address = ip_address(name[0].partition("%")[0])
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (inner or address).packed, name[1]


def _connections() -> Iterator[socket.socket]:
    """TCP sockets, connected or not; each is open until the next is asked for. None where they cannot be listed."""
    try:
        names = os.listdir(_DESCRIPTORS)
    except OSError:  # no descriptor is left to list them with
        return
    for name in names:
        try:
            if not os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):
                continue
            copy = _as_socket(os.dup(int(name)))
        except OSError:
            continue
        with copy as one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                yield one


def _as_socket(descriptor: int) -> socket.socket:
    """Raises OSError."""
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise
