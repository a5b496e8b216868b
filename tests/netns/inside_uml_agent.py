"""A cluster over IPIP: run by test_agent_ipip.py in a user-mode kernel, which has what this machine's may lack."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.bird_cluster import make_lab
from tests.netns.namespaces import until
from tests.netns.node_cluster import Cluster, start_cluster
from tests.unit.nodeagent.fabric import pool

pytestmark = pytest.mark.timeout(300)

# by BGP in both modes, and by the agent itself where there is no BIRD
WAYS = {"bird-always": ("Always", "bird"), "bird-cross": ("CrossSubnet", "bird"), "agent": ("Always", "vxlan")}


@pytest.fixture(params=WAYS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    subprocess.run(["busybox", "modprobe", "-a", "ipip", "veth", "bridge"], check=True)
    mode, backend = WAYS[request.param]
    with make_lab(tmp_path) as lab:
        pools = (pool("10.65.0.0/16", ipip=mode, nat_outgoing=True),)
        yield start_cluster(lab, tmp_path, pools, ipv6=False, IP6="none", CALICO_NETWORKING_BACKEND=backend)


def test_every_pod_reaches_every_other(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    cluster.until_all_reach_all(120)
    first = cluster.nodes["n1"].ns
    (tunnel,) = first.ip("addr", "show", "dev", "tunl0")
    assert tunnel["mtu"] == 1480 and "UP" in tunnel["flags"]
    devices = {route["dev"] for route in first.routes(4) if route["dst"].startswith("10.65.") and "gateway" in route}
    assert devices == ({"eth0", "tunl0"} if "cross" in request.node.name else {"tunl0"})
    pod, other = cluster.pods["n1-a"], cluster.pods["n3-a"]
    assert pod.can_ping(other, size=1480 - 28)
    first.do("link", "set", "tunl0", "down")  # with it go its routes
    until(lambda: pod.can_ping(other), "the tunnel is repaired", 60)
