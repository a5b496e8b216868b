"""Three nodes, each with its own ``calico-node run``, one etcd; pods made by the CNI plugin reach one another.

All executables are the frozen ones.

n1 and n2 are in one subnet, n3 in another behind a router that knows no pod's address.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink, general
from cni_calico.model.resources import Metadata, Resource
from tests.deadlines import until
from tests.netns.bird.cluster import Lab, make_lab
from tests.netns.namespaces import Namespace
from tests.netns.node_cluster import Cluster, start_cluster
from tests.netns.nodes import Node, without_a_lost_ping
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.etcd, pytest.mark.bundle]


def vxlan_cluster(lab: Lab, directory: Path, bundle: Path, v4: str, v6: str) -> Cluster:
    pools = (pool("10.65.0.0/16", v4, nat_outgoing=True), pool("fd65::/64", v6, nat_outgoing=True))
    return start_cluster(lab, directory, pools, bin_dir=bundle)


@pytest.fixture(
    scope="module", params=[("Always", "Always"), ("CrossSubnet", "CrossSubnet")], ids=["always", "cross-subnet"]
)
def agent_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, bundle: Path
) -> Iterator[Cluster]:
    """For tests that change nothing of what is there."""
    directory = tmp_path_factory.mktemp("lab")
    with make_lab(directory) as lab:
        yield vxlan_cluster(lab, directory, bundle, *request.param)


ONLY_TUNNELS = pytest.mark.parametrize("agent_cluster", [("Always", "Always")], ids=["always"], indirect=True)


@pytest.fixture
def always(tmp_path: Path, bundle: Path) -> Iterator[Cluster]:
    with make_lab(tmp_path) as lab:
        yield vxlan_cluster(lab, tmp_path, bundle, "Always", "Always")


def reaches(ns: Namespace, address: str) -> bool:
    return ns.run("ping", "-c1", "-W1", address, check=False).returncode == 0


def test_every_pod_reaches_every_other(agent_cluster: Cluster, request: pytest.FixtureRequest) -> None:
    agent_cluster.add_pod("n1", "b")
    agent_cluster.until_all_reach_all()
    pods = agent_cluster.pods
    assert all(len(pod.addresses) == 2 for pod in pods.values())
    # what fits through the tunnel without fragments: 1430 less the IPv6 and ICMP headers
    (link,) = pods["n1-a"].ns.ip("link", "show", "dev", "eth0")
    assert link["mtu"] == 1430
    assert pods["n1-a"].can_ping(pods["n3-a"], size=1430 - 48)
    cross = "cross" in request.node.name
    for version, pools in ((4, "10.65."), (6, "fd65:")):
        routes = [
            r for r in agent_cluster.nodes["n1"].ns.routes(version) if r["dst"].startswith(pools) and r.get("gateway")
        ]
        tunnel = "vxlan.calico" if version == 4 else "vxlan-v6.calico"
        assert {route["dev"] for route in routes} == ({tunnel, "eth0"} if cross else {tunnel})


@ONLY_TUNNELS
def test_pods_reach_the_world_masqueraded_and_one_another_not(agent_cluster: Cluster) -> None:
    outside = agent_cluster.lab.namespace("world")
    agent_cluster.lab.plug(outside, "eth0", "0", "10.0.0.200/24", "fd00:0::200/64")  # has no route back to pods
    outside.do("route", "add", "10.0.1.0/24", "via", "10.0.0.254")
    outside.do("-6", "route", "add", "fd00:1::/64", "via", "fd00:0::254")
    for pod in agent_cluster.pods.values():
        for address in ("10.0.0.200", "fd00:0::200"):
            until(partial(reaches, pod.ns, address), f"{pod.container} -> {address}")
    first, third = agent_cluster.pods["n1-a"], agent_cluster.pods["n3-a"]
    for address, own in zip(third.addresses, first.addresses, strict=True):
        argv = ["nsenter", f"--net={third.ns.path}", sys.executable, "-c", ACCEPT, address]
        server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        try:
            until(partial(first.ns.call, _connects, address), "a connection between pods")
            said, _ = server.communicate(timeout=15)
        finally:
            server.kill()
            server.wait()
        assert said.strip() == own  # the other pod sees the pod's own address


ACCEPT = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], 7777), family=family) as listener:
    listener.settimeout(15)
    print(listener.accept()[1][0])
"""


def _connects(address: str) -> bool:
    try:
        socket.create_connection((address, 7777), 1).close()
    except OSError:
        return False
    return True


@ONLY_TUNNELS
def test_the_hosts_reach_the_pods_and_the_other_way_round(agent_cluster: Cluster) -> None:
    for node in agent_cluster.nodes.values():
        for pod in agent_cluster.pods.values():
            for address in pod.addresses:
                until(partial(reaches, node.ns, address), f"{node.name} -> {address}")


def test_a_node_comes_and_goes(always: Cluster) -> None:
    always.until_all_reach_all()
    fourth = always.start("n4", "1", 4)
    fourth.until_ready()
    always.add_pod("n4", "a")
    always.until_all_reach_all()
    always.remove("n3")
    until(
        lambda: all("10.0.1.3" not in node.ns.run("bridge", "fdb", "show").stdout for node in always.nodes.values()),
        "nobody sends to the node that is gone",
    )
    always.until_all_reach_all()


def test_with_policies_tunnels_packets_come_from_nodes_only(always: Cluster) -> None:
    """Of nodes that are there, that come, and that move; they are not tracked."""
    spec = {"selector": "has(nobody)", "types": ["Ingress"], "ingress": [{"action": "Deny"}]}
    always.store.put(Resource("GlobalNetworkPolicy", Metadata("nobodys"), spec))

    def polices(node: Node) -> bool:
        return "notrack" in node.ns.run("nft", "list", "ruleset").stdout

    for node in always.nodes.values():
        until(partial(polices, node), f"{node.name} polices", 30)
    always.until_all_reach_all()
    always.start("n4", "1", 4).until_ready()
    always.add_pod("n4", "a")
    always.until_all_reach_all()
    always.move("n3", "1", 3, 33)
    first = always.nodes["n1"].ns
    until(lambda: "10.0.1.33" in first.run("nft", "list", "set", "ip", "calico-policy", "tunnel-nodes").stdout, "known")
    always.until_all_reach_all()
    # what a node sent to an address of which one of its parts knew already, or still, and its policing did not
    first.call(_forget_connections)
    always.until_all_reach_all()
    assert not first.call(_tracked, 4789)


def _forget_connections() -> None:
    with Nfnetlink() as netlink:
        netlink.request(1 << 8 | 2, 0, general(""), "forget", Deadline.after(5))


def _tracked(port: int) -> int:
    with Nfnetlink() as netlink:
        listed = netlink.dump(1 << 8 | 1, general("ip"), "list", Deadline.after(5))
    return sum(port.to_bytes(2, "big") in payload for payload in listed)


def hears_of(ns: Namespace, address: str) -> bool:
    return address in ns.run("bridge", "fdb", "show").stdout


def test_a_nodes_address_changes(always: Cluster) -> None:
    always.until_all_reach_all()
    always.move("n3", "1", 3, 33)
    first = always.nodes["n1"].ns
    for address in ("10.0.1.33", "fd00:1::33"):
        until(partial(hears_of, first, address), f"the others hear of {address}", 20)
    always.until_all_reach_all()


def test_a_node_under_another_name(always: Cluster) -> None:
    """Its pods are not the new node's: they go, and new ones are made."""
    always.rename("n3", "n3b").until_ready()
    always.add_pod("n3b", "a")
    always.until_all_reach_all()


def test_restarts_under_traffic_lose_nothing(always: Cluster) -> None:
    """The agent, then the supervisor is killed, all of calico-node is ended, and started: not one ping is lost, neither
    between pods of one node nor through the tunnels of either family.
    """
    always.add_pod("n1", "b")
    always.until_all_reach_all()
    node, pods = always.nodes["n1"], always.pods
    with without_a_lost_ping(pods["n1-a"], pods["n1-b"], pods["n2-a"], pods["n3-a"]):
        agent = node.status()["pid"]
        os.kill(agent, signal.SIGKILL)
        agent = until_another_agent(node, agent)
        node.stop(signal.SIGKILL)
        until(lambda: not Path(f"/proc/{agent}").exists(), "its agent ends too", 20)
        agent = until_another_agent(node.run(), agent)
        assert node.stop()[0] == 0
        until_another_agent(node.run(), agent)
        always.add_pod("n1", "c")  # a pod that is made meanwhile is nothing to the others
    always.until_all_reach_all()


def until_another_agent(node: Node, before: int) -> int:
    """Its process, once it has applied everything."""
    until(lambda: node.status().get("pid", before) != before and node.status()["synced"], "another agent", 30)
    node.until_ready()
    return int(node.status()["pid"])
