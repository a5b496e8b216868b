"""What the engine takes into its next round: everything until policies are in force, then by the shares of namespaces.

Rule: a large record is decoded when it is its turn, and its share pays for the time that it takes.
"""

from __future__ import annotations

import time

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.policing.feed import FedChange, FedRecord, RecordFeed, Undecoded, joined
from cni_calico.nodeagent.policing.shares import Shares, Taken
from cni_calico.nodeagent.policing.weights import weigh_change


def _weigh(change: FedChange) -> int:
    return change.weight if isinstance(change, Undecoded) else weigh_change(change)


class Turns:
    """For the engine's thread. True while something waits."""

    def __init__(self) -> None:
        self._shares: Shares[FedChange] = Shares(joined, _weigh, lambda change: isinstance(change, WorkloadEndpoint))
        self._begun = 0.0

    def __bool__(self) -> bool:
        return bool(self._shares)

    def take(self, feed: RecordFeed, *, everything: bool) -> Taken[FedRecord]:
        """``everything``: nothing is in force yet, and nothing will be before all is taken in."""
        self._begun = time.monotonic()
        changes, since = feed.take()
        if everything and not self._shares:
            found: Taken[FedChange] = Taken(changes, since, {})
        else:
            for key, change in changes.items():
                self._shares.put(key, change, since)
            found = self._shares.take_all() if everything else self._shares.take()
        decoded: dict[ResourceKey, FedRecord] = {key: feed.decoded(key, one) for key, one in found.changes.items()}
        return Taken(decoded, found.since, found.weights)

    def charge(self, taken: Taken[FedRecord]) -> None:
        """At the end of the round."""
        if taken.weights:
            self._shares.charge(taken.weights, time.monotonic() - self._begun)
