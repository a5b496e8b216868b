"""The judge against ``decide``: any records, any packet, whatever changed before, workloads and each stage of hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from ipaddress import ip_address
from random import Random
from typing import Any

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.explain import Decision, Packet, decide, decide_host, matches
from cni_calico.policy.graph import Graph
from cni_calico.policy.judge.cells import JudgedPacket, Passed
from cni_calico.policy.judge.trace import Judge
from cni_calico.policy.wanted import Direction, Wanted, WantedTier
from tests.unit.policy.cluster import ADDRESSES, NODE, put
from tests.unit.policy.drawn import DIRECTIONS, KEYS, STAGES, draw_documents
from tests.unit.policy.merging import with_changes

PORTS = (0, 22, 53, 79, 80, 81, 90, 91, 442, 443, 1000, 40000, 65535)
STRANGERS = ("203.0.113.9", "2001:db8::9", "10.0.0.77", "fd00::77")


def any_packet(random: Random) -> Packet:
    source = ip_address(random.choice((*ADDRESSES, *STRANGERS)))
    others = [a for a in map(ip_address, (*ADDRESSES, *STRANGERS)) if a.version == source.version]
    protocol = random.choice((6, 6, 17, 17, 132, 132, 1, 58, 47, 136))
    sport, dport = (random.choice(PORTS), random.choice(PORTS)) if protocol in (6, 17, 132) else (0, 0)
    return Packet(
        source, random.choice(others), protocol, sport, dport, (random.choice((0, 3, 8, 128)), random.choice((0, 1)))
    )


def with_more_protocols(document: dict[str, Any], random: Random) -> dict[str, Any]:
    """Some rules and named ports about TCP and UDP are about SCTP instead, or, without ports, about UDPLite."""
    changed = deepcopy(document)
    spec = changed["spec"]
    for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
        if rule.get("protocol") in ("TCP", "UDP") and random.random() < 0.4:
            sides = (rule.get(side) or {} for side in ("source", "destination"))
            has_ports = any(side.get("ports") or side.get("notPorts") for side in sides)
            rule["protocol"] = "SCTP" if has_ports or random.random() < 0.5 else "UDPLite"
        elif rule.get("protocol") in ("TCP", "UDP") and random.random() < 0.3:
            side = rule.setdefault(random.choice(("source", "destination")), {})
            side["notPorts"] = random.choice((["web"], ["dns", 80], [80]))
        elif "notProtocol" in rule and random.random() < 0.4:
            rule["notProtocol"] = random.choice(("SCTP", "UDPLite"))
    for port in spec.get("ports", ()):
        if isinstance(port, dict) and port["protocol"] == "TCP" and random.random() < 0.5:
            port["protocol"] = "SCTP"
    return changed


def passed_tiers(wanted: Wanted, tiers: Sequence[WantedTier], direction: Direction, packet: Packet) -> list[Passed]:
    """One rule after the other, as somebody reads them."""
    steps: list[Passed] = []
    for tier in tiers:
        step = Passed(tier.name) if tier.end == "Pass" else None
        for policy in tier.policies:
            rules = getattr(wanted.policies[policy], direction) or ()
            acting = [i for i, rule in enumerate(rules) if rule.action != "Log" and matches(wanted, rule, packet)]
            if acting:
                step = Passed(tier.name, policy, acting[0]) if rules[acting[0]].action == "Pass" else None
                break
        if step is None:
            return steps
        steps.append(step)
    return steps


class Judging:
    """A cluster that changes, the judge that is told of each change, and the same state for its oracle."""

    def __init__(self, first: int) -> None:
        self.random = Random(first)
        self.drawn = draw_documents(15)
        self.graph = Graph(lambda record: record.node == NODE, lambda host: host.node == NODE)
        self.told = Wanted()
        self.judge = Judge(self.told, cells=200)
        self.cramped = Judge(self.told, cells=50, spans=40, addresses=5, work=8)
        self.verdicts: dict[tuple[str, str], int] = {}

    def change(self, most: int = 6) -> None:
        for key in self.random.sample(KEYS, self.random.randint(1, most)):
            document = None
            if self.random.random() < 0.7:
                document = with_more_protocols(self.random.choice(self.drawn[key]), self.random)
            put(self.graph, key, document)
        changes = self.graph.flush().changes
        self.told = with_changes(self.told, changes)
        for judge in (self.judge, self.cramped):
            judge.change(changes)

    def compare(self, judge: Judge, packets: int) -> None:
        for _ in range(packets):
            packet = any_packet(self.random)
            for key in self.some(self.told.endpoints):
                group = self.told.classes[self.told.endpoints[key].class_id]
                for direction in DIRECTIONS:
                    tiers = group.ingress if direction == "ingress" else group.egress
                    found = judge.judge(judge.of_workload(key, direction), packet)
                    self.require(found, decide(self.told, key, direction, packet), tiers, direction, packet)
            for key in self.some(self.told.hosts):
                of_host = self.told.host_classes[self.told.hosts[key].class_id]
                for reach, direction in STAGES:
                    expected = decide_host(self.told, key, reach, direction, packet)
                    tiers = of_host.tiers(reach, direction == "ingress")
                    found = judge.judge((of_host.id, direction, reach), packet)
                    self.require(found, expected, tiers, direction, packet)

    def some(self, there: Mapping[ResourceKey, Any]) -> list[ResourceKey]:
        keys = sorted(there, key=str)
        return self.random.sample(keys, min(2, len(keys)))

    def require(
        self,
        found: JudgedPacket,
        expected: Decision | None,
        tiers: Sequence[WantedTier],
        direction: Direction,
        packet: Packet,
    ) -> None:
        plain = None if expected is None else replace(expected, logged=())
        assert found == JudgedPacket(plain, tuple(passed_tiers(self.told, tiers, direction, packet))), packet
        what = "none" if expected is None else expected.verdict
        self.verdicts[direction, what] = self.verdicts.get((direction, what), 0) + 1


def test_any_records_and_packets() -> None:
    judging = Judging(1)
    for number in range(400):
        judging.change(len(KEYS) if number % 40 == 0 else 6)
        judging.compare(judging.judge, 6)
        judging.compare(judging.cramped, 2)
        if number % 50 == 0:
            judging.compare(Judge(judging.told), 10)
    for direction in DIRECTIONS:
        assert min(judging.verdicts.get((direction, what), 0) for what in ("Allow", "Deny", "none")) > 50, (
            judging.verdicts
        )


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2, 6))
def test_any_records_and_packets_for_long(first: int) -> None:
    judging = Judging(first)
    for number in range(20_000):
        judging.change(len(KEYS) if number % 200 == 0 else 6)
        judging.compare(judging.judge, 4)
        judging.compare(judging.cramped, 2)
