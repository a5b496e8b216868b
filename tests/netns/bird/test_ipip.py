"""IPIP next hops."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.deadline import Deadline
from tests.deadlines import until
from tests.netns.bird.cluster import BirdNode, Lab, can_ping
from tests.unit.nodeagent.bgp.config.clusters import document, node

pytestmark = [pytest.mark.bird, pytest.mark.netns, pytest.mark.kernel("ipip")]

SUBNETS = {"n1": "172.31.0", "n2": "172.31.0", "n3": "172.31.1"}


def add_tunnel(bird: BirdNode) -> None:
    bird.ns.do("link", "set", "tunl0", "up", "mtu", "1480")


def add_nodes(lab: Lab) -> list[Any]:
    """n1 and n2 in one subnet, n3 in another; a router between, which knows no pod's address."""
    router = lab.namespace("router")
    router.set_sysctl("ipv4/ip_forward", "1")
    documents: list[Any] = []
    for i, (name, subnet) in enumerate(SUBNETS.items(), 1):
        lab.node(name, f"{subnet}.{i}/24", switch=subnet[-1], blocks=[f"10.65.{i}.0/26", f"10.66.{i}.0/26"])
        documents.append(node(name, f"{subnet}.{i}/24"))
    lab.plug(router, "eth0", "0", "172.31.0.254/24")
    lab.plug(router, "eth1", "1", "172.31.1.254/24")
    return [
        *documents,
        document("IPPool", "always", cidr="10.65.0.0/16", ipipMode="Always"),
        document("IPPool", "cross", cidr="10.66.0.0/16", ipipMode="CrossSubnet"),
    ]


def hops(bird: BirdNode) -> dict[str, tuple[str, str, bool]]:
    """Destination -> (gateway, device, onlink) of BIRD's routes that are no blackholes."""
    return {
        route["dst"]: (route["gateway"], route["dev"], "onlink" in route["flags"])
        for route in bird.ns.ip("route", "show", "proto", "bird")
        if "gateway" in route
    }


def test_pods_reach_one_another_through_tunnels(lab: Lab) -> None:
    documents = add_nodes(lab)
    for bird in lab.nodes.values():
        add_tunnel(bird)
    lab.apply_all(documents)
    wanted = {
        "10.65.2.0/26": ("172.31.0.2", "tunl0", True),
        "10.65.3.0/26": ("172.31.1.3", "tunl0", True),
        "10.66.2.0/26": ("172.31.0.2", "eth0", False),
        "10.66.3.0/26": ("172.31.1.3", "tunl0", True),
    }
    until(lambda: hops(lab.nodes["n1"]) == wanted, "the tunnels' routes", 60.0)
    assert {r.get("metric") for r in lab.nodes["n1"].ns.ip("route", "show", "proto", "bird")} == {1024}
    lab.await_routes({"n3": {f"10.{p}.{i}.0/26": f"172.31.0.{i}" for p in (65, 66) for i in (1, 2)}})
    pods = {}
    for i, name in enumerate(SUBNETS, 1):
        pods[name] = lab.nodes[name].add_pod(f"p{i}", f"10.65.{i}.2", f"10.66.{i}.2", make=lab.namespace)
    for source in SUBNETS:
        for i in (1, 2, 3):
            for pool in (65, 66):
                assert can_ping(pods[source], f"10.{pool}.{i}.2"), f"{source} -> 10.{pool}.{i}.2"
    # what is programmed for a tunnel is not announced again: every peer tells its own blocks, and nothing else
    assert {peer.imported for peer in lab.nodes["n1"].status().peers} == {2}


@pytest.mark.slow
def test_a_device_that_comes_late(lab: Lab) -> None:
    """BIRD gives up on routes whose device is missing; told again, it writes them."""
    documents = add_nodes(lab)
    first = lab.nodes["n1"]
    first.ns.do("link", "set", "tunl0", "down")
    lab.apply_all(documents)
    until(lambda: "10.66.2.0/26" in hops(first), "the route without a tunnel", 60.0)
    assert "10.65.2.0/26" not in hops(first)
    add_tunnel(first)
    first.controller.reload_kernel(Deadline.after(10.0))
    until(lambda: hops(first).get("10.65.2.0/26") == ("172.31.0.2", "tunl0", True), "the tunnel's route", 30.0)
