"""A thread's loop that keeps one thing right: it does it, waits, and does it again.

Rule: a failure is logged once, noted among the troubles, and tried again sooner. ``stopping`` ends a wait at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field

from cni_calico.errors import CalicoError
from cni_calico.log import Log

RETRY_S = 5.0
LAST_RETRY_S = 60.0


@dataclass(slots=True)
class Keeper:
    """Calls ``do`` at the start, every ``interval_s`` and when woken.

    ``troubles`` has an entry of the keeper's name for as long as it fails: why.
    """

    name: str
    do: Callable[[], None]
    interval_s: float
    log: Log
    troubles: MutableMapping[str, str]
    _wake: threading.Event = field(default_factory=threading.Event)
    _said: str = ""
    _retry_s: float = RETRY_S

    def wake(self) -> None:
        self._wake.set()

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._wake.clear()
            pause = self.interval_s if self._try() else self._next_retry()
            self._wait(stopping, pause)

    def _try(self) -> bool:
        try:
            self.do()
        except CalicoError as e:
            self.troubles[self.name] = str(e)
            if str(e) != self._said:
                self._said = str(e)
                self.log.error(f"{self.name}: {e}" + (f" ({e.details})" if e.details else ""))
            return False
        self.troubles.pop(self.name, None)
        self._said, self._retry_s = "", RETRY_S
        return True

    def _next_retry(self) -> float:
        now, self._retry_s = self._retry_s, min(2 * self._retry_s, LAST_RETRY_S)
        return now

    def _wait(self, stopping: threading.Event, seconds: float) -> None:
        left = seconds
        while left > 0 and not stopping.is_set() and not self._wake.is_set():
            self._wake.wait(min(left, 0.5))
            left -= 0.5
