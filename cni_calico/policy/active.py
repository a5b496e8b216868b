"""PURE: which policies apply to this node's endpoints, and so which classes, policies and profiles are in force.

Host endpoints are a separate group with separate classes; everything else is the same for them. Rule: this is decided
for each set of labels, not for each endpoint. A policy that applies to nothing here is not in force, and its sets are
not computed, unless it asks to be kept on every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.labels import LabelIndex, LabelSet, Own
from cni_calico.policy.order import select_class, select_host_class
from cni_calico.policy.records import PolicyRecord, ProfileRecord, TierRecord
from cni_calico.policy.wanted import PolicyId, WantedClass, WantedHostClass

Local = LabelSet[ResourceKey, PolicyId]
ClassType = TypeVar("ClassType", WantedClass, WantedHostClass)
HOSTS = "hosts"  # the group of host endpoints


class Counted:
    """How many classes name each policy; ``changed``: the policies whose count became zero or ceased to be zero."""

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


class UsedClasses(Generic[ClassType]):
    """The classes of the label sets; ``in_force`` counts their policies and profiles."""

    def __init__(self, in_force: Counted) -> None:
        self.all: dict[str, ClassType] = {}
        self.of: dict[Local, str] = {}
        self._in_force = in_force
        self._users: dict[str, int] = {}  # label sets by class
        self._touched: dict[str, ClassType | None] = {}  # as they were at the last flush

    def give(self, label_set: Local, wanted: ClassType | None) -> bool:
        """Returns whether the label set has another class now; None: it needs none any more."""
        before = self.of.get(label_set)
        if wanted is not None and wanted.id == before:
            return False
        if wanted is None:
            self.of.pop(label_set, None)
        else:
            self.of[label_set] = wanted.id
            self._use(wanted)
        if before is not None:
            self._leave(before)
        return True

    def _use(self, wanted: ClassType) -> None:
        self._touched.setdefault(wanted.id, self.all.get(wanted.id))
        count = self._users.get(wanted.id, 0)
        self._users[wanted.id] = count + 1
        if not count:
            self.all[wanted.id] = wanted
            self._in_force.add(wanted.policy_ids(), 1)

    def _leave(self, name: str) -> None:
        self._touched.setdefault(name, self.all[name])
        self._users[name] -= 1
        if not self._users[name]:
            del self._users[name]
            self._in_force.add(self.all.pop(name).policy_ids(), -1)

    def flush(self) -> Mapping[str, ClassType | None]:
        """Classes made or removed since the last flush."""
        touched, self._touched = self._touched, {}
        return {name: self.all.get(name) for name, was in touched.items() if (was is None) != (name not in self.all)}


class ActivePolicies:
    """After ``flush``, ``classes`` are the classes in force, and ``in_force`` has the ids of their policies and
    profiles.
    """

    def __init__(self) -> None:
        self.tiers: dict[str, TierRecord] = {}
        self.policies: dict[PolicyId, PolicyRecord] = {}
        self.profiles: dict[str, ProfileRecord] = {}
        self.in_force = Counted()
        self.classes = UsedClasses[WantedClass](self.in_force)
        self.host_classes = UsedClasses[WantedHostClass](self.in_force)
        self._index: LabelIndex[ResourceKey, PolicyId] = LabelIndex(self._on_match)
        self._of_tier: dict[str, set[PolicyId]] = {}
        self._matched: dict[PolicyId, set[Local]] = {}
        self._unsettled: set[Local] = set()

    # -- in -----------------------------------------------------------------------------------------------------------

    def set_endpoint(self, key: ResourceKey, own: Own, profiles: tuple[str, ...], group: str = "") -> None:
        before = self._index.label_set(key)
        if before is not None:
            self._unsettled.add(before)
        self._unsettled.add(self._index.set_item(key, own, profiles, group))

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

    def applies(self, policy: PolicyRecord) -> bool:
        """Whether it would apply to anything here."""
        return policy.id in self._matched or self._index.any_match(policy.selector)

    # -- out ----------------------------------------------------------------------------------------------------------

    def class_of(self, key: ResourceKey) -> str:
        """The class of an endpoint, right after a flush."""
        label_set = self._index.label_set(key)
        assert label_set is not None
        return (self.host_classes if label_set.group == HOSTS else self.classes).of[label_set]

    def flush(self) -> set[ResourceKey]:
        """The endpoints whose class may have changed since the last flush; ``classes`` has the changed classes."""
        endpoints: set[ResourceKey] = set()
        for label_set in self._unsettled:
            policies = (self.policies[name] for name in label_set.matches)
            if label_set.group == HOSTS:
                wanted = select_host_class(policies, self.tiers, self._profiles(label_set)) if label_set.items else None
                changed = self.host_classes.give(label_set, wanted)
            else:
                selected = select_class(policies, self.tiers, self._profiles(label_set)) if label_set.items else None
                changed = self.classes.give(label_set, selected)
            if changed:
                endpoints |= label_set.items
        self._unsettled.clear()
        return endpoints

    def _profiles(self, label_set: Local) -> list[PolicyId]:
        profiles: list[PolicyId] = []
        for name in label_set.profiles:
            if name not in self.profiles:
                break
            profiles.append(self.profiles[name].wanted.id)
        return profiles


def _place(policy: PolicyRecord) -> tuple[object, ...]:
    """The parts of a policy that determine classes."""
    wanted = policy.wanted
    return wanted.tier, policy.rank, wanted.ingress is None, wanted.egress is None, wanted.reach
