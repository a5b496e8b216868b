"""What a call has to do that Docker need not wait for.

Rule: it is done by the call's own thread as soon as the answer is out, and the call has its turn until then; outside of
a call it is done at once. What is put off has been written down before, as owed: a crash in between loses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Act = Callable[[], None]


class Afterwards:
    """Safe with threads: each has its own."""

    def __init__(self) -> None:
        self._calls = threading.local()

    def do(self, act: Act) -> None:
        acts: list[Act] | None = getattr(self._calls, "acts", None)
        if acts is None:
            act()
        else:
            acts.append(act)

    @contextmanager
    def call(self) -> Iterator[list[Act]]:
        """Within it nothing that is put off is done; the caller does it from the list that it gets, once it has
        answered.
        """
        acts: list[Act] = []
        self._calls.acts = acts
        try:
            yield acts
        finally:
            self._calls.acts = None
