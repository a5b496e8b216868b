"""PURE: what happens to one packet, and which tier, policy and rule decide it.

Rule: the decision is made from the same values that the kernel gets, rule by rule, as the kernel decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Address
from cni_calico.policy.ports import ICMP, WITH_PORTS
from cni_calico.policy.wanted import (
    Direction,
    Members,
    PolicyId,
    PolicyReach,
    Wanted,
    WantedRule,
    WantedSide,
    WantedTier,
)

Verdict = Literal["Allow", "Deny"]


@dataclass(frozen=True, slots=True)
class Packet:
    """A connection's first packet. Ports matter with TCP, UDP and SCTP, ``icmp`` (type, code) with ICMP and ICMPv6."""

    source: Address
    destination: Address
    protocol: int
    source_port: int = 0
    destination_port: int = 0
    icmp: tuple[int, int] = (8, 0)

    def answer(self) -> Packet:
        """What comes back, for protocols with ports."""
        return Packet(self.destination, self.source, self.protocol, self.destination_port, self.source_port)


@dataclass(frozen=True, slots=True)
class Decision:
    """``policy`` and ``rule`` (its index) decided, in ``tier``; a profile has no tier.

    ``rule`` None: no rule matched, and the end of ``tier`` decided, or, without a tier, the default at the very end.
    ``logged``: the policies and rules before the decision that write a log line.
    """

    verdict: Verdict
    direction: Direction
    tier: str = ""
    policy: PolicyId | None = None
    rule: int | None = None
    logged: tuple[tuple[PolicyId, int], ...] = ()


def decide(wanted: Wanted, key: ResourceKey, direction: Direction, packet: Packet) -> Decision:
    """What happens to a packet to (ingress) or from (egress) the endpoint ``key``, which must be in ``wanted``."""
    group = wanted.classes[wanted.endpoints[key].class_id]
    logged: list[tuple[PolicyId, int]] = []
    found = _decide_by_tiers(
        wanted, group.ingress if direction == "ingress" else group.egress, direction, packet, logged
    )
    return found or _decide_by_profiles(wanted, group.profiles, direction, packet, logged)


def decide_host(
    wanted: Wanted, key: ResourceKey, reach: PolicyReach, direction: Direction, packet: Packet
) -> Decision | None:
    """The same for a host endpoint and one of its stages. None: this stage decides nothing, the packet continues.

    Failsafe ports are not considered.
    """
    group = wanted.host_classes[wanted.hosts[key].class_id]
    logged: list[tuple[PolicyId, int]] = []
    tiers = group.tiers(reach, direction == "ingress")
    found = _decide_by_tiers(wanted, tiers, direction, packet, logged)
    if found is None and reach == "own":
        return _decide_by_profiles(wanted, group.profiles, direction, packet, logged)
    return found


def asked_host(wanted: Wanted, key: ResourceKey, everywhere: ResourceKey | None, reach: PolicyReach) -> ResourceKey:
    """The host endpoint whose policies decide in a stage at an interface that has ``key``: its own, but for preDNAT the
    one of all interfaces (``everywhere``), if no preDNAT policy applies to its own. Source: upstream's agent.
    """
    own = wanted.host_classes[wanted.hosts[key].class_id]
    if reach != "beforeNat" or everywhere is None or own.tiers(reach, True):
        return key
    return everywhere


def _decide_by_tiers(
    wanted: Wanted,
    tiers: tuple[WantedTier, ...],
    direction: Direction,
    packet: Packet,
    logged: list[tuple[PolicyId, int]],
) -> Decision | None:
    for tier in tiers:
        for policy in tier.policies:
            found = _first_match(wanted, policy, direction, packet, logged)
            if found is None:
                continue
            action, index = found
            if action == "Pass":
                break
            return Decision(action, direction, tier.name, policy, index, tuple(logged))
        else:
            if tier.end == "Deny":
                return Decision("Deny", direction, tier.name, logged=tuple(logged))
    return None


def _decide_by_profiles(
    wanted: Wanted,
    profiles: tuple[PolicyId, ...],
    direction: Direction,
    packet: Packet,
    logged: list[tuple[PolicyId, int]],
) -> Decision:
    for profile in profiles:
        found = _first_match(wanted, profile, direction, packet, logged)
        if found is not None and found[0] != "Pass":
            return Decision(found[0], direction, "", profile, found[1], tuple(logged))
    return Decision("Deny", direction, logged=tuple(logged))


def _first_match(
    wanted: Wanted, policy: PolicyId, direction: Direction, packet: Packet, logged: list[tuple[PolicyId, int]]
) -> tuple[Literal["Allow", "Deny", "Pass"], int] | None:
    """(action, index of the rule) of the first rule that matches and does more than log."""
    found = wanted.policies[policy]
    for index, rule in enumerate((found.ingress if direction == "ingress" else found.egress) or ()):
        if not matches(wanted, rule, packet):
            continue
        if rule.action == "Log":
            logged.append((policy, index))
        else:
            return rule.action, index
    return None


# -- rules ------------------------------------------------------------------------------------------------------------


def matches(wanted: Wanted, rule: WantedRule, packet: Packet) -> bool:
    family = packet.source.version
    if family not in rule.families:
        return False
    if rule.protocol not in (None, packet.protocol) or rule.not_protocol == packet.protocol:
        return False
    if rule.icmp is not None and not _is_icmp(rule.icmp, packet):
        return False
    if rule.not_icmp is not None and _is_icmp(rule.not_icmp, packet):
        return False
    return _side_matches(wanted, rule.source, packet.source, packet.source_port, packet) and _side_matches(
        wanted, rule.destination, packet.destination, packet.destination_port, packet
    )


def _is_icmp(wanted: tuple[int, int | None], packet: Packet) -> bool:
    kind, code = wanted
    return packet.protocol == ICMP[packet.source.version] and packet.icmp[0] == kind and code in (None, packet.icmp[1])


def _side_matches(wanted: Wanted, side: WantedSide, address: Address, port: int, packet: Packet) -> bool:
    nets = [net for net in side.nets if net.version == address.version]
    if nets and not any(address in net for net in nets):
        return False
    if any(address in net for net in side.not_nets):
        return False
    triple = (address.packed, packet.protocol, port)
    in_ports = [triple in wanted.sets[name].ports for name in side.port_sets]
    if (side.ports or side.port_sets) and not (_in_ranges(side.ports, port, packet) or any(in_ports)):
        return False
    if _in_ranges(side.not_ports, port, packet) or any(
        triple in wanted.sets[name].ports for name in side.not_port_sets
    ):
        return False
    return (
        all(holds(wanted.sets[name], address) for name in side.sets)
        and not any(holds(wanted.sets[name], address) for name in side.not_sets)
        and all(triple in wanted.sets[name].ports for name in side.service_sets)
    )


def _in_ranges(ranges: tuple[tuple[int, int], ...], port: int, packet: Packet) -> bool:
    return packet.protocol in WITH_PORTS and any(low <= port <= high for low, high in ranges)


def holds(members: Members, address: Address) -> bool:
    """Whether an address is a member of a set, or in one of its networks."""
    if address.packed in members.addresses:
        return True
    return any(net in members.nets for net in _networks_around(address))


def _networks_around(address: Address) -> Iterator[tuple[bytes, int]]:
    number, bits, size = int(address), address.max_prefixlen, len(address.packed)
    for length in range(bits):
        yield (number >> (bits - length) << (bits - length)).to_bytes(size, "big"), length
