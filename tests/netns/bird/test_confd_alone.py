"""confd as a service of its own: what it has to say of BIRD is where users look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.deadlines import until
from tests.netns.nodes import Node
from tests.unit.nodeagent.fabric import NODES, pool

pytestmark = [pytest.mark.netns, pytest.mark.bird]

GONE = "another service runs it, and it is not there"


@pytest.fixture
def confd(agent_node: Node) -> Iterator[Node]:
    """The process of confd alone, on a node where another service is to run BIRD, and none does."""
    agent_node.more = {"CALICO_NETWORKING_BACKEND": "bird", "CALICO_BIRD_SERVICE": "external"}
    agent_node.calico_node("-startup")
    agent_node.store.put(NODES["n2"], pool("10.65.0.0/16", ipip="Always"))
    made = replace(agent_node, process=None)
    made.run("-confd")
    try:
        yield made
    finally:
        made.end()


def test_what_confd_says_is_in_the_status(agent_node: Node, confd: Node) -> None:
    until(lambda: GONE in str(agent_node.status().get("bgp")), "confd says it", 60)
    said = agent_node.calicoctl("node", "status", check=False)
    assert said.returncode == 1 and "Calico process is not running" in said.stdout
    assert f"BGP: {agent_node.status()['bgp']}" in said.stdout
    assert GONE in agent_node.calico_node("-show-status").stdout
    agent_node.run("-felix")
    until(lambda: agent_node.status().get("synced"), "the agent has applied its network", 60)
    said = agent_node.calicoctl("node", "status", check=False)
    assert said.returncode == 1 and "Calico process is running" in said.stdout
    assert "this node is not ready" in said.stderr and GONE in said.stderr
    assert GONE in agent_node.calico_node("-felix-ready", check=False).stderr
    assert confd.stop()[0] == 0
    assert "bgp" not in agent_node.status()
    assert GONE not in agent_node.calicoctl("node", "status", check=False).stderr, "nobody waits for it"
