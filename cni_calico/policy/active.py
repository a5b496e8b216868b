"""PURE: which policies apply to this node's endpoints, and so which classes, policies and profiles are in force.

Host endpoints are a separate group with separate classes; everything else is the same for them. Rule: this is decided
for each set of labels, not for each endpoint. A policy that applies to nothing here is not in force, and its sets are
not computed, unless it asks to be kept on every node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.labels import LabelIndex, LabelSet, Own
from cni_calico.policy.order import select_class, select_host_class
from cni_calico.policy.records import DEFAULT_TIER, PolicyRecord, ProfileRecord, TierRecord
from cni_calico.policy.wanted import PolicyId, WantedClass, WantedHostClass

Local = LabelSet[ResourceKey, PolicyId]
ClassType = TypeVar("ClassType", WantedClass, WantedHostClass)
HOSTS = "hosts"  # the group of host endpoints
MANY = 128  # policies of a label set


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
        self._named: dict[str, frozenset[PolicyId]] = {}  # policies and profiles by class
        self._touched: dict[str, ClassType | None] = {}  # as they were at the last flush

    def give(self, label_set: Local, wanted: ClassType | None) -> bool:
        """Returns whether the label set has another class now; None: it needs none any more."""
        before = self.of.get(label_set)
        if wanted is not None and wanted.id == before:
            return False
        more = less = frozenset[PolicyId]()
        if wanted is None:
            self.of.pop(label_set, None)
        else:
            self.of[label_set] = wanted.id
            more = self._use(wanted)
        if before is not None:
            less = self._leave(before)
        self._in_force.add(more - less, 1)
        self._in_force.add(less - more, -1)
        return True

    def _use(self, wanted: ClassType) -> frozenset[PolicyId]:
        """Returns what is named now, and was not."""
        self._touched.setdefault(wanted.id, self.all.get(wanted.id))
        count = self._users.get(wanted.id, 0)
        self._users[wanted.id] = count + 1
        if count:
            return frozenset()
        self.all[wanted.id] = wanted
        self._named[wanted.id] = wanted.policy_ids()
        return self._named[wanted.id]

    def _leave(self, name: str) -> frozenset[PolicyId]:
        """Returns what is not named any more."""
        self._touched.setdefault(name, self.all[name])
        self._users[name] -= 1
        if self._users[name]:
            return frozenset()
        del self._users[name], self.all[name]
        return self._named.pop(name)

    def flush(self) -> Mapping[str, ClassType | None]:
        """Classes made or removed since the last flush."""
        touched, self._touched = self._touched, {}
        return {name: self.all.get(name) for name, was in touched.items() if (was is None) != (name not in self.all)}


class _InOrder:
    """The policies of a label set by their rank: kept up to date, because sorting thousands again takes long."""

    __slots__ = ("_all", "_ranks", "names")

    def __init__(self) -> None:
        self.names: list[PolicyId] = []
        self._ranks: list[tuple[float, str]] = []
        self._all: set[PolicyId] = set()

    def use(self, names: set[PolicyId], records: Mapping[PolicyId, PolicyRecord], replaced: set[PolicyId]) -> None:
        """``replaced``: those whose records have changed."""
        gone = self._all - names | (self._all & replaced)
        if gone:
            kept = [i for i, name in enumerate(self.names) if name not in gone]
            self.names = [self.names[i] for i in kept]
            self._ranks = [self._ranks[i] for i in kept]
        for name in (names - self._all) | (names & gone):
            rank = records[name].rank
            place = bisect_left(self._ranks, rank)
            self.names.insert(place, name)
            self._ranks.insert(place, rank)
        self._all = set(names)


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
        self._in_order: dict[Local, _InOrder] = {}  # of label sets with many policies
        self._replaced: set[PolicyId] = set()  # policies whose records have changed since the last flush

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
            self._replaced.add(name)
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

    def missing_tiers(self) -> dict[str, frozenset[PolicyId]]:
        """The tiers that do not exist and that policies name, in force or not, with these. A datastore without any tier
        is of a release that had none: there everything is in the one that has no record.
        """
        usual = () if self.tiers else (DEFAULT_TIER,)
        missing = self._of_tier.keys() - self.tiers.keys() - set(usual)
        return {name: frozenset(self._of_tier[name]) for name in missing}

    def class_of(self, key: ResourceKey) -> str:
        """The class of an endpoint, right after a flush."""
        label_set = self._index.label_set(key)
        assert label_set is not None
        return (self.host_classes if label_set.group == HOSTS else self.classes).of[label_set]

    def flush(self) -> set[ResourceKey]:
        """The endpoints whose class may have changed since the last flush; ``classes`` has the changed classes."""
        endpoints: set[ResourceKey] = set()
        alike: list[tuple[Local, WantedClass]] = []
        for label_set in self._unsettled:
            if label_set.group == HOSTS:
                policies = map(self.policies.__getitem__, label_set.matches)
                wanted = select_host_class(policies, self.tiers, self._profiles(label_set)) if label_set.items else None
                changed = self.host_classes.give(label_set, wanted)
            else:
                selected = self._select(label_set, alike) if label_set.items else None
                changed = self.classes.give(label_set, selected)
                if selected is None:
                    self._in_order.pop(label_set, None)
            if changed:
                endpoints |= label_set.items
        self._unsettled.clear()
        self._replaced.clear()
        return endpoints

    def _select(self, label_set: Local, alike: list[tuple[Local, WantedClass]]) -> WantedClass:
        """``alike``: what was selected in this flush for label sets with many policies."""
        profiles = self._profiles(label_set)
        if len(label_set.matches) < MANY:
            self._in_order.pop(label_set, None)
            return select_class(map(self.policies.__getitem__, label_set.matches), self.tiers, profiles)
        for other, selected in alike:
            if other.profiles == label_set.profiles and other.matches == label_set.matches:
                self._in_order.pop(label_set, None)
                return selected
        ordered = self._in_order.setdefault(label_set, _InOrder())
        ordered.use(label_set.matches, self.policies, self._replaced)
        policies = map(self.policies.__getitem__, ordered.names)
        found = select_class(policies, self.tiers, profiles, in_order=True)
        alike.append((label_set, found))
        return found

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
