"""Operations that run in threads of their own but only when told, from one store call to the next.

Rule: at most one thread runs at any time, so a schedule gives the same history every time it is replayed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cni_calico.errors import DatastoreUnavailable, OutcomeUnknown

FATES = ("go", "fail", "vanish", "lost", "crash before", "crash after")


class Crashed(BaseException):
    """The process died here: nothing runs after it, no undo either."""


class Operation:
    """``work(store)`` under way; ``waiting`` names the store call it is about to make, "" when it has ended."""

    def __init__(self, store: Any, work: Callable[[Any], Any]) -> None:
        self._inner = store
        self._work = work
        self._go = threading.Semaphore(0)
        self._paused = threading.Semaphore(0)
        self._fate = "go"
        self.waiting = "start"
        self.result: Any = None
        self.error: BaseException | None = None
        self.faults = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self, fate: str = "go") -> None:
        """Let it make the call it waits for, with this fate, and run to the next one."""
        assert self.waiting
        if self.waiting == "start":
            fate = "go"
        if fate in ("vanish", "lost") and self.waiting != "commit":
            fate = "fail"
        self.faults += fate != "go"
        self._fate = fate
        self._go.release()
        self._paused.acquire()
        if not self.waiting:
            self._thread.join()

    @property
    def disturbed(self) -> bool:
        return self.faults > 0

    @property
    def ended(self) -> bool:
        return not self.waiting

    def kill(self) -> None:
        while not self.ended:
            self.step("crash before")

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.result = self._work(_Gate(self))
        except BaseException as e:
            self.error = e
        self.waiting = ""
        self._paused.release()

    def _call(self, name: str, do: Callable[[], Any]) -> Any:
        self.waiting = name
        self._paused.release()
        self._go.acquire()
        fate = self._fate
        if fate == "crash before":
            raise Crashed
        if fate == "fail":
            raise DatastoreUnavailable("injected: not done")
        if fate == "vanish":
            raise OutcomeUnknown("injected: the request was lost")
        result = do()
        if fate == "lost":
            raise OutcomeUnknown("injected: the answer was lost")
        if fate == "crash after":
            raise Crashed
        return result


class _Gate:
    """The store as an operation sees it."""

    commit_each = None

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._store = operation._inner
        self.max_commit = self._store.max_commit
        self.identity = self._store.identity

    def get(self, key, deadline):
        return self._operation._call("get", lambda: self._store.get(key, deadline))

    def get_many(self, keys, deadline):
        return self._operation._call("get_many", lambda: self._store.get_many(keys, deadline))

    def list(self, listing, deadline, **options):
        return self._operation._call("list", lambda: self._store.list(listing, deadline, **options))

    def commit(self, writes, deadline):
        return self._operation._call("commit", lambda: self._store.commit(writes, deadline))
