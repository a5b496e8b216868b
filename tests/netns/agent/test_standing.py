"""The whole agent: tunnels' devices and the rules that guard them, whichever comes and goes first."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Callable

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.model.keys import ResourceKey
from tests.deadlines import until
from tests.netns.nodes import Node

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]

RULE, DEVICE = "VXLAN from an unknown node", "vxlan.calico"
OWN = ResourceKey("Node", "n1")


def is_up(node: Node) -> bool:
    link = node.ns.link(DEVICE)
    return link is not None and "UP" in link["flags"]


@pytest.fixture(params=["nftables", "iptables"])
def tunnel_node(request: pytest.FixtureRequest, agent_node: Node) -> Node:
    agent_node.more = {"FELIX_NFTABLESMODE": "Disabled"} if request.param == "iptables" else {}
    return agent_node


def ruleset(node: Node) -> str:
    if node.more.get("FELIX_NFTABLESMODE"):
        return "".join(node.ns.run(f"{name}tables-legacy-save").stdout for name in ("ip", "ip6"))
    return node.ns.run("nft", "list", "ruleset").stdout


def is_guarded(node: Node) -> bool:
    return RULE in ruleset(node)


def until_never_open(node: Node, done: Callable[[], bool], what: str) -> None:
    """Whenever the device is up, before and after looking at the rules, they are there."""

    def look() -> bool:
        before, guarded = is_up(node), is_guarded(node)
        assert guarded or not (before and is_up(node)), node.log()
        return done()

    until(look, what, 60, pause_s=0.001)


def start(node: Node) -> None:
    node.calico_node("-startup")
    node.run("-felix", "-allocate-tunnel-addrs")


ON_ONE_FILTER = pytest.mark.slow_on("iptables")  # what the agent says and makes, whichever filter it is printed for


def test_the_device_comes_up_with_its_rule_and_the_rule_goes_after_it(tunnel_node: Node) -> None:
    start(tunnel_node)
    until_never_open(tunnel_node, lambda: is_up(tunnel_node), "the device is up")
    tunnel_node.calicoctl("patch", "ippool", "default-ipv4-ippool", "-p", json.dumps({"spec": {"vxlanMode": "Never"}}))
    until_never_open(tunnel_node, lambda: not is_up(tunnel_node), "the device is gone")
    until(lambda: not is_guarded(tunnel_node), "the port is another program's, if anybody's")


@ON_ONE_FILTER
def test_a_first_start_alarms_nobody(tunnel_node: Node) -> None:
    """Without a tunnel there is nothing that the Nodes, which are not read yet, could be missing for."""
    start(tunnel_node)
    tunnel_node.until_applied()
    assert "have not been read yet" not in tunnel_node.log()


def ports_guarded(node: Node) -> set[int]:
    """The ports of the rules for VXLAN from strangers."""
    lines = [line for line in ruleset(node).splitlines() if RULE in line]
    return {
        int(port)
        for line in lines
        for port in re.findall(r"dport (\d+)|--dports? (\d+)", line)
        for port in port
        if port
    }


def port_of_device(node: Node) -> int | None:
    link = node.ns.link(DEVICE)
    return None if link is None or "UP" not in link["flags"] else int(link["linkinfo"]["info_data"]["port"])


def test_another_port_is_never_open(tunnel_node: Node) -> None:
    """Neither the old one, which the device still has, nor the new one."""
    start(tunnel_node)
    until_never_open(tunnel_node, lambda: is_up(tunnel_node), "the device is up")
    for new in (4790, 4791, 4789):
        patch = json.dumps({"spec": {"vxlanPort": new}})
        tunnel_node.calicoctl("patch", "felixconfiguration", "default", "-p", patch)

        def look(new: int = new) -> bool:
            before, guarded, after = (
                port_of_device(tunnel_node),
                ports_guarded(tunnel_node),
                port_of_device(tunnel_node),
            )
            assert before is None or before != after or before in guarded, tunnel_node.log()
            return (after, guarded) == (new, {new})

        until(look, f"the device has port {new}, and only it is guarded", 60, pause_s=0.001)


def test_nothing_opens_when_the_own_node_is_deleted(tunnel_node: Node) -> None:
    start(tunnel_node)
    until_never_open(tunnel_node, lambda: is_up(tunnel_node), "the device is up")
    tunnel_node.store.remove(OWN)
    until_never_open(tunnel_node, lambda: not is_up(tunnel_node), "the device is gone")


@ON_ONE_FILTER
def test_a_pool_that_cannot_be_read_makes_no_rule(tunnel_node: Node) -> None:
    """Docker's swarm may have the port."""
    tunnel_node.more["CALICO_IPV4POOL_VXLAN"] = "Never"
    tunnel_node.calico_node("-startup")
    tunnel_node.store.write(Write.put(ResourceKey("IPPool", "bad"), {"metadata": {"name": "bad"}, "spec": {"cidr": 7}}))
    tunnel_node.run("-felix", "-allocate-tunnel-addrs")
    until(lambda: "spoofing" in ruleset(tunnel_node), "the standing rules are in force")
    tunnel_node.until_applied()
    assert not is_guarded(tunnel_node) and tunnel_node.ns.link(DEVICE) is None


def _page() -> str:
    with urllib.request.urlopen("http://127.0.0.1:9091/metrics", timeout=20) as answer:
        return answer.read().decode()


def _has_page() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", 9091)) == 0


def metrics(node: Node) -> str:
    return node.ns.call(_page)


@ON_ONE_FILTER
def test_a_node_that_is_cut_off_is_named(tunnel_node: Node) -> None:
    """By status, log and metric, until its record is repaired; the others' packets arrive meanwhile."""
    start(tunnel_node)
    until_never_open(tunnel_node, lambda: is_up(tunnel_node), "the device is up")
    until(lambda: tunnel_node.ns.call(_has_page), "its metrics have begun")
    assert "calico_nodes_cut_off{" not in metrics(tunnel_node)
    broken = {"metadata": {"name": "n7"}, "spec": {"bgp": {"ipv4Address": 7}}}
    tunnel_node.store.write(Write.put(ResourceKey("Node", "n7"), broken))
    said = "Node n7 cannot be read and none of its addresses is known"
    until(lambda: 'calico_nodes_cut_off{node="n7"} 1.0' in metrics(tunnel_node), "the metric names it")
    until(lambda: said in str(tunnel_node.status()), "the status names it")
    assert said in tunnel_node.log() and said in tunnel_node.calico_node("-show-status").stdout
    tunnel_node.store.remove(ResourceKey("Node", "n7"))
    until(lambda: "calico_nodes_cut_off{" not in metrics(tunnel_node), "it is gone")
    until(lambda: said not in str(tunnel_node.status()), "the status is clean")
