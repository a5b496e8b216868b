"""PURE: what of the namespaces' policies waits because there is no memory for the members of what they select.

Rule: a policy that waits opens nothing: its rules before stay in force if it governs what it did, else it denies. A
policy of no namespace never waits. What waits is tried again one by one, the one with the fewest members first, when
there is room for twice as many as were too many, or when network sets have become smaller.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.budget import is_waiting
from cni_calico.policy.flushed import WaitsForMemory
from cni_calico.policy.records import PolicyRecord
from cni_calico.policy.sets import NoRoom, Sets
from cni_calico.policy.sources import SetSource
from cni_calico.policy.wanted import PolicyId, WantedPolicy

RECONSIDER_S = 5.0
PolicyReachKey = tuple[str, float, str, str, bool, bool]


class Shortage:
    """``policies``: those that wait, with the version, and how many members were too many."""

    def __init__(self, sets: Sets) -> None:
        self.policies: dict[PolicyId, tuple[WantedPolicy, int]] = {}
        self._sets = sets
        self._reach: dict[PolicyId, PolicyReachKey] = {}  # of namespaces' policies, as of the last flush
        self._tried_at = float("-inf")

    def make_sets(self, name: PolicyId, wanted: WantedPolicy, sources: Mapping[str, SetSource]) -> bool:
        """Whether the rules' sets have all their members, and are needed from now on; else the policy waits."""
        bounded, before = bool(name.namespace), self._sets.made
        if bounded and sources and not self._may_try(name, wanted):
            self.policies.setdefault(name, (wanted, 0))
            return False
        needed: list[str] = []
        try:
            for source in sources.values():
                self._sets.need(source)
                needed.append(source.id)
                self._sets.complete(source.id, bounded=bounded)
        except NoRoom:
            for set_id in needed:
                self._sets.release(set_id)
            self.note(name, wanted, self._sets.made - before)
            return False
        self.forget(name)
        return True

    def note(self, name: PolicyId, wanted: WantedPolicy, members: int) -> None:
        """So many were too many."""
        self.policies[name] = wanted, members

    def forget(self, name: PolicyId) -> None:
        self.policies.pop(name, None)

    def _may_try(self, name: PolicyId, wanted: WantedPolicy) -> bool:
        """It needs more members than were too many."""
        tried, count = self.policies.get(name, (wanted, 0))
        members = 2 * count if tried is wanted else 0
        return not self._sets.is_blind(name.namespace) and (not members or self._sets.admits(members))

    def reconsider(self, now: float) -> tuple[ResourceKey | None, list[PolicyId]]:
        """(what there may be memory for now, and is to be put again; the policies that only waited for a network set),
        every RECONSIDER_S. ``now``: seconds of any clock.
        """
        found: list[PolicyId] = []
        if not (self.policies or self._sets.waiting) or now - self._tried_at < RECONSIDER_S:
            return None, found
        self._tried_at = now
        if (due := self._sets.next_waiting()) is not None:
            return due, found
        are_smaller = self._sets.take_freed()
        for name in sorted(self.policies, key=lambda name: (self.policies[name][1], str(name))):
            wanted, count = self.policies[name]
            if are_smaller:
                count = min(count, 1)
                self.note(name, wanted, count)
            if self._may_try(name, wanted):
                if count:
                    return ResourceKey(name.kind, name.name, name.namespace), found
                found.append(name)
        return None, found

    def waiting(self, in_force: Mapping[PolicyId, WantedPolicy]) -> tuple[WaitsForMemory, ...]:
        """Everything that waits."""
        policies = (
            WaitsForMemory(ResourceKey(name.kind, name.name, name.namespace), is_denied=is_waiting(there))
            for name in self.policies
            if (there := in_force.get(name)) is not None
        )
        return (*policies, *(WaitsForMemory(key, is_denied=False) for key in self._sets.waiting))

    # -- what a policy governs ----------------------------------------------------------------------------------------

    def reaches_as_before(self, policy: PolicyRecord | None) -> bool:
        """Whether it governs the same endpoints in the same place as at the last flush."""
        return policy is not None and self._reach.get(policy.id) == _reach_of(policy)

    def note_reach(self, name: PolicyId, policy: PolicyRecord | None) -> None:
        """``policy``: as it is in force from now on, None if it is not."""
        if policy is None or not name.namespace:
            self._reach.pop(name, None)
        else:
            self._reach[name] = _reach_of(policy)


def _reach_of(policy: PolicyRecord) -> PolicyReachKey:
    wanted = policy.wanted
    return policy.selector.text, policy.order, wanted.tier, wanted.reach, wanted.ingress is None, wanted.egress is None
