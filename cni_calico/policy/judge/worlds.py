"""PURE: what another state of policy would decide otherwise: every kind of traffic, judged before and after.

Rule: nothing is tried as an example. Workloads that no rule tells apart are compared once, and so are all addresses
outside that lie in the same named networks, all protocols that no rule names, and all ports between those named. What
no changed policy, tier or set can concern is not looked at.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.judge.asked import AskedNames, names_of, narrowed
from cni_calico.policy.judge.cells import JudgedPacket
from cni_calico.policy.judge.classes import AddressClass
from cni_calico.policy.judge.compare import CellDifference, NotComparable, pairs_of, verdict_of
from cni_calico.policy.judge.outside import OutsidePart, nets_named, outside_parts
from cni_calico.policy.judge.trace import AskedGroup, Judge
from cni_calico.policy.wanted import Direction, Packed, PolicyId, PolicyReach, Wanted, WantedTier

_CELLS, _ADDRESSES = 200, 1 << 30
DIRECTIONS: tuple[Direction, ...] = ("ingress", "egress")
STAGES: tuple[PolicyReach, ...] = ("own", "forward", "beforeNat", "raw")

NameOfIt = TypeVar("NameOfIt", bound=Hashable)
ComparedEnd = ResourceKey | OutsidePart  # a workload or host endpoint, or addresses that are no workload's
ClassPair = tuple[AddressClass, AddressClass]  # before and after
EndsByClass = Mapping[ClassPair, tuple[ComparedEnd, ...]]


@dataclass(frozen=True, slots=True)
class AskedBoth:
    """Who decides, before and after; ``mine``: the ends whose policies these are."""

    before: AskedGroup
    after: AskedGroup
    mine: EndsByClass

    @property
    def direction(self) -> Direction:
        return self.before[1]

    @property
    def reach(self) -> PolicyReach | None:
        """The stage of host endpoints; None: workloads."""
        return self.before[2]


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """``differing``: None if it could not be compared. ``protocol``: a number; ``others``: it stands for every protocol
    that no rule names. Classes have only what the group's rules ask for.
    """

    asked: AskedBoth
    sources: tuple[ComparedEnd, ...]
    destinations: tuple[ComparedEnd, ...]
    classes: tuple[ClassPair, ClassPair]
    protocol: int
    others: bool
    differing: tuple[CellDifference, ...] | None


@dataclass(slots=True)
class RulesSeen:
    """The rules that decide something or hand something on, in what was compared. An answer is looked at once."""

    rules: set[tuple[PolicyId, Direction, int]] = field(default_factory=set)
    _answers: dict[int, JudgedPacket] = field(default_factory=dict)

    def add(self, judged: JudgedPacket, direction: Direction) -> None:
        if id(judged) in self._answers:
            return
        self._answers[id(judged)] = judged
        decision = judged.decision
        if decision is not None and decision.policy is not None and decision.rule is not None:
            self.rules.add((decision.policy, direction, decision.rule))
        for step in judged.passed:
            if step.policy is not None and step.rule is not None:
                self.rules.add((step.policy, direction, step.rule))


class WorldPair:
    """``before`` and ``after`` of the same endpoints."""

    def __init__(self, before: Wanted, after: Wanted) -> None:
        self.before, self.after = before, after
        self.judges = Judge(before, _CELLS, addresses=_ADDRESSES), Judge(after, _CELLS, addresses=_ADDRESSES)
        self.changed_policies = _differing(before.policies, after.policies)
        self.changed_sets = _differing(before.sets, after.sets)
        self.seen = RulesSeen(), RulesSeen()
        self._names: dict[tuple[PolicyId, Direction], AskedNames] = {}
        at = addresses_at(before) | addresses_at(after)
        parts = outside_parts(nets_named(before) | nets_named(after), set(at))
        everybody = [*at.items(), *((part.example, (part,)) for part in parts)]
        self.everybody = self._by_class(everybody)
        self.groups = tuple(self._groups())

    def classes_of(self, address: Packed) -> ClassPair:
        was, now = self.judges
        return was.classes.of(address), now.classes.of(address)

    def _by_class(self, ends: Iterable[tuple[Packed, tuple[ComparedEnd, ...]]]) -> EndsByClass:
        found: dict[ClassPair, list[ComparedEnd]] = {}
        for address, its in ends:
            found.setdefault(self.classes_of(address), []).extend(its)
        return {pair: tuple(dict.fromkeys(its)) for pair, its in found.items()}

    # -- who is asked -------------------------------------------------------------------------------------------------

    def _groups(self) -> Iterator[AskedBoth]:
        before, after = self.before, self.after
        alike: dict[tuple[str, str], list[tuple[Packed, tuple[ComparedEnd, ...]]]] = {}
        for key, endpoint in before.endpoints.items():
            if key in after.endpoints:
                its = alike.setdefault((endpoint.class_id, after.endpoints[key].class_id), [])
                its.extend((address, (key,)) for address in endpoint.addresses)
        for (was, now), own in alike.items():
            mine = self._by_class(own)
            for direction in DIRECTIONS:
                yield AskedBoth((was, direction, None), (now, direction, None), mine)
        hosts: dict[tuple[str, str], list[ResourceKey]] = {}
        for key, host in before.hosts.items():
            if key in after.hosts:
                hosts.setdefault((host.class_id, after.hosts[key].class_id), []).append(key)
        for (was, now), keys in hosts.items():
            anywhere: EndsByClass = {pair: tuple(keys) for pair in self.everybody}
            for reach in STAGES:
                for direction in DIRECTIONS:
                    yield AskedBoth((was, direction, reach), (now, direction, reach), anywhere)

    def tiers(self, asked: AskedBoth) -> tuple[tuple[WantedTier, ...], tuple[WantedTier, ...]]:
        """Before and after."""
        return _tiers(self.before, asked.before), _tiers(self.after, asked.after)

    def policies(self, asked: AskedBoth) -> frozenset[PolicyId]:
        """Those that are asked before or after, profiles too."""
        found = {policy for tiers in self.tiers(asked) for tier in tiers for policy in tier.policies}
        return frozenset(found.union(_profiles(self.before, asked.before), _profiles(self.after, asked.after)))

    def is_concerned(self, asked: AskedBoth) -> bool:
        """Whether anything that could change its verdicts has changed."""
        was, now = self.tiers(asked)
        if was != now or _profiles(self.before, asked.before) != _profiles(self.after, asked.after):
            return True
        policies = self.policies(asked)
        if not policies.isdisjoint(self.changed_policies):
            return True
        return bool(self.changed_sets) and not self.names(asked).sets.isdisjoint(self.changed_sets)

    def names(self, asked: AskedBoth) -> AskedNames:
        """What the rules of a group ask for."""
        found = AskedNames()
        for policy in self.policies(asked):
            at = policy, asked.direction
            known = self._names.get(at)
            if known is None:
                both = self.before.policies.get(policy), self.after.policies.get(policy)
                known = self._names[at] = names_of(both, asked.direction)
            found.add(known)
        return found

    # -- what they answer ---------------------------------------------------------------------------------------------

    def kinds_of_pairs(
        self, asked: AskedBoth, names: AskedNames
    ) -> Iterator[tuple[ClassPair, ClassPair, tuple[ComparedEnd, ...], tuple[ComparedEnd, ...]]]:
        """Sources and destinations, in the least classes that the group's rules tell apart; of one family."""
        ingress = asked.direction == "ingress"
        peers = _narrowed(self.everybody, names, source=ingress)
        mine = _narrowed(asked.mine, names, source=not ingress)
        for own, keys in mine.items():
            for peer, ends in peers.items():
                if own[0].family != peer[0].family:
                    continue
                if ingress:
                    yield peer, own, ends, keys
                else:
                    yield own, peer, keys, ends

    def compare(self, asked: AskedBoth) -> Iterator[ComparedPair]:
        """What differs, or cannot be compared."""
        names = self.names(asked)
        was, now = self.judges
        seen_before, seen_after = self.seen
        direction = asked.direction
        for source, destination, sources, destinations in self.kinds_of_pairs(asked, names):
            for protocol, others in names.all_protocols():
                before = was.cell_of(asked.before, source[0], destination[0], protocol)
                after = now.cell_of(asked.after, source[1], destination[1], protocol)
                differing: list[CellDifference] = []
                is_comparable = True
                try:
                    for one in pairs_of(before, after, protocol, source[0].family):
                        seen_before.add(one.before, direction)
                        seen_after.add(one.after, direction)
                        if verdict_of(one.before) != verdict_of(one.after):
                            differing.append(one)
                except NotComparable:
                    is_comparable = False
                if differing or not is_comparable:
                    found = tuple(differing) if is_comparable else None
                    yield ComparedPair(asked, sources, destinations, (source, destination), protocol, others, found)


def _narrowed(ends: EndsByClass, names: AskedNames, *, source: bool) -> EndsByClass:
    found: dict[ClassPair, list[ComparedEnd]] = {}
    sets, nets = names.of_side(source=source)
    for (before, after), its in ends.items():
        found.setdefault((narrowed(before, sets, nets), narrowed(after, sets, nets)), []).extend(its)
    return {pair: tuple(dict.fromkeys(its)) for pair, its in found.items()}


def addresses_at(wanted: Wanted) -> dict[Packed, tuple[ComparedEnd, ...]]:
    """Which workloads have an address."""
    found: dict[Packed, list[ComparedEnd]] = {}
    for key, endpoint in wanted.endpoints.items():
        for address in endpoint.addresses:
            found.setdefault(address, []).append(key)
    return {address: tuple(keys) for address, keys in found.items()}


def _differing(before: Mapping[NameOfIt, object], after: Mapping[NameOfIt, object]) -> frozenset[NameOfIt]:
    return frozenset(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _tiers(wanted: Wanted, group: AskedGroup) -> tuple[WantedTier, ...]:
    name, direction, reach = group
    if reach is not None:
        return wanted.host_classes[name].tiers(reach, direction == "ingress")
    found = wanted.classes[name]
    return found.ingress if direction == "ingress" else found.egress


def _profiles(wanted: Wanted, group: AskedGroup) -> tuple[PolicyId, ...]:
    """Those that are asked after the last tier."""
    name, _, reach = group
    if reach is None:
        return wanted.classes[name].profiles
    return wanted.host_classes[name].profiles if reach == "own" else ()
