"""Random states, one after the other, each changed a little from the last: in each the engine and the naive evaluator
agree about random packets, for workloads and for every stage of every interface of the host; and so do the rules that
the engine makes, also about what connection tracking calls invalid, and at workloads' interfaces without an endpoint.

Documents come from the machine test's strategies, drawn once; which of them are there is drawn by ``random``, which is
fast enough for a hundred thousand states.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.hosts.interfaces import select_interfaces
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.policy.explain import asked_host, decide, decide_host
from cni_calico.policy.graph import Graph
from cni_calico.policy.wanted import Wanted
from tests.fakes.packet_path import Travelling, passes
from tests.netns.host_path import HERE, HostPath, tracked
from tests.netns.test_host_verdicts import POD, SETTINGS, path_of
from tests.netns.test_verdicts import owners_of, strangers_among
from tests.unit.policy.cluster import INVALID, NODE, PACKETS, UPLINK, as_packet, graph_of, put
from tests.unit.policy.drawn import DIRECTIONS, KEYS, STAGES, Documents, draw_documents
from tests.unit.policy.merging import with_changes
from tests.unit.policy.naive import Naive

OWN = {packet["source"] for packet in PACKETS if str(packet["source"]) in ("192.0.2.1", "fd00::2")}
THERE = {UPLINK: frozenset(OWN), "cali1": frozenset(), "lo": frozenset()}
SECOND = "second"  # one more interface of the host, for what is forwarded from one to the other
MARK, NAT = 0x000F0000, -100  # of others: it must not count; the priority of translation
FRESH, SCRATCH = 200, 500  # each so-many-th state is drawn anew, is compared with one that is made from nothing


class States:
    """``step`` changes the state and compares; ``tried`` counts the verdicts, by what was asked and the answer."""

    def __init__(self, first: int, documents: dict[tuple[str, str, str], list[Any]]) -> None:
        self.random = Random(first)
        self.drawn = documents
        self.graph = Graph(lambda record: record.node == NODE, lambda host: host.node == NODE)
        self.documents: Documents = {}
        self.told = Wanted()
        self.goal = Goal(SETTINGS)
        self.goal.use_interfaces({UPLINK: frozenset(address.packed for address in OWN), SECOND: frozenset()})
        self.tried: dict[tuple[str, bool | None], int] = {}

    def change(self, number: int) -> None:
        chosen = KEYS if number % FRESH == 0 else self.random.sample(KEYS, self.random.randint(1, 6))
        for key in chosen:
            document = self.draw(key) if self.random.random() < 0.7 else None
            put(self.graph, key, document)
            self.documents.pop(key, None)
            if document is not None:
                self.documents[key] = document
        changes = self.graph.flush().changes
        self.told = with_changes(self.told, changes)
        self.goal.update(changes)
        self.goal.tables.take_touched()

    def draw(self, key: tuple[str, str, str]) -> Any:
        """Of a policy that may select hosts, each kind as often as the others, with the rules of two."""
        document = self.random.choice(self.drawn[key])
        if key[0] != "GlobalNetworkPolicy":
            return document
        spec, other = dict(document["spec"]), self.random.choice(self.drawn[key])["spec"]
        for direction in ("ingress", "egress"):
            spec[direction] = [*spec.get(direction, ()), *other.get(direction, ())]
        for field in ("applyOnForward", "preDNAT", "doNotTrack"):
            spec.pop(field, None)
        if self.random.random() < 0.5:
            for field in ("selector", "namespaceSelector", "serviceAccountSelector"):
                spec.pop(field, None)
        kind = self.random.choice(("", "applyOnForward", "preDNAT", "doNotTrack"))
        if kind:
            spec |= {"applyOnForward": True, kind: True}
        if kind == "preDNAT":
            spec |= {"types": ["Ingress"], "egress": []}
        return {**document, "spec": spec}

    def count(self, what: str, verdict: bool | None) -> None:
        self.tried[what, verdict] = self.tried.get((what, verdict), 0) + 1

    def compare(self, number: int) -> None:
        if number % SCRATCH == 0:
            scratch = graph_of(dict(sorted(self.documents.items(), key=repr)))
            scratch.flush()
            assert self.told == self.graph.wanted() == scratch.wanted()
        naive = Naive(self.documents)
        for key in self.random.sample(sorted(self.told.endpoints, key=str), min(2, len(self.told.endpoints))):
            for direction in DIRECTIONS:
                packet = self.random.choice(PACKETS)
                found = decide(self.told, key, direction, as_packet(packet))
                expected = naive.verdict((key.kind, key.namespace, key.name), direction, packet)
                assert (found.verdict == "Allow") is expected, (number, key, direction, packet, found, self.documents)
                self.count("workload", expected)
        self.compare_hosts(number, naive)
        self.compare_rules(number)

    def compare_hosts(self, number: int, naive: Naive) -> None:
        """At an interface with addresses, at one of a workload, and at one that only ``*`` can have."""
        there = {name: frozenset(address.packed for address in owned) for name, owned in THERE.items()}
        interfaces = select_interfaces(self.told.hosts.values(), there, ())
        path = HostPath(naive, NODE, THERE, {}, {}, frozenset(), frozenset())
        name = self.random.choice(sorted(THERE))
        for stage, direction in STAGES:
            packet = self.random.choice(PACKETS)
            own = (
                interfaces.by_name.get(name) if stage == "raw" else interfaces.by_name.get(name, interfaces.everywhere)
            )
            verdict = None
            if own is not None:
                asked = asked_host(self.told, own, interfaces.everywhere, stage)
                found = decide_host(self.told, asked, stage, direction, as_packet(packet))
                verdict = None if found is None else found.verdict == "Allow"
            expected = path.decided(name, stage, direction, packet)
            assert verdict is expected, (number, name, stage, direction, packet, self.documents)
            self.count(stage if own is None or own == interfaces.by_name.get(name) else f"{stage} of *", expected)

    def compare_rules(self, number: int) -> None:
        """Whole ways of packets through the host, by the rules."""
        assert self.goal.problems == {}
        endpoints = sorted(self.told.endpoints.values(), key=lambda endpoint: str(endpoint.key))
        owners = {address: owner for address, owner in owners_of(endpoints).items() if address not in OWN}
        strangers = strangers_among(endpoints, {*owners, *OWN, *POD.values()})
        path = path_of(self.documents, owners, strangers)
        outside = sorted((one for one, name in path.routes.items() if name == UPLINK and one not in OWN), key=str)
        path.routes = {**path.routes, **dict.fromkeys(outside[::2], SECOND)}
        path.own = {**path.own, SECOND: frozenset()}
        around = [one for one in PACKETS + INVALID if one["source"] in strangers or one["destination"] in strangers]
        chosen = [*self.random.sample(PACKETS, 3), self.random.choice(INVALID)]
        chosen += [self.random.choice(around)] if around else []
        for packet in chosen:
            source, destination = path.routes[packet["source"]], packet["destination"]
            if packet["source"] in OWN:
                if destination in OWN:
                    continue
                what, (_, expected), found = "from the host", path.passes_out(packet), self.goes_out(path, packet)
            else:
                outgoing, expected = path.passes_in(packet)
                if source == outgoing:
                    continue
                found = self.goes_in(path, packet)
                what = "to the host" if outgoing == HERE else "through"
            assert found is expected, (number, what, packet, expected, self.documents)
            self.count(what, expected)
            for about, holds in (
                ("invalid", packet.get("invalid")),
                ("unknown interface", packet["source"] in strangers or destination in strangers),
            ):
                if holds:
                    self.count(f"{about} {what}", expected)

    def goes_in(self, path: HostPath, packet: dict[str, Any]) -> bool:
        incoming = path.routes[packet["source"]]
        one = Travelling(packet, incoming, came_from=incoming, mark=MARK)
        table = self.goal.tables.of[FILTER[packet["source"].version]]
        if not passes(table, "prerouting", one):
            return False
        self.translate(one, path.incoming)
        if one.packet["destination"] in OWN:
            return passes(table, "input", one)
        one.outgoing = path.routes[one.packet["destination"]]
        return passes(table, "forward", one) and passes(table, "postrouting", one)

    def goes_out(self, path: HostPath, packet: dict[str, Any]) -> bool:
        """The chains of a hook before translation, then those behind it."""
        table = self.goal.tables.of[FILTER[packet["source"].version]]
        one = Travelling(packet, outgoing=path.routes[packet["destination"]], mark=MARK)
        if not passes(table, "output", one, before=NAT):
            return False
        self.translate(one, path.outgoing)
        if not passes(table, "output", one, after=NAT):
            return False
        one.outgoing = path.routes[one.packet["destination"]]
        return passes(table, "postrouting", one)

    def translate(self, one: Travelling, by: Any) -> None:
        packet = tracked(dict(one.packet), by, untracked=not one.tracked)
        if (packet["destination"], packet["dport"]) != (one.packet["destination"], one.packet["dport"]):
            one.change(packet)


def run(states: int, first: int, documents: dict[tuple[str, str, str], list[Any]]) -> States:
    made = States(first, documents)
    for number in range(states):
        made.change(number)
        made.compare(number)
    return made


def require_both(tried: dict[tuple[str, bool | None], int], *rarely: str) -> None:
    """Nothing is compared that always has the same answer."""
    ways = ("through", "to the host", "from the host", "invalid through", "invalid from the host")
    for what in ("workload", "own of *", "forward of *", "beforeNat of *", *ways, *rarely):
        assert {verdict for asked, verdict in tried if asked == what} >= {True, False}, (what, tried)
    assert True in {verdict for asked, verdict in tried if asked == "unknown interface from the host"}, tried
    for what in ("invalid to the host", "unknown interface through", "unknown interface to the host"):
        assert False in {verdict for asked, verdict in tried if asked == what}, (what, tried)


def test_fifteen_hundred_states() -> None:
    require_both(run(1500, 1, draw_documents(15)).tried)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_states() -> None:
    documents = draw_documents(100)
    for number in range(2, 12):
        require_both(run(10_000, number, documents).tried, "own", "forward", "beforeNat", "raw")
