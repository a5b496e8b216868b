"""The workers of a run, as the process that has forked them sees them.

Rule: a run ends. When no call has ended for longer than any may take, what every process is doing is reported, and the
workers are killed.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.processes import descendants, describe, send

STALL_S = 400.0  # a call may take 150 s, and another one before it is noted
ASKS_WHERE = signal.SIGUSR1  # a worker then writes to stderr where it is
TELLS_S = 2.0
LOOKS_S = 1.0


class Stalled(Exception):
    """No call has ended for a long time."""


class Crew:
    """A context; at its end no worker is left. ``held``: whether the workers have been asked to wait."""

    def __init__(self, pids: Sequence[int], history: Path, held: Callable[[], bool], stall_s: float = STALL_S) -> None:
        self.pids = list(pids)
        self._running = set(pids)
        self._history, self._held = history, held
        self._stall_s = stall_s
        self._size, self._idle_s, self._looked = 0, 0.0, time.monotonic()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._running:
            send(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._running.clear()

    def has_ended(self) -> bool:
        """Whether every worker has."""
        for pid in list(self._running):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._running.discard(pid)
        return not self._running

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until the condition holds. Raises Stalled."""
        self._idle_s, self._looked = 0.0, time.monotonic()
        while not condition():
            self._require_progress(what)
            select.select((), (), (), 0.1)

    def _require_progress(self, what: str) -> None:
        now = time.monotonic()
        size = self._history.stat().st_size if self._history.exists() else 0
        self._idle_s += min(now - self._looked, LOOKS_S)  # the whole run may have been halted meanwhile
        self._looked = now
        if size != self._size or self._held():
            self._size, self._idle_s = size, 0.0
        elif self._idle_s > self._stall_s:
            raise Stalled(f"no call has ended for {self._stall_s:.0f} s, before {what}:\n{self._describe()}")

    def _describe(self) -> str:
        """Of all workers and what they have started; where the workers are in Python goes to stderr."""
        found = "\n".join(describe(pid) for pid in [*self._running, *descendants(self._running)])
        for pid in self._running:
            send(pid, ASKS_WHERE)
        select.select((), (), (), TELLS_S)
        return found
