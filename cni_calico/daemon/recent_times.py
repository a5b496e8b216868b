"""PURE: durations, as a Prometheus summary. Rule: count and sum are of all durations, the quantiles of the last RECENT
observations; one observation may count several times, for instance a message once for each client that got it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

RECENT = 1000
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(slots=True)
class RecentTimes:
    """In seconds. One thread observes, any may read."""

    count: int = 0
    total_s: float = 0.0
    last: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def observe(self, seconds: float, times: int = 1) -> None:
        self.count += times
        self.total_s += seconds * times
        self.last.append((seconds, times))

    def quantiles(self) -> dict[float, float]:
        """Nothing if nothing was observed."""
        ordered = sorted(self.last.copy())
        wanted = list(QUANTILES)
        all_times, passed, found = sum(times for _, times in ordered), 0, {}
        for seconds, times in ordered:
            passed += times
            while wanted and passed >= wanted[0] * all_times:
                found[wanted.pop(0)] = seconds
        return found
