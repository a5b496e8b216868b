"""The agent's own numbers, plain values until metrics are requested.

Rule: counting needs no client library and no lock: one thread writes, and readers may see slightly old values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

WAITS, READS, FOLLOWS = 1, 2, 3  # what it does with the datastore, by upstream's numbers

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class Numbers:
    """``routes``: those that are kept in the main table, by IP version; ``resyncs``: how often reading began."""

    passes: dict[str, int] = field(default_factory=dict)
    changes: int = 0
    failures: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    policies: int = 0
    datastore_in_sync: bool = False
    datastore_state: int = WAITS
    resyncs: int = 0
    routes: dict[int, int] = field(default_factory=dict)
    doubts: dict[tuple[str, int], int] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)

    def note_datastore(self, *, in_sync: bool, error: bool) -> None:
        """Reading it begins when it is first asked, and whenever it has been lost."""
        if not in_sync and (self.datastore_in_sync or not self.resyncs):
            self.resyncs += 1
        self.datastore_in_sync = in_sync
        self.datastore_state = FOLLOWS if in_sync else WAITS if error else READS

    def resynced(self, seconds: float, *, full: bool, changed: int, failed: int) -> None:
        kind = "full" if full else "partial"
        self.passes[kind] = self.passes.get(kind, 0) + 1
        self.changes += changed
        self.failures += failed
        self.seconds += seconds
        self.buckets[sum(seconds > limit for limit in BUCKETS_S)] += 1
