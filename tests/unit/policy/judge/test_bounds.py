"""What a judge costs where policies are made to be costly."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from random import Random
from typing import Any

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.explain import Packet, decide
from cni_calico.policy.judge.cells import AskedEachTime, Cell
from cni_calico.policy.judge.trace import Judge
from cni_calico.policy.ports import PortRanges
from cni_calico.policy.wanted import (
    Direction,
    Members,
    PolicyId,
    SetChange,
    Wanted,
    WantedChanges,
    WantedClass,
    WantedEndpoint,
    WantedPolicy,
    WantedRule,
    WantedSide,
    WantedTier,
)

POD, POLICY = ResourceKey("WorkloadEndpoint", "pod", "a"), PolicyId("GlobalNetworkPolicy", "p")
HERE, THERE = ip_address("10.0.0.1"), ip_address("10.9.0.1")
INGRESS: Direction = "ingress"


def wanted_with(*rules: WantedRule, **sets: Members) -> Wanted:
    policy = WantedPolicy(POLICY, "default", ingress=rules, egress=None)
    tiers = (WantedTier("default", (POLICY,), "Deny"),)
    group = WantedClass("c", tiers, (), ())
    endpoint = WantedEndpoint(POD, "cali1", "c", (HERE.packed,))
    return Wanted(sets=sets, policies={POLICY: policy}, classes={"c": group}, endpoints={POD: endpoint})


def same(judge: Judge, wanted: Wanted, packet: Packet) -> str:
    expected = decide(wanted, POD, INGRESS, packet)
    assert judge.judge(judge.of_workload(POD, INGRESS), packet).decision == replace(expected, logged=())
    return expected.verdict


def tcp(sport: int, dport: int, source: Any = THERE) -> Packet:
    return Packet(source, HERE, 6, sport, dport)


def ports(*ranges: tuple[int, int]) -> WantedSide:
    return WantedSide(ports=PortRanges(ranges))


def cell_of(judge: Judge) -> Cell | AskedEachTime:
    return judge.cell(("c", INGRESS, None), THERE.packed, HERE.packed, 6)


def test_rules_that_cut_both_ports_are_asked_for_each_packet() -> None:
    """Source ports that are all different, each with its own ports of the destination: pieces of pieces of pieces."""
    rules = [
        WantedRule("Allow", protocol=6, source=ports((i, i)), destination=ports((1, 9000 + i))) for i in range(3000)
    ]
    wanted = wanted_with(*rules)
    judge = Judge(wanted)
    assert isinstance(cell_of(judge), AskedEachTime)
    random = Random(1)
    verdicts = [same(judge, wanted, tcp(random.randint(0, 4000), random.randint(9000, 12000))) for _ in range(30)]
    assert set(verdicts) == {"Allow", "Deny"}


def test_thousands_of_rules_of_one_port_are_one_cell() -> None:
    rules = [WantedRule("Allow", protocol=6, destination=ports((2 * i, 2 * i))) for i in range(5000)]
    wanted = wanted_with(*rules)
    judge = Judge(wanted)
    found = cell_of(judge)
    assert isinstance(found, Cell) and found.size == 10_000 and not found.asks_seconds
    assert [same(judge, wanted, tcp(1, port)) for port in (0, 1, 9997, 9998, 10_000)] == [
        "Allow", "Deny", "Deny", "Allow", "Deny",
    ]  # fmt: skip


def test_cells_and_their_spans_are_bounded() -> None:
    """Each source is of a class of its own; what was not asked for longest goes."""
    sources = [ip_address(int(THERE) + i) for i in range(120)]
    sets = {f"s-{i}": Members(frozenset((source.packed,))) for i, source in enumerate(sources)}
    rules = [
        WantedRule("Allow", protocol=6, source=WantedSide(sets=(f"s-{i}",)), destination=ports((80, 80), (90, 90)))
        for i in range(120)
    ]
    wanted = wanted_with(*rules, **sets)
    few, thin = Judge(wanted, cells=100), Judge(wanted, spans=50)
    for judge in (few, thin):
        for source in (*sources, *sources[:3]):
            assert (
                same(judge, wanted, tcp(1, 80, source)) == "Allow" and same(judge, wanted, tcp(1, 81, source)) == "Deny"
            )
    assert len(few) == 100 and len(thin) == 10
    for judge in (few, thin):
        judge.change(WantedChanges(policies={POLICY: WantedPolicy(POLICY, "default", ingress=(), egress=None)}))
        assert not len(judge) and judge.judge(judge.of_workload(POD, INGRESS), tcp(1, 80)).decision == replace(
            decide(wanted, POD, INGRESS, tcp(1, 81)), logged=()
        )


def test_addresses_come_and_go_in_sets_networks_and_rules() -> None:
    """A class is of now: also if only a network around the address, or a set as a whole, changes."""
    rule = WantedRule("Allow", protocol=6, source=WantedSide(sets=("s-a",), not_nets=(ip_network("10.9.0.0/31"),)))
    wanted = wanted_with(rule, **{"s-a": Members(nets=frozenset({(ip_address("10.9.0.0").packed, 24)}))})
    judge = Judge(wanted)
    inside = ip_address("10.9.0.2")
    assert same(judge, wanted, tcp(1, 1)) == "Deny" and same(judge, wanted, tcp(1, 1, inside)) == "Allow"
    empty = Members()
    judge.change(WantedChanges(sets_changed={"s-a": SetChange(empty, wanted.sets["s-a"])}))
    assert same(judge, wanted_with(rule, **{"s-a": empty}), tcp(1, 1, inside)) == "Deny"
    one = Members(frozenset((inside.packed,)))
    judge.change(WantedChanges(sets_changed={"s-a": SetChange(one, empty)}))
    assert same(judge, wanted_with(rule, **{"s-a": one}), tcp(1, 1, inside)) == "Allow"
    other = WantedRule("Allow", protocol=6, source=WantedSide(sets=("s-b",)))
    both = wanted_with(other, **{"s-b": Members(frozenset((THERE.packed,)))})
    judge.change(WantedChanges(sets_made=both.sets, sets_removed=frozenset({"s-a"}), policies=both.policies))
    assert same(judge, both, tcp(1, 1)) == "Allow" and same(judge, both, tcp(1, 1, inside)) == "Deny"
    around = Members(nets=frozenset({(ip_address("10.9.0.0").packed, 24)}))
    judge.change(WantedChanges(sets_changed={"s-b": SetChange(around, both.sets["s-b"])}))
    assert same(judge, wanted_with(other, **{"s-b": around}), tcp(1, 1, inside)) == "Allow"
    judge.change(WantedChanges(sets_removed=frozenset({"s-b"})))
    judge.change(WantedChanges(sets_made=both.sets))
    assert same(judge, both, tcp(1, 1, inside)) == "Deny" and same(judge, both, tcp(1, 1)) == "Allow"
