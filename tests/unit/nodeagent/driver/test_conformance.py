"""A driver that only knows what it has been told reaches the verdicts that the documents' own evaluator reaches.

One driver, a process of its own, goes through all random states, so that each of them is told as a change of the last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.alp.asked import encode_check, parse_check
from cni_calico.nodeagent.dataplane.encapsulation import desired_devices
from cni_calico.nodeagent.dataplane.routes import Fabric, desired_remote_routes
from cni_calico.nodeagent.driver.cluster import encode_facts
from cni_calico.nodeagent.driver.messages import encode_config
from cni_calico.nodeagent.driver.process import DriverProcess
from cni_calico.nodeagent.driver.stream import DriverStream, join_changes, name_of
from cni_calico.nodeagent.sync.accounts import ClusterAccounts
from cni_calico.nodeagent.view.snapshot import Snapshot
from cni_calico.policy.wanted import Wanted, WantedChanges
from tests.fakes.driven import NAME, AskedDriver, write_driver
from tests.unit.alp.table import CASES
from tests.unit.alp.test_requests import read_request, world
from tests.unit.alp.told import wanted_of
from tests.unit.nodeagent.fabric import BLOCKS, FELIX, INTERFACES, NODES, block, pool, snapshot, workload
from tests.unit.nodeagent.sync.test_subscription import changes_between
from tests.unit.policy.cluster import PACKETS, graph_of, put
from tests.unit.policy.drawn import DIRECTIONS, KEYS, STAGES, draw_documents
from tests.unit.policy.merging import with_changes
from tests.unit.policy.naive import Naive
from tests.unit.policy.test_random_states import States


class Driven:
    """What is told to a driver, and the driver."""

    def __init__(self, process: DriverProcess, driver: AskedDriver) -> None:
        self.process, self.driver = process, driver
        self.stream, self.sent = DriverStream(), 0
        self.told = Wanted()

    def send(self, message: bytes) -> None:
        self.process.send(message, lambda: False)
        self.sent += 1

    def tell(self, changes: WantedChanges) -> None:
        for message in self.stream.receive(changes):
            self.send(message)
        assert self.driver.ask(read=self.sent) == []

    def become(self, wanted: Wanted) -> None:
        self.tell(changes_between(self.told, wanted))
        self.told = wanted


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    directory = tmp_path_factory.mktemp("driver")
    answers, before = write_driver(directory), os.environ["PATH"]
    os.environ["PATH"] = f"{directory}:{before}"
    try:
        process = DriverProcess(NAME, lambda message: None, lambda: None)
    finally:
        os.environ["PATH"] = before
    driver = AskedDriver(answers)
    try:
        yield Driven(process, driver)
    finally:
        driver.close()
        process.stop()


def asked(raw: dict[str, Any]) -> dict[str, Any]:
    return {**raw, "source": str(raw["source"]), "destination": str(raw["destination"])}


def questions(wanted: Wanted, documents: dict[Any, Any], random: Random, some: int) -> tuple[list[Any], list[Any]]:
    """What to ask of each endpoint, and the answers by the documents."""
    asks, expected, naive = [], [], Naive(documents)
    for key, endpoint in wanted.endpoints.items():
        for direction in DIRECTIONS:
            for packet in random.sample(PACKETS, some):
                asks.append(["workload", " ".join(name_of(endpoint)), "own", direction, asked(packet)])
                expected.append(naive.verdict((key.kind, key.namespace, key.name), direction, packet))
    for key in wanted.hosts:
        for stage, direction in STAGES:
            for packet in random.sample(PACKETS, some):
                asks.append(["host", key.name, stage, direction, asked(packet)])
                expected.append(naive.host_verdict((key.kind, key.namespace, key.name), stage, direction, packet))
    return asks, expected


@pytest.fixture(scope="module")
def drawn() -> Any:
    return draw_documents(5)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_the_driver_judges_as_the_documents_do(driven: Driven, drawn: Any, seed: int) -> None:
    """From one state to the next; of each some changes are told together with those of the next."""
    states = States(seed, drawn)
    random = states.random
    documents = {key: states.draw(key) for key in KEYS if random.random() < 0.7}
    graph = graph_of(documents)
    waiting, told = graph.flush().changes, Wanted()
    waiting = changes_between(driven.told, with_changes(told, waiting))
    for _ in range(4):
        for key in random.sample(KEYS, 3):
            document = states.draw(key) if random.random() < 0.7 else None
            put(graph, key, document)
            documents.pop(key, None)
            if document is not None:
                documents[key] = document
        waiting = join_changes(waiting, graph.flush().changes)
        if random.random() < 0.3:
            continue
        driven.tell(waiting)
        waiting, driven.told = WantedChanges(), graph.wanted()
        asks, expected = questions(driven.told, documents, random, 4)
        found = driven.driver.ask(judge=asks)
        assert found == expected, next(one for one in zip(asks, found, expected, strict=True) if one[1] != one[2])


def test_there_is_something_to_judge(driven: Driven, drawn: Any) -> None:
    """Of both kinds of endpoints, with all answers."""
    answers: set[tuple[str, str, Any]] = set()
    for seed in range(60):
        states = States(seed, drawn)
        documents = {key: states.draw(key) for key in KEYS}
        wanted = wanted_of(documents)
        asks, expected = questions(wanted, documents, states.random, 6)
        answers |= {(ask[0], ask[2], answer) for ask, answer in zip(asks, expected, strict=True)}
    assert answers >= {("workload", "own", True), ("workload", "own", False), ("host", "forward", False)}
    assert answers >= {("host", "raw", None), ("host", "raw", True), ("host", "beforeNat", False)}
    assert answers >= {("host", "own", True), ("host", "own", False)}


def drawn_cluster(random: Random) -> Snapshot:
    """Nodes, pools of all kinds, blocks, and addresses that are lent."""
    modes = [{}, {"vxlan": "Always"}, {"vxlan": "CrossSubnet"}, {"ipip": "Always"}, {"ipip": "CrossSubnet"}]
    pools = (pool("10.65.0.0/16", **random.choice(modes)), pool("fd65::/64", **random.choice(modes[:3])))
    nodes = {name: node for name, node in NODES.items() if name == "n1" or random.random() < 0.8}
    blocks = [one for one in BLOCKS if random.random() < 0.8]
    if "n2" in nodes and random.random() < 0.3:
        nodes["n2"] = replace(nodes["n2"], ipv4_vxlan_tunnel=None)
    elif "n2" in nodes:
        blocks.append(block("10.65.7.0/26", random.choice(["n1", "n3"]), n2="10.65.7.5", n1="10.65.7.6"))
    web = workload("web", "calia", "10.65.1.2/32", "fd65::1:2/128")
    return snapshot(*pools[: random.randrange(1, 3)], nodes=nodes, blocks=blocks, endpoints=[web])


ADDRESSES = [f"10.65.{block}.{last}" for block in (1, 2, 3, 7) for last in (2, 5, 6)]
ADDRESSES += [f"fd65::{block}:{last}" for block in (1, 2, 3) for last in (2, 5)]
PROGRAMS = replace(FELIX, program_cluster_routes="Enabled")


def ways_of(cluster: Snapshot) -> dict[str, list[str]]:
    """To other nodes, by the routes that the agent's own data plane would make."""
    found: dict[str, list[str]] = {}
    for family in (4, 6):
        devices = frozenset(desired_devices(NODES["n1"], cluster.pools, INTERFACES, PROGRAMS, "none-of-them")[0])
        fabric = Fabric(family, cluster, INTERFACES, devices, PROGRAMS, "none-of-them")
        routes = sorted(desired_remote_routes(fabric, cluster.blocks), key=lambda route: route.dst.prefixlen)
        for route in routes:
            inside = [one for one in ADDRESSES if ip_address(one) in route.dst]
            found |= {one: [route.device, str(route.via)] for one in inside}
        for held in cluster.blocks:
            for address, holder in held.lent.items():
                if holder == cluster.node:
                    found.pop(str(address), None)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_ways_over_the_driver(driven: Driven, seed: int) -> None:
    """By the routes, tunnel ends and pools that it was told, one state after another; where nodes have no tunnel and no
    common network the agent makes no route, and a data plane of its own decides.
    """
    random, kinds = Random(seed), set[str]()
    for _ in range(20):
        cluster = drawn_cluster(random)
        for message in driven.stream.become(encode_facts(cluster)):
            driven.send(message)
        assert driven.driver.ask(read=driven.sent) == []
        expected = ways_of(cluster)
        for address, way in zip(ADDRESSES, driven.driver.ask(ways=ADDRESSES), strict=True):
            if address in expected or (way and way[0] != "eth0"):
                assert way == expected.get(address), (address, cluster.pools, cluster.blocks)
                kinds.add(way[0])
    assert kinds >= {"eth0", "vxlan.calico", "tunl0"}


@pytest.mark.parametrize("name", CASES)
def test_requests_over_the_driver(driven: Driven, name: str) -> None:
    """The two hundred that the checker is tested with."""
    documents, accounts = world(CASES[name]), ClusterAccounts()
    for (kind, _, profile), document in documents.items():
        if kind == "Profile":
            accounts.put(profile, document["spec"].get("labelsToApply") or {})
    wanted = wanted_of(documents)
    driven.become(wanted)
    for message in accounts.since(0):
        driven.send(message)
    assert driven.driver.ask(read=driven.sent) == []
    (endpoint,) = wanted.endpoints.values()
    _, _, allowed, refused = CASES[name]
    asks, expected, lines = [], [], []
    for text, verdict in ((allowed, True), (refused, False)):
        for line in filter(str.strip, text.splitlines()):
            request = parse_check(encode_check(read_request(line)))  # as it arrives
            packet = {
                "source": str(request.source.address),
                "destination": str(request.destination.address),
                "protocol": request.protocol,
                "sport": request.source.port,
                "dport": request.destination.port,
                "method": request.method,
                "path": request.path,
                "source principal": request.source.principal,
            }
            asks.append(["workload", " ".join(name_of(endpoint)), "own", "ingress", packet])
            expected.append(verdict)
            lines.append(line)
    found = driven.driver.ask(judge=asks)
    assert found == expected, [one for one in zip(lines, found, expected, strict=True) if one[1] != one[2]]


def test_parameters_are_the_drivers_first(driven: Driven) -> None:
    driven.send(encode_config({"InterfacePrefix": "cali"}))
    assert driven.driver.ask(read=driven.sent) == []
    assert driven.driver.ask(state=1)["config"] == {"InterfacePrefix": "cali"}
