"""PURE: judges any number of packets by the wanted state at one moment, with the steps that led to each verdict.

Rule: it answers what ``policy.explain:decide`` and ``decide_host`` answer, which are its oracle; it is for whoever asks
often. A change costs the cells whose rules changed; at most ``CELLS`` are kept, and those not asked for longest go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TypeVar

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.explain import Packet
from cni_calico.policy.judge.cells import (
    MOST_WORK,
    AskedEachTime,
    AskedTiers,
    Cell,
    CellQuestion,
    JudgedPacket,
    TooManyPieces,
    compile_cell,
)
from cni_calico.policy.judge.classes import REMEMBERED, AddressClass, AddressClasses
from cni_calico.policy.judge.fitting import FittingRules
from cni_calico.policy.ports import ICMP, WITH_PORTS
from cni_calico.policy.wanted import (
    Direction,
    Packed,
    PolicyId,
    PolicyReach,
    Wanted,
    WantedChanges,
    WantedClass,
    WantedHostClass,
    WantedPolicy,
    WantedTier,
)

CELLS, SPANS = 50_000, 500_000
_SHARED = 20_000  # different answers

OverlaidKey = TypeVar("OverlaidKey")
OverlaidValue = TypeVar("OverlaidValue")
AskedGroup = tuple[
    str, Direction, PolicyReach | None
]  # a class of workloads (None), or a stage of a class of host endpoints


class Judge:
    """``change`` takes in what changed since ``wanted``. At most ``cells`` of together ``spans`` ports are kept, and
    the classes of ``addresses``.
    """

    def __init__(
        self,
        wanted: Wanted,
        cells: int = CELLS,
        spans: int = SPANS,
        addresses: int = REMEMBERED,
        work: int = MOST_WORK,
    ) -> None:
        """``work``: what is looked at for a cell before its rules are asked for each packet instead."""
        self._most, self._most_spans, self._spans, self._work = cells, spans, 0, work
        self.classes = AddressClasses(wanted, addresses)
        self._policies: dict[PolicyId, WantedPolicy] = dict(wanted.policies)
        self._groups: dict[str, WantedClass] = dict(wanted.classes)
        self._host_groups: dict[str, WantedHostClass] = dict(wanted.host_classes)
        self._class_of = {key: one.class_id for key, one in wanted.endpoints.items()}
        self._host_class_of = {key: one.class_id for key, one in wanted.hosts.items()}
        self._fitting: dict[tuple[PolicyId, Direction], FittingRules] = {}
        self._asked: dict[AskedGroup, AskedTiers] = {}
        self._asking: dict[PolicyId, set[AskedGroup]] = {}  # policy -> who asks it
        self._shared: dict[JudgedPacket, JudgedPacket] = {}
        self._cells: OrderedDict[tuple[AskedGroup, AddressClass, AddressClass, int], Cell | AskedEachTime] = (
            OrderedDict()
        )

    def __len__(self) -> int:
        """Cells."""
        return len(self._cells)

    def change(self, changes: WantedChanges) -> None:
        self.classes.change(changes)
        _overlay(self._policies, changes.policies)
        _overlay(self._groups, changes.classes)
        _overlay(self._host_groups, changes.host_classes)
        for there, of_keys in ((self._class_of, changes.endpoints), (self._host_class_of, changes.hosts)):
            _overlay(there, {key: None if one is None else one.class_id for key, one in of_keys.items()})
        for policy in changes.policies:
            for direction in ("ingress", "egress"):
                self._fitting.pop((policy, direction), None)
        gone = {name for name, value in (*changes.classes.items(), *changes.host_classes.items()) if value is None}
        stale = {group for policy in changes.policies for group in self._asking.get(policy, ())}
        stale |= {group for group in self._asked if group[0] in gone} if gone else set()
        if stale:
            for group in stale:
                self._forget(group)
            for at in [at for at in self._cells if at[0] in stale]:
                self._spans -= self._cells.pop(at).size

    def of_workload(self, key: ResourceKey, direction: Direction) -> AskedGroup:
        """Who decides about a workload's packets, which must be known: to it (ingress) or from it (egress)."""
        return self._class_of[key], direction, None

    def tiers(self, group: AskedGroup) -> tuple[WantedTier, ...]:
        """Those that are asked, in order."""
        return self._ask(group).tiers

    def of_host(self, key: ResourceKey, reach: PolicyReach, direction: Direction) -> AskedGroup:
        """The same for a stage of a host endpoint, which must be known; failsafe ports are not considered."""
        return self._host_class_of[key], direction, reach

    def of_hosts(self, reach: PolicyReach, direction: Direction) -> set[AskedGroup]:
        """The same for a stage of every host endpoint; failsafe ports are not considered."""
        return {(name, direction, reach) for name in self._host_class_of.values()}

    def judge(self, group: AskedGroup, packet: Packet) -> JudgedPacket:
        """What happens to a packet."""
        first, second = packet.destination_port, packet.source_port
        if packet.protocol == ICMP[packet.source.version]:
            first, second = packet.icmp
        elif packet.protocol not in WITH_PORTS:
            first = second = 0
        return self.cell(group, packet.source.packed, packet.destination.packed, packet.protocol).find(first, second)

    def cell(self, group: AskedGroup, source: Packed, destination: Packed, protocol: int) -> Cell | AskedEachTime:
        """For packets between these addresses."""
        return self.cell_of(group, self.classes.of(source), self.classes.of(destination), protocol)

    def cell_of(
        self, group: AskedGroup, source: AddressClass, destination: AddressClass, protocol: int
    ) -> Cell | AskedEachTime:
        at = (group, source, destination, protocol)
        found = self._cells.get(at)
        if found is not None:
            self._cells.move_to_end(at)
            return found
        if len(self._shared) > _SHARED:
            self._shared.clear()
        question = CellQuestion(self._rules_of, self._ask(group), source, destination, protocol, self._shared)
        try:
            found = compile_cell(question, self._work)
        except TooManyPieces:
            found = AskedEachTime(question)
        self._cells[at] = found
        self._spans += found.size
        while len(self._cells) > self._most or (self._spans > self._most_spans and len(self._cells) > 1):
            self._spans -= self._cells.popitem(last=False)[1].size
        return found

    def _rules_of(self, policy: PolicyId, direction: Direction) -> FittingRules:
        at = policy, direction
        found = self._fitting.get(at)
        if found is None:
            there = self._policies[policy]
            found = self._fitting[at] = FittingRules((there.ingress if direction == "ingress" else there.egress) or ())
        return found

    def _ask(self, group: AskedGroup) -> AskedTiers:
        known = self._asked.get(group)
        if known is None:
            name, direction, reach = group
            if reach is None:
                of_workloads = self._groups[name]
                tiers = of_workloads.ingress if direction == "ingress" else of_workloads.egress
                known = AskedTiers(direction, tiers, of_workloads.profiles)
            else:
                of_hosts = self._host_groups[name]
                own = reach == "own"
                known = AskedTiers(
                    direction, of_hosts.tiers(reach, direction == "ingress"), of_hosts.profiles if own else (), own
                )
            self._asked[group] = known
            for policy in known.policies():
                self._asking.setdefault(policy, set()).add(group)
        return known

    def _forget(self, group: AskedGroup) -> None:
        for policy in self._asked.pop(group).policies():
            self._asking[policy].discard(group)
            if not self._asking[policy]:
                del self._asking[policy]


def _overlay(there: dict[OverlaidKey, OverlaidValue], changes: Mapping[OverlaidKey, OverlaidValue | None]) -> None:
    for key, value in changes.items():
        if value is None:
            there.pop(key, None)
        else:
            there[key] = value
