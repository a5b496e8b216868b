"""PURE: which tasks are to be tried now, and when to retry those that failed.

Rule: nothing is given up: a failing task is retried at growing intervals, and at once when something about it changes.
The caller passes the time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cni_calico.backoff import Backoff

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 60.0

TaskKey = TypeVar("TaskKey", bound=Hashable)


@dataclass(slots=True)
class DueTasks(Generic[TaskKey]):
    """Tasks in the order in which they were noted."""

    _due: dict[TaskKey, float] = field(default_factory=dict)
    _retries: dict[TaskKey, Backoff] = field(default_factory=dict)

    def note(self, tasks: Iterable[TaskKey], now: float) -> None:
        """Something has changed: the tasks are due now, whatever happened before."""
        for task in tasks:
            self._due[task] = now

    def due(self, now: float, limit: int) -> list[TaskKey]:
        found = []
        for task, at in self._due.items():
            if at <= now:
                found.append(task)
                if len(found) == limit:
                    break
        return found

    def next_at(self) -> float | None:
        """When the next task is due; None: there is none."""
        return min(self._due.values(), default=None)

    def done(self, task: TaskKey) -> None:
        self._due.pop(task, None)
        self._retries.pop(task, None)

    def failed(self, task: TaskKey, now: float) -> float:
        """Try it again later; returns after how many seconds."""
        if task not in self._retries:
            self._retries[task] = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        pause_s = self._retries[task].next()
        self._due[task] = now + pause_s
        return pause_s

    def __len__(self) -> int:
        return len(self._due)

    @property
    def failing(self) -> int:
        return len(self._retries)
