"""PURE: notices that the clock was set: what it says is compared with a clock that nobody sets.

Rule: a clock that is adjusted slowly is not set.
"""

from __future__ import annotations

from collections.abc import Callable

_LEAST_S = 1.0


class ClockSteps:
    """``now``: what the clock says, in seconds; ``clock`` never steps."""

    def __init__(self, now: Callable[[], float], clock: Callable[[], float]) -> None:
        self.now, self.clock = now, clock
        self._ahead = now() - clock()

    def take_step(self) -> float:
        """By how many seconds it was set since the last time, 0 if it was not."""
        before, self._ahead = self._ahead, self.now() - self.clock()
        set_by_s = self._ahead - before
        return set_by_s if abs(set_by_s) > _LEAST_S else 0.0
