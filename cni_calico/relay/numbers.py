"""PURE: what a relay counts, for its metrics.

Rule: one thread writes a counter, any may read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cni_calico.daemon.recent_times import RecentTimes

FLUSHES = 10
LATENCIES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(slots=True)
class WatchCacheNumbers:
    updates: int = 0
    skipped: int = 0
    rendered: int = 0


@dataclass(slots=True)
class ServerNumbers:
    """``dropped`` by reason, ``requests`` by kind. ``latency``: how many changes waited how long before they were sent,
    a count for each limit in LATENCIES_S and one for longer waits. ``flush_mean_s``: of about the last FLUSHES flushes.
    """

    accepted: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    bytes: int = 0
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCIES_S) + 1))
    flush_mean_s: float = 0.0
    waits: RecentTimes = field(default_factory=RecentTimes)
    writes: RecentTimes = field(default_factory=RecentTimes)
    lists: RecentTimes = field(default_factory=RecentTimes)

    def flush(self, told: int, spent_s: float, waited_s: float) -> None:
        """Count a flush: ``told`` clients were sent changes, the oldest of which had waited ``waited_s`` before."""
        lasted_s = waited_s + spent_s
        self.latency[next((i for i, s in enumerate(LATENCIES_S) if lasted_s <= s), len(LATENCIES_S))] += told
        self.flush_mean_s += (spent_s - self.flush_mean_s) / FLUSHES
        self.waits.observe(lasted_s, told)
        self.writes.observe(spent_s / told, told)

    def drop(self, why: str) -> None:
        self.dropped[why] = self.dropped.get(why, 0) + 1

    def request(self, kind: str) -> None:
        self.requests[kind] = self.requests.get(kind, 0) + 1


@dataclass(frozen=True, slots=True)
class RelayNumbers:
    """All of a relay's numbers. ``sizes``: objects by collection; ``older``: how often changes from before this relay's
    start were read, by outcome.
    """

    server: ServerNumbers
    cache: WatchCacheNumbers
    connections: int = 0
    streaming: int = 0
    share: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    raw_bytes: Mapping[str, int] = field(default_factory=dict)
    compressed_bytes: Mapping[str, int] = field(default_factory=dict)
    older: Mapping[str, int] = field(default_factory=dict)
    troubles: int = 0
