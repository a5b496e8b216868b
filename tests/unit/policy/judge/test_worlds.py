"""Two random states of one small world: what is said to differ differs for ``decide``, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cni_calico.policy.explain import Packet, decide, decide_host
from cni_calico.policy.judge.outside import nets_named, outside_parts
from cni_calico.policy.judge.unused import unused_rules
from cni_calico.policy.judge.worlds import DIRECTIONS, STAGES, ComparedEnd, ComparedPair, WorldPair
from cni_calico.policy.ports import ICMP, WITH_PORTS
from cni_calico.policy.wanted import Direction, PolicyReach, Wanted, WantedEndpoint
from tests.unit.policy.judge.test_oracle import HOST, POD, V4, V6, packets, worlds

OWN = (V4[0].packed, V6[0].packed)


def with_addresses(wanted: Wanted) -> Wanted:
    return replace(wanted, endpoints={POD: WantedEndpoint(POD, "cali1", "c", OWN)})


def end_of(packed: bytes, before: Wanted, after: Wanted) -> ComparedEnd:
    """The pod, or the part of the world outside that has the address: the smallest network that is named."""
    if packed in OWN:
        return POD
    nets = nets_named(before) | nets_named(after)
    address = ip_address(packed)
    around = [net for net in nets if len(net[0]) == len(packed) and address in ip_network(net)]
    smallest = max(around, key=lambda net: net[1], default=None)
    (part,) = (
        part for part in outside_parts(nets, set(OWN)) if part.around == smallest and len(part.example) == len(packed)
    )
    return part


def told(pair: WorldPair, found: list[ComparedPair], packet: Packet, ends: list[ComparedEnd]) -> list[tuple[str, str]]:
    """The verdicts before and after that are said of the packet."""
    first, second = packet.destination_port, packet.source_port
    if packet.protocol == ICMP[packet.source.version]:
        first, second = packet.icmp
    elif packet.protocol not in WITH_PORTS:
        first = second = 0
    named = {number for one in found for number, others in pair.names(one.asked).all_protocols() if not others}
    said = []
    for one in found:
        is_asked = packet.protocol not in named if one.others else one.protocol == packet.protocol
        family = 4 if one.classes[0][0].family == 4 else 6
        if not is_asked or family != packet.source.version:
            continue
        if ends[0] in one.sources and ends[1] in one.destinations:
            assert one.differing is not None
            for part in one.differing:
                low, high = part.firsts
                if one.others or (low <= first <= high and any(a <= second <= b for a, b in part.seconds)):
                    said.append(tuple(_verdict(judged.decision) for judged in (part.before, part.after)))
    return said


def _verdict(decision) -> str:
    return "" if decision is None else decision.verdict


def compared(pair: WorldPair, direction: Direction, reach: PolicyReach | None) -> list[ComparedPair]:
    groups = [group for group in pair.groups if (group.direction, group.reach) == (direction, reach)]
    return [one for group in groups if pair.is_concerned(group) for one in pair.compare(group)]


def require_told(before: Wanted, after: Wanted, asked: list[Packet], reach: PolicyReach | None) -> None:
    pair = WorldPair(before, after)
    for direction in DIRECTIONS:
        found = compared(pair, direction, reach)
        for packet in asked:
            ends = [end_of(one.packed, before, after) for one in (packet.source, packet.destination)]
            own = 1 if direction == "ingress" else 0
            if reach is None:
                if ends[own] == POD:
                    was, now = (decide(one, POD, direction, packet).verdict for one in (before, after))
                    assert told(pair, found, packet, ends) == ([(was, now)] if was != now else [])
            else:
                was, now = (_verdict(decide_host(one, HOST, reach, direction, packet)) for one in (before, after))
                ends[own] = HOST
                assert was == now or (was, now) in told(pair, found, packet, ends)
    if reach is None:
        require_unused_is_unused(pair, after, asked)


def require_unused_is_unused(pair: WorldPair, after: Wanted, asked: list[Packet]) -> None:
    """Only where every group that asks the policy was compared."""
    whole = {
        policy
        for policy in pair.changed_policies
        if all(pair.is_concerned(group) for group in pair.groups if policy in pair.policies(group))
    }
    unused = {(one.policy, one.direction, one.rule): one.takers for one in unused_rules(pair, whole)}
    for packet in asked:
        for direction, own in (("ingress", packet.destination), ("egress", packet.source)):
            if own.packed in OWN:
                decision = decide(after, POD, direction, packet)
                assert (decision.policy, direction, decision.rule) not in unused


two_worlds = given(
    worlds().map(with_addresses),
    worlds().map(with_addresses),
    st.lists(packets(), min_size=5, max_size=12),
    st.sampled_from((None, None, *STAGES)),
)


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@two_worlds
def test_any_two_states(one: Wanted, other: Wanted, asked: list[Packet], reach: PolicyReach | None) -> None:
    require_told(one, other, asked, reach)


@pytest.mark.slow
@settings(max_examples=2000, suppress_health_check=list(HealthCheck))
@two_worlds
def test_many_pairs_of_states(one: Wanted, other: Wanted, asked: list[Packet], reach: PolicyReach | None) -> None:
    require_told(one, other, asked, reach)


def test_a_state_compared_with_itself_has_nothing_to_compare() -> None:
    wanted = Wanted()
    assert not WorldPair(wanted, wanted).groups
