"""A pool changes from IPIP to VXLAN and back while pods talk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.bird.cluster import make_lab
from tests.netns.node_cluster import Cluster
from tests.netns.nodes import Node, without_a_lost_ping
from tests.unit.nodeagent.fabric import pool

pytestmark = [
    *(pytest.mark.slow, pytest.mark.bird, pytest.mark.etcd, pytest.mark.bundle, pytest.mark.netns),
    pytest.mark.kernel("ipip", "vxlan"),
    pytest.mark.timeout(900),
]
CIDR = "10.65.0.0/16"
IPIP, VXLAN = pool(CIDR, ipip="Always", nat_outgoing=True), pool(CIDR, vxlan="Always", nat_outgoing=True)
WRONG = ("not ready", "modprobe", "Invalid gw", "NOBODY ENFORCES", "[ERROR]", "cannot ")


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory, bundle: Path) -> Iterator[Cluster]:
    """In two subnets, with a pod each; started once, and each test begins with the pool as IPIP."""
    environ = {"IP6": "none", "CALICO_NETWORKING_BACKEND": "bird"}
    directory = tmp_path_factory.mktemp("two-nodes")
    with make_lab(directory) as lab:
        made = Cluster(lab, directory, ipv6=False, environ=environ, bin_dir=bundle, tries=4)
        made.store.put(IPIP)
        for name, subnet, number in (("n1", "0", 1), ("n3", "1", 3)):
            made.start(name, subnet, number)
        lab.stack.callback(lambda: [node.ask_to_end() for node in made.nodes.values()])
        for node in made.nodes.values():
            node.until_ready()
            made.add_pod(node.name, "a")
        made.until_all_reach_all(240)
        yield made


@pytest.fixture
def nodes_of_ipip(two_nodes: Cluster) -> Cluster:
    two_nodes.store.put(IPIP)
    for node in two_nodes.nodes.values():
        until(partial(uses, node, "tunl0"), f"{node.name} uses tunl0", 60, pause_s=0.5)
        until(partial(is_down, node, "vxlan.calico"), f"vxlan.calico goes from {node.name}", 120, pause_s=2)
    return two_nodes


def ways(node: Node) -> set[str]:
    """The devices of its routes to other nodes' pods."""
    return {route["dev"] for route in node.ns.routes(4) if route["dst"].startswith("10.65.") and "gateway" in route}


def uses(node: Node, device: str) -> bool:
    return ways(node) == {device}


def is_down(node: Node, device: str) -> bool:
    link = node.ns.link(device)
    return link is None or "UP" not in link["flags"]


def test_the_true_reason_is_named(nodes_of_ipip: Cluster) -> None:
    """Without an address for its new tunnel a node goes on as before, and says what it lacks; another pool helps."""
    one, other = nodes_of_ipip.pods.values()
    node = nodes_of_ipip.nodes["n1"]
    barred = pool(CIDR, vxlan="Always", nat_outgoing=True, allowed_uses=("Workload",))
    nodes_of_ipip.store.put(barred)
    [why] = until(lambda: node.status().get("unmet"), "it says why", 60)
    assert "needs vxlan.calico to reach node n3: this node has no tunnel address for it yet" in why
    assert "modprobe" not in why
    assert ways(node) == {"tunl0"} and one.can_ping(other) and other.can_ping(one)
    nodes_of_ipip.store.put(VXLAN)
    until(lambda: uses(node, "vxlan.calico") and not node.status()["unmet"], "it goes over", 60, pause_s=0.5)
    nodes_of_ipip.until_all_reach_all(60)


def test_no_packet_is_lost_and_nothing_wrong_is_said(nodes_of_ipip: Cluster) -> None:
    """At 100 packets a second in both directions, until the old device is gone."""
    one, other = nodes_of_ipip.pods.values()
    nodes = list(nodes_of_ipip.nodes.values())
    said = {node.name: len(node.log()) for node in nodes}
    with without_a_lost_ping(one, other, interval_s=0.01), without_a_lost_ping(other, one, interval_s=0.01):
        for wanted, device, old in ((VXLAN, "vxlan.calico", "tunl0"), (IPIP, "tunl0", "vxlan.calico")):
            nodes_of_ipip.store.put(wanted)
            for node in nodes:
                until(partial(uses, node, device), f"{node.name} uses {device}", 60, pause_s=0.5)
                until(partial(is_down, node, old), f"{old} goes from {node.name}", 120, pause_s=2)
    for node in nodes:
        new = node.log()[said[node.name] :]
        assert not [line for line in new.splitlines() if any(word in line for word in WRONG)]
        assert not node.status()["unmet"]
