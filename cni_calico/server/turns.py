"""Which call sets up its interfaces just now.

The kernel sets up one interface at a time for the whole host, and each of an ADD's dozens of requests to it lets
another thread have the interpreter: where 32 ADDs did so at once a quarter of their work was to wait for each other.

Rule: a turn saves work and decides nothing. Whoever has waited long enough goes on without one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 0.25  # a burst of 32 on an idle machine takes a fifth of it


class LinkTurn:
    """``patience_s``: how long one waits at most, for another one that may be stuck."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._taken = threading.Lock()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """The body runs while no other has the turn, or at once after the longest wait."""
        has_it = self._taken.acquire(timeout=self._patience_s)
        try:
            yield
        finally:
            if has_it:
                self._taken.release()
