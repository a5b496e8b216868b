"""ADD without Kubernetes: no container starts before its policy is in force, where somebody enforces policies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

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
def bare(agent_node: Node) -> Node:
    agent_node.store.put(pool("10.65.0.0/16"))
    for directory in ("run", "lib"):
        (agent_node.root / directory).mkdir()
    (agent_node.root / "lib" / "nodename").write_text("n1")
    return agent_node


@pytest.fixture
def container() -> Iterator[Pod]:
    with ExitStack() as stack:
        yield Pod(stack.enter_context(namespace("web")), "web")


def deny(bare: Node) -> None:
    bare.store.write(Write.put(ResourceKey("GlobalNetworkPolicy", "deny"), DENY))


def until_decided(bare: Node, *, in_force: bool) -> None:
    until(lambda: (bare.status().get("policing") or {}).get("ready"), "it is decided", 120)
    assert bare.status()["policing"]["in_force"] is in_force


def status_files(bare: Node) -> list[str]:
    directory = bare.root / "run" / "endpoint-status"
    return sorted(os.listdir(directory)) if directory.exists() else []


def links(bare: Node) -> list[str]:
    return [link["ifname"] for link in bare.ns.ip("link", "show") if link["ifname"].startswith("cali")]


def stop_agent(bare: Node, number: signal.Signals) -> None:
    """Of all that ``calico-node run`` started, the process that enforces policies."""
    os.kill(bare.status()["pid"], number)


def log_of(bare: Node) -> str:
    path = bare.root / "cni.log"
    return path.read_text() if path.exists() else ""


def test_it_returns_when_the_policy_is_in_force_and_fails_if_that_takes_too_long(bare: Node, container: Pod) -> None:
    """And without the agent, which could have been about to come back, it starts after the time-out."""
    deny(bare)
    bare.run()
    until_decided(bare, in_force=True)
    bare.add(container)
    assert status_files(bare) == ["cni default%2Fweb eth0"], "the moment it returned"
    (interface,) = links(bare)
    assert f'"{interface}" : jump' in bare.ns.run("nft", "list", "table", "ip", "calico-policy").stdout
    assert "not known to be in force" not in log_of(bare)
    stop_agent(bare, signal.SIGSTOP)
    try:
        bare.cni("DEL", container)
        assert status_files(bare) == ["cni default%2Fweb eth0"], "the agent knows nothing of it yet"
        with pytest.raises(RuntimeError, match=LATE) as failed:
            bare.cni("ADD", container, policy_setup_timeout_seconds=1)
        assert "policy of calnet/web/eth0 is not known to be in force after 1 s" in str(failed.value)
        with pytest.raises(RuntimeError, match=LATE) as failed_by_name:
            named = replace(container, arguments="IgnoreUnknown=1;K8S_POD_NAME=shop")
            bare.cni("ADD", named, policy_setup_timeout_seconds=1)
        assert "policy of shop (calnet/web/eth0) is not known" in str(failed_by_name.value)
        assert "calico-node runs on this host" in str(failed.value)
        assert links(bare) == [] and "web" not in bare.calicoctl("get", "wep", "-A").stdout, "all of it is undone"
        assert "0 (0%)" in bare.calicoctl("ipam", "show").stdout
    finally:
        stop_agent(bare, signal.SIGCONT)
    bare.end()
    bare.cni("ADD", container, policy_setup_timeout_seconds=1)
    assert "after 1 s: calico-node does not run; the container starts anyway" in log_of(bare)


def test_a_wait_survives_the_end_of_calico_node(bare: Node, container: Pod) -> None:
    """The server undoes the ADD and leaves it to its caller, which waits for the next agent."""
    deny(bare)
    bare.run()
    until_decided(bare, in_force=True)
    stop_agent(bare, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool_of_one:
        added = pool_of_one.submit(bare.cni, "ADD", container, policy_setup_timeout_seconds=50)
        until(lambda: len(links(bare)) == 1, "it waits")
        bare.end()
        assert "left to the caller: the server ends, and policy of" in bare.log()
        bare.run()
        assert added.result()["ips"]
    assert status_files(bare) == ["cni default%2Fweb eth0"] and len(links(bare)) == 1


def test_nothing_is_waited_for_once_it_is_decided_that_no_policy_is_due(bare: Node, container: Pod) -> None:
    bare.run()
    until_decided(bare, in_force=False)
    stop_agent(bare, signal.SIGSTOP)
    try:
        bare.add(container)
    finally:
        stop_agent(bare, signal.SIGCONT)
    assert len(links(bare)) == 1 and "not known to be in force" not in log_of(bare)


def test_where_no_agent_has_run_nothing_is_waited_for(bare: Node, container: Pod) -> None:
    deny(bare)
    bare.add(container)
    assert len(links(bare)) == 1 and "not known to be in force" not in log_of(bare)


def test_a_host_that_is_closed_since_its_start_says_how_it_is_opened(bare: Node, container: Pod) -> None:
    bare.calico_node("-boot-table")
    assert (bare.root / "run" / directories.BOOT_TABLE).exists()
    assert "Workloads are closed by the boot table (nftables)" in bare.calicoctl("node", "boot-table", "show").stdout
    with pytest.raises(RuntimeError, match=LATE) as failed:
        bare.add(container)
    assert "after 5 s, and workloads are closed since this host started" in str(failed.value)
    assert "calicoctl node boot-table off" in str(failed.value) and links(bare) == []
    assert bare.calicoctl("node", "boot-table", "off").stdout.startswith("The boot table is gone")
    assert bare.calicoctl("node", "boot-table", "off").stdout == "There was no boot table.\n"
    bare.add(container)
    assert len(links(bare)) == 1


def test_a_container_that_starts_before_the_agent_waits_for_it(bare: Node, container: Pod) -> None:
    """As containers with a restart policy do when a host starts."""
    deny(bare)
    bare.calico_node("-boot-table")
    bare.run()
    bare.cni("ADD", container, policy_setup_timeout_seconds=50)
    assert status_files(bare) == ["cni default%2Fweb eth0"]
    until(lambda: not (bare.root / "run" / directories.BOOT_TABLE).exists(), "the boot table is gone")


def test_zero_is_no_wait(bare: Node, container: Pod) -> None:
    (bare.root / "run" / directories.BOOT_TABLE).touch()
    bare.cni("ADD", container, policy_setup_timeout_seconds=0)
    assert len(links(bare)) == 1
