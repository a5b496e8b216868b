"""PURE: which policies apply to this node's endpoints, and so which classes, policies and profiles are in force.

Rule: decided for each set of labels, not for each endpoint. A policy that applies to nothing here is not in force, and
its sets are not computed, unless it asks to be kept on every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.labels import LabelIndex, LabelSet, Own
from cni_calico.policy.order import select_class
from cni_calico.policy.records import PolicyRecord, ProfileRecord, TierRecord
from cni_calico.policy.wanted import PolicyId, WantedClass

Local = LabelSet[ResourceKey, PolicyId]


class Counted:
    """How often each policy is named; ``changed``: those whose count began or ceased to be zero."""

    __slots__ = ("changed", "counts")

    def __init__(self) -> None:
        self.counts: dict[PolicyId, int] = {}
        self.changed: set[PolicyId] = set()

    def add(self, names: Iterable[PolicyId], by: int) -> None:
        for name in names:
            count = self.counts.get(name, 0) + by
            if count:
                self.counts[name] = count
            else:
                del self.counts[name]
            if not count or count == by:
                self.changed.add(name)


class ActivePolicies:
    """After ``flush``, ``classes`` are those in force and ``in_force`` has the ids of their policies and profiles."""

    def __init__(self) -> None:
        self.tiers: dict[str, TierRecord] = {}
        self.policies: dict[PolicyId, PolicyRecord] = {}
        self.profiles: dict[str, ProfileRecord] = {}
        self.classes: dict[str, WantedClass] = {}
        self.in_force = Counted()
        self._index: LabelIndex[ResourceKey, PolicyId] = LabelIndex(self._on_match)
        self._of_tier: dict[str, set[PolicyId]] = {}
        self._matched: dict[PolicyId, set[Local]] = {}
        self._class_of: dict[Local, str] = {}
        self._users: dict[str, int] = {}  # label sets by class
        self._unsettled: set[Local] = set()

    # -- in -----------------------------------------------------------------------------------------------------------

    def set_endpoint(self, key: ResourceKey, own: Own, profiles: tuple[str, ...]) -> None:
        before = self._index.label_set(key)
        if before is not None:
            self._unsettled.add(before)
        self._unsettled.add(self._index.set_item(key, own, profiles))

    def remove_endpoint(self, key: ResourceKey) -> None:
        before = self._index.label_set(key)
        if before is not None:
            self._unsettled.add(before)
            self._index.remove_item(key)

    def set_tier(self, name: str, tier: TierRecord | None) -> None:
        if tier is None:
            self.tiers.pop(name, None)
        else:
            self.tiers[name] = tier
        for policy in self._of_tier.get(name, ()):
            self._unsettled |= self._matched.get(policy, set())

    def set_policy(self, name: PolicyId, policy: PolicyRecord | None) -> None:
        before = self.policies.pop(name, None)
        if before is not None:
            self._of_tier[before.wanted.tier].discard(name)
            if not self._of_tier[before.wanted.tier]:
                del self._of_tier[before.wanted.tier]
            if policy is None or policy.selector.text != before.selector.text:
                self._index.remove_selector(name)
        if policy is not None:
            self.policies[name] = policy
            self._of_tier.setdefault(policy.wanted.tier, set()).add(name)
            if before is None or policy.selector.text != before.selector.text:
                self._index.add_selector(name, policy.selector)
            if before is not None and _place(before) != _place(policy):
                self._unsettled |= self._matched.get(name, set())
        hints = (before is not None and before.hint, policy is not None and policy.hint)
        if hints[0] != hints[1]:
            self.in_force.add((name,), 1 if hints[1] else -1)

    def set_profile(self, name: str, profile: ProfileRecord | None) -> None:
        existed = name in self.profiles
        if profile is None:
            self.profiles.pop(name, None)
        else:
            self.profiles[name] = profile
        if existed != (profile is not None):
            self._unsettled.update(self._index.heirs(name))
        self._index.set_profile(name, None if profile is None else profile.labels)

    def _on_match(self, name: PolicyId, label_set: Local, matches: bool) -> None:
        matched = self._matched.setdefault(name, set())
        if matches:
            matched.add(label_set)
        else:
            matched.discard(label_set)
            if not matched:
                del self._matched[name]
        self._unsettled.add(label_set)

    # -- out ----------------------------------------------------------------------------------------------------------

    def class_of(self, key: ResourceKey) -> str:
        """The class of an endpoint, right after a flush."""
        label_set = self._index.label_set(key)
        assert label_set is not None
        return self._class_of[label_set]

    def flush(self) -> tuple[Mapping[str, WantedClass | None], set[ResourceKey]]:
        """(classes made or removed since the last flush, endpoints whose class may have changed)."""
        touched: dict[str, WantedClass | None] = {}
        endpoints: set[ResourceKey] = set()
        for label_set in self._unsettled:
            before = self._class_of.get(label_set)
            wanted = self._select(label_set) if label_set.items else None
            if wanted is not None and wanted.id == before:
                continue
            endpoints |= label_set.items
            if wanted is not None:
                self._class_of[label_set] = wanted.id
                self._use(wanted, touched)
            else:
                self._class_of.pop(label_set, None)
            if before is not None:
                self._leave(before, touched)
        self._unsettled.clear()
        changes = {}
        for name, was in touched.items():
            now = self.classes.get(name)
            if (was is None) != (now is None):
                changes[name] = now
        return changes, endpoints

    def _select(self, label_set: Local) -> WantedClass:
        profiles: list[PolicyId] = []
        for name in label_set.profiles:
            if name not in self.profiles:
                break
            profiles.append(self.profiles[name].wanted.id)
        return select_class((self.policies[name] for name in label_set.matches), self.tiers, profiles)

    def _use(self, wanted: WantedClass, touched: dict[str, WantedClass | None]) -> None:
        touched.setdefault(wanted.id, self.classes.get(wanted.id))
        count = self._users.get(wanted.id, 0)
        self._users[wanted.id] = count + 1
        if not count:
            self.classes[wanted.id] = wanted
            self.in_force.add(wanted.policy_ids(), 1)

    def _leave(self, name: str, touched: dict[str, WantedClass | None]) -> None:
        touched.setdefault(name, self.classes[name])
        self._users[name] -= 1
        if not self._users[name]:
            del self._users[name]
            self.in_force.add(self.classes.pop(name).policy_ids(), -1)


def _place(policy: PolicyRecord) -> tuple[object, ...]:
    """The parts of a policy that determine classes."""
    wanted = policy.wanted
    return wanted.tier, policy.rank, wanted.ingress is None, wanted.egress is None, policy.host_only
