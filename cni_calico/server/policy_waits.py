"""Which calls may wait for their policies, so that those that need no policy still have workers.

Rule: a call that may not wait is declined: its caller carries it out and waits by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cni_calico.plugin.call.serve import Declined

TOO_MANY_WAIT = "as many calls as may be are waiting for their policies"


class PolicyWaits:
    """The calls that wait for what another program does, ``at_most`` at once, until ``end``."""

    def __init__(self, at_most: int) -> None:
        self._free = at_most
        self._lock = threading.Lock()
        self._ending = threading.Event()

    @property
    def are_too_many(self) -> bool:
        return self._free <= 0

    @contextmanager
    def one(self) -> Iterator[Callable[[], bool]]:
        """Yields whether it has to end. Raises Declined."""
        with self._lock:
            if self.are_too_many:
                raise Declined(TOO_MANY_WAIT)
            self._free -= 1
        try:
            yield self._ending.is_set
        finally:
            with self._lock:
                self._free += 1

    def end(self) -> None:
        """Whoever waits, now or later, is told to end."""
        self._ending.set()
