"""PURE: what the rules of some policies ask for, and address classes without everything that they do not.

Rule: a narrowed class is as good as the whole one for these rules, and there are far fewer of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cni_calico.policy.judge.classes import AddressClass, packed_net
from cni_calico.policy.ports import ICMP, WITH_PORTS
from cni_calico.policy.wanted import Direction, PackedNet, WantedPolicy, WantedSide

_PROTOCOLS = 256


@dataclass(slots=True)
class AskedNames:
    """Of both sides of a connection: names of sets, and networks. ``protocols``: those that rules tell from others."""

    source_sets: set[str] = field(default_factory=set)
    source_nets: set[PackedNet] = field(default_factory=set)
    destination_sets: set[str] = field(default_factory=set)
    destination_nets: set[PackedNet] = field(default_factory=set)
    protocols: set[int] = field(default_factory=set)

    def add(self, other: AskedNames) -> None:
        self.source_sets |= other.source_sets
        self.source_nets |= other.source_nets
        self.destination_sets |= other.destination_sets
        self.destination_nets |= other.destination_nets
        self.protocols |= other.protocols

    @property
    def sets(self) -> set[str]:
        return self.source_sets | self.destination_sets

    def of_side(self, *, source: bool) -> tuple[set[str], set[PackedNet]]:
        if source:
            return self.source_sets, self.source_nets
        return self.destination_sets, self.destination_nets

    def all_protocols(self) -> list[tuple[int, bool]]:
        """Each protocol that is named, then one (True) for all that are not."""
        found = [(number, False) for number in sorted(self.protocols)]
        other = next((number for number in reversed(range(_PROTOCOLS)) if number not in self.protocols), None)
        return found if other is None else [*found, (other, True)]


def names_of(versions: Iterable[WantedPolicy | None], direction: Direction) -> AskedNames:
    """Of a policy's rules of one direction, in each of its versions."""
    found = AskedNames()
    for policy in versions:
        if policy is None:
            continue
        for rule in (policy.ingress if direction == "ingress" else policy.egress) or ():
            sides = rule.source, rule.destination
            _add_side(rule.source, found.source_sets, found.source_nets)
            _add_side(rule.destination, found.destination_sets, found.destination_nets)
            found.protocols.update(one for one in (rule.protocol, rule.not_protocol) if one is not None)
            if rule.icmp is not None or rule.not_icmp is not None:
                found.protocols.update(ICMP.values())
            if any(side.port_sets or side.not_port_sets or side.service_sets for side in sides):
                found.protocols.update(WITH_PORTS)  # the sets have the protocol
    return found


def _add_side(side: WantedSide, sets: set[str], nets: set[PackedNet]) -> None:
    sets.update(side.set_ids())
    nets.update(map(packed_net, (*side.nets, *side.not_nets)))


def narrowed(address: AddressClass, sets: set[str], nets: set[PackedNet]) -> AddressClass:
    """The class without the sets and networks that are not asked for."""
    return AddressClass(
        address.family,
        address.sets & sets,
        address.nets & nets,
        frozenset(port for port in address.ports if port[0] in sets) if address.ports else address.ports,
    )
