"""ADD without Kubernetes: no container starts before its policy is in force, where somebody enforces policies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from cni_calico import directories
from cni_calico.datastore.interface import Write
from cni_calico.model.keys import ResourceKey
from tests.deadlines import until
from tests.netns.namespaces import namespace
from tests.netns.nodes import Node, Pod
from tests.unit.nodeagent.fabric import pool

pytestmark = pytest.mark.netns

DENY = {
    "kind": "GlobalNetworkPolicy",
    "apiVersion": "projectcalico.org/v3",
    "metadata": {"name": "deny", "uid": "d"},
    "spec": {"selector": "all()", "types": ["Ingress"], "ingress": [{"action": "Deny"}]},
}
LATE = r'"code": ?138'


@pytest.fixture
def node(agent_node: Node) -> Node:
    agent_node.store.put(pool("10.65.0.0/16"))
    for directory in ("run", "lib"):
        (agent_node.root / directory).mkdir()
    (agent_node.root / "lib" / "nodename").write_text("n1")
    return agent_node


@pytest.fixture
def container() -> Iterator[Pod]:
    with ExitStack() as stack:
        yield Pod(stack.enter_context(namespace("web")), "web")


def deny(node: Node) -> None:
    node.store.write(Write.put(ResourceKey("GlobalNetworkPolicy", "deny"), DENY))


def until_decided(node: Node, *, in_force: bool) -> None:
    until(lambda: (node.status().get("policing") or {}).get("ready"), "it is decided", 120)
    assert node.status()["policing"]["in_force"] is in_force


def status_files(node: Node) -> list[str]:
    directory = node.root / "run" / "endpoint-status"
    return sorted(os.listdir(directory)) if directory.exists() else []


def links(node: Node) -> list[str]:
    return [link["ifname"] for link in node.ns.ip("link", "show") if link["ifname"].startswith("cali")]


def stop_agent(node: Node, number: signal.Signals) -> None:
    """Of all that ``calico-node run`` started, the process that enforces policies."""
    os.kill(node.status()["pid"], number)


def log_of(node: Node) -> str:
    path = node.root / "cni.log"
    return path.read_text() if path.exists() else ""


def test_it_returns_when_the_policy_is_in_force_and_fails_if_that_takes_too_long(node: Node, container: Pod) -> None:
    """And without the agent, which could have been about to come back, it starts after the time-out."""
    deny(node)
    node.run()
    until_decided(node, in_force=True)
    node.add(container)
    assert status_files(node) == ["cni default%2Fweb eth0"], "the moment it returned"
    (interface,) = links(node)
    assert f'"{interface}" : jump' in node.ns.run("nft", "list", "table", "ip", "calico-policy").stdout
    assert "not known to be in force" not in log_of(node)
    node.cni("DEL", container)
    until(lambda: status_files(node) == [], "the agent knows")
    stop_agent(node, signal.SIGSTOP)
    try:
        with pytest.raises(RuntimeError, match=LATE) as failed:
            node.cni("ADD", container, policy_setup_timeout_seconds=1)
        assert "policy of calnet/web/eth0 is not known to be in force after 1 s" in str(failed.value)
        assert "calico-node runs on this host" in str(failed.value)
        assert links(node) == [] and "web" not in node.calicoctl("get", "wep", "-A").stdout, "all of it is undone"
        assert "0 (0%)" in node.calicoctl("ipam", "show").stdout
    finally:
        stop_agent(node, signal.SIGCONT)
    node.end()
    node.cni("ADD", container, policy_setup_timeout_seconds=1)
    assert "after 1 s: calico-node does not run; the container starts anyway" in log_of(node)


def test_nothing_is_waited_for_once_it_is_decided_that_no_policy_is_due(node: Node, container: Pod) -> None:
    node.run()
    until_decided(node, in_force=False)
    stop_agent(node, signal.SIGSTOP)
    try:
        node.add(container)
    finally:
        stop_agent(node, signal.SIGCONT)
    assert len(links(node)) == 1 and "not known to be in force" not in log_of(node)


def test_where_no_agent_has_run_nothing_is_waited_for(node: Node, container: Pod) -> None:
    deny(node)
    node.add(container)
    assert len(links(node)) == 1 and "not known to be in force" not in log_of(node)


def test_a_host_that_is_closed_since_its_start_says_how_it_is_opened(node: Node, container: Pod) -> None:
    node.calico_node("-boot-table")
    assert (node.root / "run" / directories.BOOT_TABLE).exists()
    assert "Workloads are closed by the boot table (nftables)" in node.calicoctl("node", "boot-table", "show").stdout
    with pytest.raises(RuntimeError, match=LATE) as failed:
        node.add(container)
    assert "after 5 s, and workloads are closed since this host started" in str(failed.value)
    assert "calicoctl node boot-table off" in str(failed.value) and links(node) == []
    assert node.calicoctl("node", "boot-table", "off").stdout.startswith("The boot table is gone")
    assert node.calicoctl("node", "boot-table", "off").stdout == "There was no boot table.\n"
    node.add(container)
    assert len(links(node)) == 1


def test_a_container_that_starts_before_the_agent_waits_for_it(node: Node, container: Pod) -> None:
    """As containers with a restart policy do when a host starts."""
    deny(node)
    node.calico_node("-boot-table")
    node.run()
    node.cni("ADD", container, policy_setup_timeout_seconds=50)
    assert status_files(node) == ["cni default%2Fweb eth0"]
    until(lambda: not (node.root / "run" / directories.BOOT_TABLE).exists(), "the boot table is gone")


def test_zero_is_no_wait(node: Node, container: Pod) -> None:
    (node.root / "run" / directories.BOOT_TABLE).touch()
    node.cni("ADD", container, policy_setup_timeout_seconds=0)
    assert len(links(node)) == 1
