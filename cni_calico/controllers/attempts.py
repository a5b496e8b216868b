"""The common part of the controllers' loops: they work only while this process leads, and their attempts are counted
and repeated.

Rule: a task that fails is logged once, never holds up the others, and is never given up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cni_calico.controllers.counters import LoopNumbers
from cni_calico.controllers.due import DueTasks
from cni_calico.daemon.said import Said
from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.log import Log
from cni_calico.model.keys import ResourceKey

CALL_S = 30.0
BATCH = 100
LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Leading:
    """What a leader's loop works with. ``store`` is the datastore for the leader only, ``remaining_s`` returns how long
    we certainly still lead, ``period_s`` after how long everything is looked at again.
    """

    store: Datastore
    remaining_s: Callable[[], float]
    period_s: Callable[[], float]
    log: Log
    numbers: LoopNumbers

    def leads(self) -> bool:
        return self.remaining_s() > 0

    def work(self, work: Callable[[], None], stopping: threading.Event) -> None:
        """Run ``work`` whenever this process leads, until ``stopping``; ``work`` returns when it no longer leads."""
        while not stopping.is_set():
            if self.leads():
                work()
            stopping.wait(LOOK_S)


class Sight:
    """Whether one controller sees what it works on; why it does not is logged once, for as long as it lasts."""

    def __init__(self, name: str, numbers: LoopNumbers, log: Log) -> None:
        self._name, self._numbers, self._said = name, numbers, Said(log)

    def is_clear(self, caches: Sequence[Cache[Any]]) -> bool:
        errors = [cache.error for cache in caches if cache.error is not None]
        texts = [f"{e} ({e.details})" if e.details else str(e) for e in errors]
        self._numbers.error = "; ".join(texts)
        self._said.say("", [f"{self._name} does nothing before it can read what it needs: {text}" for text in texts])
        return all(cache.healthy for cache in caches)


class Attempts:
    """One controller's tasks, for one thread; ``label`` names one of them in the log."""

    def __init__(
        self,
        label: Callable[[ResourceKey], str],
        leads: Callable[[], bool],
        numbers: LoopNumbers,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tasks: DueTasks[ResourceKey] = DueTasks()
        self._label, self._leads, self._numbers, self._clock = label, leads, numbers, clock
        self._said = Said(log)

    def round(self, reconcile: Callable[[ResourceKey, Deadline], int]) -> None:
        """Try everything that is due now, up to BATCH tasks. ``reconcile`` returns the number of its writes and may
        raise CalicoError.
        """
        for key in self.tasks.due(self._clock(), BATCH):
            if not self._leads():
                return
            try:
                self._numbers.writes += reconcile(key, Deadline.after(CALL_S))
            except CalicoError as e:
                self._numbers.failures += 1
                pause_s = self.tasks.failed(key, self._clock())
                self._said.say(key, [f"{self._label(key)}: {e}"], more=f"; next try in {pause_s:g} s")
            else:
                self.tasks.done(key)
                self._said.say(key, ())
        self._numbers.waiting, self._numbers.failing = len(self.tasks), self.tasks.failing

    def forget(self) -> None:
        """Drop all tasks: this process no longer leads, and the next leader checks everything."""
        self.tasks = DueTasks()
        self._numbers.waiting = self._numbers.failing = 0
