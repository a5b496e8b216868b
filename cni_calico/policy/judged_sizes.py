"""PURE: which policies in force deny for their size: above the budget of one, or without room among all.

Rule: what a policy may need follows from its text alone; what was in force when the agent started is spared, up to its
size.
"""

from __future__ import annotations

from cni_calico.policy.active import ActivePolicies
from cni_calico.policy.budget import NO_ROOM, OVER_BUDGET, count_rules, is_waiting
from cni_calico.policy.records import PolicyRecord
from cni_calico.policy.room import FilterRoom
from cni_calico.policy.wanted import PolicyId


class JudgedSizes:
    """``budget``: rules of the packet filter that a policy may need; None: any number, and nothing is judged.
    ``over_budget``: what those in force may need that deny because of it; ``spared``: those that count all the same, up
    to this size.
    """

    def __init__(self, active: ActivePolicies) -> None:
        self._active = active
        self.budget: int | None = None
        self.over_budget: dict[PolicyId, int] = {}
        self.spared: dict[PolicyId, int] = {}
        self.room = FilterRoom()

    def judge(self, changed: set[PolicyId]) -> set[PolicyId]:
        """``changed``: what may be in force otherwise than before; returns it with the others of which that is so."""
        for name in changed:
            self.over_budget.pop(name, None)
            policy = self._in_force(name)
            count = 0 if policy is None or self.budget is None else count_rules(policy.wanted)
            if count and self._is_over(name, count):
                self.over_budget[name] = count
                count = 0
            self.room.note(name, count or None)
        for name in changed & self.room.stood:
            policy = self._in_force(name)
            if policy is not None and not is_waiting(policy.wanted):
                self._spare_stood(policy)
                self.room.stood.discard(name)
            elif name not in self._active.policies:
                self.room.stood.discard(name)
        return changed | self.room.judge(changed, self.spared)

    def why_denied(self, name: PolicyId) -> str:
        """Why one in force denies, "" if it does not."""
        if name in self.over_budget:
            return OVER_BUDGET
        return NO_ROOM if name in self.room.without else ""

    def admit(self, policy: PolicyRecord) -> bool:
        """Whether one that is made ready will be in force as it is; its room is reserved then."""
        count = count_rules(policy.wanted)
        if self._is_over(policy.id, count):
            return False
        self._spare_stood(policy)
        if not self.room.admits(policy.id, count, self.spared):
            return False
        self.room.reserve(policy.id, count)
        return True

    def let_go(self, name: PolicyId) -> None:
        """It is in force, or will not be."""
        if name not in self._active.in_force.counts:
            self.room.note(name, None)

    def _in_force(self, name: PolicyId) -> PolicyRecord | None:
        return self._active.policies.get(name) if name in self._active.in_force.counts else None

    def _is_over(self, name: PolicyId, count: int) -> bool:
        return self.budget is not None and count > max(self.budget, self.spared.get(name, 0))

    def _spare_stood(self, policy: PolicyRecord) -> None:
        """What was in force when the agent started does not go because there is no room for it, and no other goes for
        it. It may have had room while it was made ready, and none any more once it is: another one may have come in
        between.
        """
        name, count = policy.id, count_rules(policy.wanted)
        if name in self.room.stood and self.room.goes_without(name, count, self.spared):
            self.spared[name] = count
