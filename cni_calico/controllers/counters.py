"""PURE: what the controllers and the janitor count, for metrics and status.

Rule: one thread writes a counter, any may read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cni_calico.controllers.ipam_metrics import IpamNumbers, PoolOnNode
from cni_calico.ipam.lost.reclaim import ReclaimOutcome
from cni_calico.model.keys import ResourceKey


@dataclass(slots=True)
class LoopNumbers:
    """One controller's counters."""

    writes: int = 0
    failures: int = 0
    waiting: int = 0
    failing: int = 0
    left_out: dict[ResourceKey, tuple[str, ...]] = field(default_factory=dict)
    error: str = ""


@dataclass(slots=True)
class JanitorCounters:
    """The janitor's counters."""

    is_leader: bool = False
    candidates: Mapping[str, int] = field(default_factory=dict)
    confirmed: Counter[str] = field(default_factory=Counter)
    released: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    failures: int = 0
    reclaimed: Counter[PoolOnNode] = field(default_factory=Counter)
    # the leader's view of address management, None while the lease is not certainly ours; for any thread
    ipam: Callable[[], IpamNumbers | None] = lambda: None

    def count(self, outcome: ReclaimOutcome) -> None:
        from cni_calico.ipam.lost.leaks import kind_of  # in every agent, for the one that is elected

        self.confirmed.update(kind_of(subject) for subject, _ in outcome.confirmed)
        self.released.update(kind_of(subject) for subject in outcome.released)
        self.kept += len(outcome.kept)
