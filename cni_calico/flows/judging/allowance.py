"""PURE: how much of a processor judging may take.

Rule: a share of the time; what one judgement took more is waited for.
"""

from __future__ import annotations

from collections.abc import Callable

SHARE = 0.01


class Allowance:
    """A context manager. ``clock`` never steps; ``worked``: seconds that the processor has worked for us."""

    def __init__(self, clock: Callable[[], float], worked: Callable[[], float], share: float = SHARE) -> None:
        self.clock, self._worked, self._share = clock, worked, share
        self._left_s, self._looked = share, clock()
        self._begun = 0.0

    def is_left(self) -> bool:
        now = self.clock()
        self._left_s = min(self._share, self._left_s + (now - self._looked) * self._share)
        self._looked = now
        return self._left_s > 0

    def __enter__(self) -> None:
        """What is done until the end counts."""
        self._begun = self._worked()

    def __exit__(self, *_: object) -> None:
        self._left_s -= self._worked() - self._begun
