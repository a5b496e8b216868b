"""The whole agent: tunnels' devices and the rules that guard them, whichever comes and goes first."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.model.keys import ResourceKey
from tests.deadlines import until
from tests.netns.nodes import Node

pytestmark = pytest.mark.netns

RULE, DEVICE = "VXLAN from an unknown node", "vxlan.calico"
OWN = ResourceKey("Node", "n1")


def is_up(node: Node) -> bool:
    link = node.ns.link(DEVICE)
    return link is not None and "UP" in link["flags"]


def is_guarded(node: Node) -> bool:
    return RULE in node.ns.run("nft", "list", "ruleset").stdout


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


def test_the_device_comes_up_with_its_rule_and_the_rule_goes_after_it(agent_node: Node) -> None:
    start(agent_node)
    until_never_open(agent_node, lambda: is_up(agent_node), "the device is up")
    agent_node.calicoctl("patch", "ippool", "default-ipv4-ippool", "-p", json.dumps({"spec": {"vxlanMode": "Never"}}))
    until_never_open(agent_node, lambda: not is_up(agent_node), "the device is gone")
    until(lambda: not is_guarded(agent_node), "the port is another program's, if anybody's")


def test_a_first_start_alarms_nobody(agent_node: Node) -> None:
    """Without a tunnel there is nothing that the Nodes, which are not read yet, could be missing for."""
    start(agent_node)
    agent_node.until_applied()
    assert "have not been read yet" not in agent_node.log()


def test_nothing_opens_when_the_own_node_is_deleted(agent_node: Node) -> None:
    start(agent_node)
    until_never_open(agent_node, lambda: is_up(agent_node), "the device is up")
    agent_node.store.remove(OWN)
    until_never_open(agent_node, lambda: not is_up(agent_node), "the device is gone")


def test_a_pool_that_cannot_be_read_makes_no_rule(agent_node: Node) -> None:
    """Docker's swarm may have the port."""
    agent_node.more = {"CALICO_IPV4POOL_VXLAN": "Never"}
    agent_node.calico_node("-startup")
    agent_node.store.write(Write.put(ResourceKey("IPPool", "bad"), {"metadata": {"name": "bad"}, "spec": {"cidr": 7}}))
    agent_node.run("-felix", "-allocate-tunnel-addrs")
    until(lambda: "spoofing" in agent_node.ns.run("nft", "list", "ruleset").stdout, "the standing rules are in force")
    agent_node.until_applied()
    assert not is_guarded(agent_node) and agent_node.ns.link(DEVICE) is None
