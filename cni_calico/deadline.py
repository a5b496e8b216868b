"""Deadlines. One monotonic deadline limits a whole call; every wait inside it asks the deadline how long it may
take.
"""

from __future__ import annotations

import time

from cni_calico.errors import DeadlineExceeded


class Deadline:
    """A fixed point on the monotonic clock; ``sooner`` derives a tighter one for a sub-step."""

    __slots__ = ("at",)

    def __init__(self, at: float) -> None:
        self.at = at

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The deadline ``seconds`` from now."""
        return cls(time.monotonic() + seconds)

    def sooner(self, seconds: float) -> Deadline:
        """The earlier of this deadline and ``seconds`` from now."""
        return Deadline(min(self.at, time.monotonic() + seconds))

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def expired(self) -> bool:
        return time.monotonic() >= self.at

    def require(self, doing: str) -> float:
        """Seconds left. If there are none, raises DeadlineExceeded naming what was about to be done."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"cannot {doing}: the deadline of this call has passed")
        return left


class ProgressDeadline(Deadline):
    """A deadline that each sign of progress postpones to ``seconds`` from that moment."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        super().__init__(time.monotonic() + seconds)
        self.seconds = seconds

    def renew(self) -> None:
        self.at = time.monotonic() + self.seconds
