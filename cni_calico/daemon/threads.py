"""Threads for the parallel parts of a call. Rule: the submitter waits for the outcome, but the end of the process does
not. The interpreter joins an executor's threads when it ends, so a function that hangs would keep the process alive;
these are daemon threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Returned = TypeVar("Returned")


class SideThreads:
    """At most ``limit`` threads, created when first needed. Safe with threads."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._acts: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._guard = threading.Lock()
        self._made = 0
        self._idle = 0

    def submit(self, act: Callable[[], Returned]) -> Future[Returned]:
        """The future outcome; an exception of ``act`` is raised there."""
        outcome: Future[Returned] = Future()
        with self._guard:
            if self._idle:
                self._idle -= 1
            elif self._made < self._limit:
                self._add_thread()
            threaded = self._made > 0
            if threaded:
                self._acts.put((outcome, act))
        if not threaded:  # the host is short of threads: run it in this one
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
        """Each thread ends when it has nothing to do. Do not submit anything afterwards."""
        with self._guard:
            for _ in range(self._made):
                self._acts.put(None)

    def _run(self) -> None:
        while (entry := self._acts.get()) is not None:
            _carry_out(*entry)
            del entry  # so that its objects are not kept alive until the next function
            with self._guard:
                self._idle += 1


def _carry_out(outcome: Future[Returned], act: Callable[[], Returned]) -> None:
    try:
        result = act()
    except BaseException as e:
        outcome.set_exception(e)
    else:
        outcome.set_result(result)
