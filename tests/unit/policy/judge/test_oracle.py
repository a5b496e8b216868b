"""The judge against ``decide`` in small worlds, of few addresses and ports, in which rules ask for everything."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_network
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.explain import Decision, Packet, decide, decide_host
from cni_calico.policy.judge.cells import MOST_WORK
from cni_calico.policy.judge.trace import Judge
from cni_calico.policy.ports import PortRanges
from cni_calico.policy.wanted import (
    Direction,
    Members,
    PolicyId,
    PolicyReach,
    Wanted,
    WantedClass,
    WantedEndpoint,
    WantedHost,
    WantedHostClass,
    WantedPolicy,
    WantedRule,
    WantedSide,
    WantedTier,
)

V4, V6 = (tuple(map(ip_address, texts)) for texts in (("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")))
NETS = tuple(map(ip_network, ("10.0.0.0/31", "10.0.0.1/32", "0.0.0.0/0", "fd00::/127", "fd00::2/128")))
PORTS, KINDS, PROTOCOLS = (0, 1, 2, 65535), (0, 8), (6, 17, 132, 1, 58, 136)
RANGES = ((0, 0), (1, 2), (2, 65535), (0, 65535))
SETS, PORT_SETS = ("s-a", "s-b"), ("p-a", "p-b")
POD, HOST = ResourceKey("WorkloadEndpoint", "pod", "a"), ResourceKey("HostEndpoint", "host")
POLICIES = tuple(PolicyId("GlobalNetworkPolicy", name) for name in "pqr")
PROFILES = tuple(PolicyId("Profile", name) for name in "xy")
STAGES: tuple[PolicyReach, ...] = ("own", "forward", "beforeNat", "raw")


def few(random: Random, of: tuple[Any, ...]) -> tuple[Any, ...]:
    """Mostly none."""
    return tuple(random.choices(of, k=random.choice((0, 0, 0, 0, 1, 2))))


def any_side(random: Random) -> WantedSide:
    if random.random() < 0.5:
        return WantedSide()
    nets, ports, sets = (partial(few, random, of) for of in (NETS, PORT_SETS, SETS))
    ranges = [PortRanges(few(random, RANGES)) for _ in range(2)]
    return WantedSide(nets(), nets(), ranges[0], ports(), ranges[1], ports(), sets(), sets(), ports())


def any_rule(number: int) -> WantedRule:
    """That of a number: drawn one by one, the twenty parts of a rule would take longer than what is tested."""
    random = Random(number)
    return WantedRule(
        random.choice(("Allow", "Allow", "Deny", "Pass", "Log")),
        random.choice(((4, 6), (4, 6), (4,), (6,))),
        random.choice((None, random.choice(PROTOCOLS))),
        random.choice((None, None, random.choice(PROTOCOLS))),
        *(random.choice((None, None, (random.choice(KINDS), random.choice((None, 0, 1))))) for _ in range(2)),
        any_side(random),
        any_side(random),
    )


RULE_LISTS = st.lists(st.integers(0, 2**24).map(any_rule), max_size=4).map(tuple)
_some_nets = st.frozensets(st.sampled_from([(net.network_address.packed, net.prefixlen) for net in NETS[:1]]))
ADDRESS_SETS = st.builds(Members, st.frozensets(st.sampled_from([one.packed for one in V4 + V6])), _some_nets)
_ports = st.tuples(
    st.sampled_from([one.packed for one in V4 + V6]), st.sampled_from((6, 17, 132)), st.sampled_from(PORTS)
)
MEMBERS_OF_PORT_SETS = st.builds(Members, ports=st.frozensets(_ports, max_size=5))
TIERS = st.lists(
    st.builds(
        WantedTier,
        st.sampled_from(("one", "two")),
        st.lists(st.sampled_from(POLICIES), min_size=1, max_size=2, unique=True).map(tuple),
        st.sampled_from(("Deny", "Pass")),
    ),
    max_size=2,
).map(tuple)


@st.composite
def worlds(draw: st.DrawFn) -> Wanted:
    policies = {name: WantedPolicy(name, "t", draw(RULE_LISTS), draw(RULE_LISTS)) for name in POLICIES}
    profiles = {name: WantedPolicy(name, "", draw(RULE_LISTS), draw(RULE_LISTS)) for name in PROFILES}
    sets = {name: draw(ADDRESS_SETS) for name in SETS} | {name: draw(MEMBERS_OF_PORT_SETS) for name in PORT_SETS}
    group = WantedClass("c", draw(TIERS), draw(TIERS), PROFILES)
    of_host = WantedHostClass("h", *(draw(TIERS) for _ in range(7)), PROFILES)
    return Wanted(
        sets,
        policies | profiles,
        {"c": group},
        {POD: WantedEndpoint(POD, "cali1", "c", ())},
        {"h": of_host},
        {HOST: WantedHost(HOST, "eth0", "h")},
    )


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    source, destination = draw(st.sampled_from((V4, V6)).flatmap(lambda of: st.tuples(*[st.sampled_from(of)] * 2)))
    protocol = draw(st.sampled_from(PROTOCOLS))
    ports = (draw(st.sampled_from(PORTS)), draw(st.sampled_from(PORTS))) if protocol in (6, 17, 132) else (0, 0)
    return Packet(source, destination, protocol, *ports, (draw(st.sampled_from(KINDS)), draw(st.sampled_from((0, 1)))))


def plain(decision: Decision | None) -> Decision | None:
    return None if decision is None else replace(decision, logged=())


def require_same(wanted: Wanted, asked: list[Packet], work: int) -> None:
    judge = Judge(wanted, work=work)
    directions: tuple[Direction, ...] = ("ingress", "egress")
    for packet in asked:
        for direction in directions:
            assert judge.judge(judge.of_workload(POD, direction), packet).decision == plain(
                decide(wanted, POD, direction, packet)
            )
            for reach in STAGES:
                expected = decide_host(wanted, HOST, reach, direction, packet)
                assert judge.judge(*judge.of_hosts(reach, direction), packet).decision == plain(expected)


given_any = given(worlds(), st.lists(packets(), min_size=10, max_size=20), st.sampled_from((MOST_WORK, 6)))


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given_any
def test_any_wanted_state_and_packets(wanted: Wanted, asked: list[Packet], work: int) -> None:
    require_same(wanted, asked, work)


@pytest.mark.slow
@settings(max_examples=3000, suppress_health_check=list(HealthCheck))
@given_any
def test_many_wanted_states_and_packets(wanted: Wanted, asked: list[Packet], work: int) -> None:
    require_same(wanted, asked, work)
