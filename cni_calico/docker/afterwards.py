"""What a call has to do that Docker need not wait for.

Rule: it is done by the call's own thread as soon as the answer is out, and the call has its turn until then; outside of
a call it is done at once. What is put off has been written down before, as owed: a crash in between loses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PutOff = Callable[[], None]


class _OwnCall(threading.local):
    """Of each thread: what its call puts off; None outside of one."""

    def __init__(self) -> None:
        self.acts: list[PutOff] | None = None


class Afterwards:
    """Safe with threads: each has its own."""

    def __init__(self) -> None:
        self._own = _OwnCall()

    def do(self, act: PutOff) -> None:
        if self._own.acts is None:
            act()
        else:
            self._own.acts.append(act)

    @contextmanager
    def call(self) -> Iterator[list[PutOff]]:
        """Within it nothing that is put off is done; the caller does it from the list that it gets, once it has
        answered.
        """
        acts = self._own.acts = []
        try:
            yield acts
        finally:
            self._own.acts = None
