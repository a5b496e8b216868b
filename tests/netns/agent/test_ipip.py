"""A cluster over IPIP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.bird.cluster import make_lab
from tests.netns.node_cluster import Cluster, start_cluster
from tests.unit.nodeagent.fabric import pool

pytestmark = [
    *(pytest.mark.slow, pytest.mark.bird, pytest.mark.etcd, pytest.mark.bundle, pytest.mark.netns),
    pytest.mark.kernel("ipip"),
    pytest.mark.timeout(900),
]

# by BGP in both modes, and by the agent itself where there is no BIRD
WAYS = {
    "bird-always": ("Always", "bird"),
    "bird-cross": ("CrossSubnet", "bird"),
    "agent-always": ("Always", "vxlan"),
    "agent-cross": ("CrossSubnet", "vxlan"),
}


@pytest.fixture
def ipip_cluster(request: pytest.FixtureRequest, tmp_path: Path, bundle: Path) -> Iterator[Cluster]:
    mode, backend = WAYS[request.param]
    pools = (pool("10.65.0.0/16", ipip=mode, nat_outgoing=True),)
    environ = {"IP6": "none", "CALICO_NETWORKING_BACKEND": backend}
    with make_lab(tmp_path) as lab:
        yield start_cluster(lab, tmp_path, pools, ipv6=False, bin_dir=bundle, tries=4, **environ)


@pytest.mark.parametrize("ipip_cluster", WAYS, indirect=True)
def test_every_pod_reaches_every_other(ipip_cluster: Cluster, request: pytest.FixtureRequest) -> None:
    ipip_cluster.until_all_reach_all(240)
    first = ipip_cluster.nodes["n1"].ns
    (tunnel,) = first.ip("addr", "show", "dev", "tunl0")
    assert tunnel["mtu"] == 1480 and "UP" in tunnel["flags"]
    devices = {route["dev"] for route in first.routes(4) if route["dst"].startswith("10.65.") and "gateway" in route}
    assert devices == ({"eth0", "tunl0"} if "cross" in request.node.name else {"tunl0"})
    pod, other = ipip_cluster.pods["n1-a"], ipip_cluster.pods["n3-a"]
    assert pod.can_ping(other, size=1480 - 28)
    first.do("link", "set", "tunl0", "down")  # with it go its routes
    until(lambda: pod.can_ping(other), "the tunnel is repaired", 120, pause_s=1)


@pytest.mark.parametrize("ipip_cluster", ["bird-cross"], indirect=True)
def test_nodes_change(ipip_cluster: Cluster) -> None:
    """One comes, one goes, one gets another name, one another address; the others' pods follow."""
    ipip_cluster.start("n4", "1", 4).until_ready()
    ipip_cluster.add_pod("n4", "a")
    ipip_cluster.until_all_reach_all(240)
    ipip_cluster.remove("n3")
    until(lambda: not routes_to(ipip_cluster, "10.0.1.3"), "nobody sends to the node that is gone", 120, pause_s=1)
    ipip_cluster.rename("n4", "n4b").until_ready()
    ipip_cluster.add_pod("n4b", "a")
    ipip_cluster.until_all_reach_all(240)
    ipip_cluster.move("n4b", "1", 4, 44)
    until(lambda: not routes_to(ipip_cluster, "10.0.1.4"), "the others hear of it", 120, pause_s=1)
    ipip_cluster.until_all_reach_all(240)


def routes_to(cluster: Cluster, address: str) -> list[object]:
    """Routes to pods that the other nodes send to this node's address, through the tunnel or not."""
    return [
        route
        for node in cluster.nodes.values()
        for route in node.ns.routes(4)
        if route.get("gateway") == address and route["dst"].startswith("10.65.")
    ]
