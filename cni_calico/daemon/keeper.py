"""A thread's loop that maintains one thing: it acts, waits, and acts again.

Rule: a failure is logged once, noted among the troubles, and tried again sooner; so is a shortage of descriptors or
threads, which passes. ``stopping`` ends a wait at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping

from cni_calico.backoff import Backoff
from cni_calico.daemon.said import Said
from cni_calico.errors import CalicoError
from cni_calico.log import Log
from cni_calico.shortage import MEMORY, shortage_of

RETRY_S = 5.0
LAST_RETRY_S = 60.0


class Keeper:
    """Calls ``do`` at the start, every ``interval_s`` and when woken.

    While it fails, ``troubles`` has an entry with the keeper's name and the reason.
    """

    def __init__(
        self,
        name: str,
        do: Callable[[], None],
        interval_s: float,
        log: Log,
        troubles: MutableMapping[str, str],
    ) -> None:
        self.name, self.do, self.interval_s = name, do, interval_s
        self.log, self.troubles = log, troubles
        self._wake = threading.Event()
        self._said = Said(log)
        self._retry = Backoff(RETRY_S, LAST_RETRY_S)

    def wake(self) -> None:
        self._wake.set()

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._wake.clear()
            pause = self.interval_s if self._try() else self._retry.next()
            self._wait(stopping, pause)

    def _try(self) -> bool:
        try:
            self.do()
        except CalicoError as e:
            self._fail(str(e), e.details)
            return False
        except Exception as e:
            lacking = shortage_of(e)
            if lacking in ("", MEMORY):  # what ran without memory may be half done
                raise
            self._fail(f"this host is short of {lacking}", str(e))
            return False
        self.troubles.pop(self.name, None)
        self._said.say("", [])
        self._retry.reset()
        return True

    def _fail(self, why: str, details: str) -> None:
        self.troubles[self.name] = why
        self._said.say("", [f"{self.name}: {why}" + (f" ({details})" if details else "")], "error")

    def _wait(self, stopping: threading.Event, seconds: float) -> None:
        left = seconds
        while left > 0 and not stopping.is_set() and not self._wake.is_set():
            self._wake.wait(min(left, 0.5))
            left -= 0.5
