"""PURE: pauses between failing attempts: each twice as long as the one before, up to a limit."""

from __future__ import annotations


class Backoff:
    """The first pause lasts ``first_s``; ``reset`` after a success starts again."""

    __slots__ = ("_first_s", "_last_s", "_next_s")

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s, self._last_s = first_s, last_s
        self._next_s = first_s

    def next(self) -> float:
        """How long to wait now, in seconds."""
        now, self._next_s = self._next_s, min(2 * self._next_s, self._last_s)
        return now

    def reset(self) -> None:
        self._next_s = self._first_s
