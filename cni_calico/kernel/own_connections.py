"""TCP connections of this process, whichever library opened them: how soon the kernel probes an idle one.

Rule: nothing is sent by the process itself and nothing of the connection's protocol is touched; nor is what a library
asked for about probes that nobody answers: a peer that is gone must be found out, and one that is slow must not be
given up sooner. A connection that comes or goes meanwhile is skipped.
"""

from __future__ import annotations

import os
import socket

_DESCRIPTORS = "/proc/self/fd"
_USUAL_S = 20  # idle until the first probe: what this program's own connections have


def probe_when_idle(idle_s: int) -> int:
    """Have the kernel probe each connection that has been idle that long; one that already has is probed at once. 0:
    as long as usual. Returns the number of connections.
    """
    count = 0
    for name in os.listdir(_DESCRIPTORS):
        try:
            if os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):
                count += _probe(os.dup(int(name)), idle_s)
        except OSError:
            continue
    return count


def _probe(descriptor: int, idle_s: int) -> bool:
    """Takes the descriptor over. Raises OSError, also for what is not connected."""
    try:
        taken_over = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise
    with taken_over as one:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return False
        one.getpeername()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s or _USUAL_S)
        return True
