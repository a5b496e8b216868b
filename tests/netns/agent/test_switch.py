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


@pytest.fixture
def two_nodes(tmp_path: Path, bundle: Path) -> Iterator[Cluster]:
    """In two subnets, with a pod each."""
    environ = {"IP6": "none", "CALICO_NETWORKING_BACKEND": "bird"}
    with make_lab(tmp_path) as lab:
        made = Cluster(lab, tmp_path, ipv6=False, environ=environ, bin_dir=bundle, tries=4)
        made.store.put(IPIP)
        for name, subnet, number in (("n1", "0", 1), ("n3", "1", 3)):
            made.start(name, subnet, number)
        lab.stack.callback(lambda: [node.ask_to_end() for node in made.nodes.values()])
        for node in made.nodes.values():
            node.until_ready()
            made.add_pod(node.name, "a")
        made.until_all_reach_all(240)
        yield made


def ways(node: Node) -> set[str]:
    """The devices of its routes to other nodes' pods."""
    return {route["dev"] for route in node.ns.routes(4) if route["dst"].startswith("10.65.") and "gateway" in route}


def uses(node: Node, device: str) -> bool:
    return ways(node) == {device}


def is_down(node: Node, device: str) -> bool:
    link = node.ns.link(device)
    return link is None or "UP" not in link["flags"]


def test_no_packet_is_lost_and_nothing_wrong_is_said(two_nodes: Cluster) -> None:
    """At 100 packets a second in both directions, until the old device is gone."""
    one, other = two_nodes.pods.values()
    nodes = list(two_nodes.nodes.values())
    said = {node.name: len(node.log()) for node in nodes}
    with without_a_lost_ping(one, other, interval_s=0.01), without_a_lost_ping(other, one, interval_s=0.01):
        for wanted, device, old in ((VXLAN, "vxlan.calico", "tunl0"), (IPIP, "tunl0", "vxlan.calico")):
            two_nodes.store.put(wanted)
            for node in nodes:
                until(partial(uses, node, device), f"{node.name} uses {device}", 60, pause_s=0.5)
                until(partial(is_down, node, old), f"{old} goes from {node.name}", 120, pause_s=2)
    for node in nodes:
        new = node.log()[said[node.name] :]
        assert not [line for line in new.splitlines() if any(word in line for word in WRONG)]
        assert not node.status()["unmet"]


def test_the_true_reason_is_named(two_nodes: Cluster) -> None:
    """Without an address for its new tunnel a node goes on as before, and says what it lacks; another pool helps."""
    one, other = two_nodes.pods.values()
    node = two_nodes.nodes["n1"]
    barred = pool(CIDR, vxlan="Always", nat_outgoing=True, allowed_uses=("Workload",))
    two_nodes.store.put(barred)
    [why] = until(lambda: node.status().get("unmet"), "it says why", 60)
    assert "needs vxlan.calico to reach node n3: this node has no tunnel address for it yet" in why
    assert "modprobe" not in why
    assert ways(node) == {"tunl0"} and one.can_ping(other) and other.can_ping(one)
    two_nodes.store.put(VXLAN)
    until(lambda: uses(node, "vxlan.calico") and not node.status()["unmet"], "it goes over", 60, pause_s=0.5)
    two_nodes.until_all_reach_all(60)
