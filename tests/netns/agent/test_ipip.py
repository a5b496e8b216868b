"""A cluster over IPIP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from cni_calico.model.resources import IPPool
from tests.deadlines import until
from tests.netns.bird.cluster import make_lab
from tests.netns.node_cluster import Cluster, start_cluster
from tests.unit.nodeagent.fabric import pool

pytestmark = [
    *(pytest.mark.slow, pytest.mark.bird, pytest.mark.etcd, pytest.mark.bundle, pytest.mark.netns),
    pytest.mark.kernel("ipip"),
    pytest.mark.timeout(900),
]

# who makes the routes, and the pool's modes one after the other
WAYS = {"bird": ("Always", "CrossSubnet"), "vxlan": ("CrossSubnet", "Always")}
DEVICES = {"Always": {"tunl0"}, "CrossSubnet": {"eth0", "tunl0"}}


def ipip_pool(mode: str) -> IPPool:
    return pool("10.65.0.0/16", ipip=mode, nat_outgoing=True)


@contextmanager
def ipip_cluster(backend: str, directory: Path, bundle: Path) -> Iterator[Cluster]:
    environ = {"IP6": "none", "CALICO_NETWORKING_BACKEND": backend}
    with make_lab(directory) as lab:
        first = ipip_pool(WAYS[backend][0])
        yield start_cluster(lab, directory, (first,), ipv6=False, bin_dir=bundle, tries=4, **environ)


@pytest.mark.parametrize("backend", WAYS)
def test_every_pod_reaches_every_other(backend: str, tmp_path: Path, bundle: Path) -> None:
    """By BGP, and by the agent itself where there is no BIRD; in each mode, from the start and changed to. Three nodes
    are started for each of both, not for each mode: that is most of what they take.
    """
    with ipip_cluster(backend, tmp_path, bundle) as cluster:
        for mode in WAYS[backend]:
            cluster.store.put(ipip_pool(mode))
            until(partial(uses, cluster, DEVICES[mode]), f"n1 routes as {mode} says", 120, pause_s=0.5)
            _every_pod_reaches_every_other(cluster)
        if backend == "bird":
            _nodes_change(cluster)


def uses(cluster: Cluster, devices: set[str]) -> bool:
    """Whether those are what n1 reaches other nodes' pods by."""
    routes = cluster.nodes["n1"].ns.routes(4)
    return {route["dev"] for route in routes if route["dst"].startswith("10.65.") and "gateway" in route} == devices


def _every_pod_reaches_every_other(cluster: Cluster) -> None:
    cluster.until_all_reach_all(240)
    first = cluster.nodes["n1"].ns
    (tunnel,) = first.ip("addr", "show", "dev", "tunl0")
    assert tunnel["mtu"] == 1480 and "UP" in tunnel["flags"]
    pod, other = cluster.pods["n1-a"], cluster.pods["n3-a"]
    assert pod.can_ping(other, size=1480 - 28)
    first.do("link", "set", "tunl0", "down")  # with it go its routes
    until(lambda: pod.can_ping(other), "the tunnel is repaired", 120, pause_s=1)


def _nodes_change(cluster: Cluster) -> None:
    """One comes, one goes, one gets another name, one another address; the others' pods follow."""
    cluster.start("n4", "1", 4).until_ready()
    cluster.add_pod("n4", "a")
    cluster.until_all_reach_all(240)
    cluster.remove("n3")
    until(lambda: not routes_to(cluster, "10.0.1.3"), "nobody sends to the node that is gone", 120, pause_s=1)
    cluster.rename("n4", "n4b").until_ready()
    cluster.add_pod("n4b", "a")
    cluster.until_all_reach_all(240)
    cluster.move("n4b", "1", 4, 44)
    until(lambda: not routes_to(cluster, "10.0.1.4"), "the others hear of it", 120, pause_s=1)
    cluster.until_all_reach_all(240)


def routes_to(cluster: Cluster, address: str) -> list[object]:
    """Routes to pods that the other nodes send to this node's address, through the tunnel or not."""
    return [
        route
        for node in cluster.nodes.values()
        for route in node.ns.routes(4)
        if route.get("gateway") == address and route["dst"].startswith("10.65.")
    ]
