"""Threads for the parallel parts of a call. Rule: the submitter waits for the outcome, but the end of the process does
not. The interpreter joins an executor's threads when it ends, so a function that hangs would keep the process alive;
these are daemon threads. Nor is its Future used: importing it loads ``logging``, 0.5 MB in each program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

Returned = TypeVar("Returned")


class SideOutcome(Generic[Returned]):
    """What becomes of a function that another thread carries out. Safe with threads."""

    __slots__ = ("_error", "_held", "_value")

    def __init__(self) -> None:
        self._held = threading.Lock()  # until it has ended
        self._held.acquire()
        self._error: BaseException | None = None
        self._value: Any = None

    def wait(self) -> None:
        """Until it has ended, however it did."""
        with self._held:
            pass

    def result(self, limit_s: float = -1) -> Returned:
        """What it returned, once it has. Raises what it raised; TimeoutError after the limit, if there is one."""
        if not self._held.acquire(timeout=limit_s):
            raise TimeoutError("it has not ended yet")
        self._held.release()
        if self._error is None:
            value: Returned = self._value
            return value
        try:
            raise self._error
        finally:
            del self  # the error refers to this frame, and would keep itself alive

    def carry_out(self, act: Callable[[], Returned]) -> None:
        """Call it in this thread; once."""
        try:
            self._value = act()
        except BaseException as e:
            self._error = e
        finally:
            self._held.release()


class SideThreads:
    """At most ``limit`` threads, created when first needed. Safe with threads."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._acts: SimpleQueue[tuple[SideOutcome[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._guard = threading.Lock()
        self._made = 0
        self._idle = 0

    def submit(self, act: Callable[[], Returned]) -> SideOutcome[Returned]:
        """Its outcome, for which one can wait; an exception of ``act`` is raised there."""
        outcome: SideOutcome[Returned] = SideOutcome()
        with self._guard:
            if self._idle:
                self._idle -= 1
            elif self._made < self._limit:
                self._add_thread()
            threaded = self._made > 0
            if threaded:
                self._acts.put((outcome, act))
        if not threaded:  # the host is short of threads: run it in this one
            outcome.carry_out(act)
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
            entry[0].carry_out(entry[1])
            del entry  # so that its objects are not kept alive until the next function
            with self._guard:
                self._idle += 1
