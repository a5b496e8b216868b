"""Threads for what a call does beside its own.

Rule: whoever submits waits for the outcome; the process does not. An executor's threads are joined when the interpreter
ends, so that one act that hangs would keep the process; these are daemon threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class SideThreads:
    """At most ``limit``, made when they are needed first. Safe with threads."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._acts: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._guard = threading.Lock()
        self._made = 0
        self._idle = 0

    def submit(self, act: Callable[[], T]) -> Future[T]:
        """Its outcome; what it raises is raised there."""
        outcome: Future[T] = Future()
        with self._guard:
            if self._idle:
                self._idle -= 1
            elif self._made < self._limit:
                self._add_thread()
            threaded = self._made > 0
            if threaded:
                self._acts.put((outcome, act))
        if not threaded:  # the host is short of them: it takes longer, and that is all
            _carry_out(outcome, act)
        return outcome

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self._name}-{self._made + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return
        self._made += 1

    def close(self) -> None:
        """The threads end, each when it has nothing to do. Nothing may be submitted any more."""
        with self._guard:
            for _ in range(self._made):
                self._acts.put(None)

    def _run(self) -> None:
        while (entry := self._acts.get()) is not None:
            _carry_out(*entry)
            del entry  # what the act holds is not kept until the next one
            with self._guard:
                self._idle += 1


def _carry_out(outcome: Future[T], act: Callable[[], T]) -> None:
    try:
        result = act()
    except BaseException as e:
        outcome.set_exception(e)
    else:
        outcome.set_result(result)
