"""TLS handshakes of several clients at the same time.

Rule: the server's loop waits for all that it has begun, so a socket is never used by two threads. A handshake is a
millisecond of arithmetic without the interpreter's lock: with more than one processor thousands of clients that come
back at once, because a relay has started again, are there so much earlier.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from cni_calico.daemon.threads import SideThreads
from cni_calico.relay.client import Client

MOST = 4  # threads, the loop's own included: the rest of a connection's work is done by one


class Handshakes:
    """``processors``: as many threads at most; 1: there is none but the loop's."""

    def __init__(self, processors: int = 0) -> None:
        self._threads = min(MOST, processors or len(os.sched_getaffinity(0)))
        self._others = SideThreads(self._threads - 1, "handshakes")

    def go_on(self, clients: Sequence[Client]) -> None:
        """Do what each client's handshake can do now; the client keeps the outcome until it is asked for it."""
        parts = [clients[first :: self._threads] for first in range(self._threads)]
        others = [self._others.submit(partial(_go_on, part)) for part in parts[1:] if part]
        _go_on(parts[0])
        for other in others:
            other.result()

    def close(self) -> None:
        self._others.close()


def _go_on(clients: Sequence[Client]) -> None:
    for client in clients:
        client.shake_hands_ahead()
