"""``calicoctl cluster check`` on a host without Kubernetes, with the real calico-node, plugin and kernel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import ResourceList
from tests.e2e import front, records
from tests.e2e.host import select, taken_in
from tests.netns.nodes import ROOT, Node

pytestmark = [pytest.mark.netns, pytest.mark.takes(20)]
PIDS: list[int] = []  # of the checks that this test started
FINDINGS = {
    "namespaces": "ok",
    "IPv4 from this host": "ok",
    "IPv6 from this host": "ok",
    "IPv4 between pods": "ok",
    "IPv4 MTU": "ok",
    "IPv6 between pods": "ok",
    "IPv6 MTU": "ok",
    "IPv4 policy": "ok",
    "IPv6 policy": "ok",
    "other hosts": "not tried",
    "services": "not tried",
    "DNS": "not tried",
}


@pytest.fixture
def checked_host(agent_node: Node) -> Iterator[Node]:
    """A node whose agent runs, with both families and a network as a runtime reads it."""
    agent_node.more = {"CALICO_IPV6POOL_CIDR": "fd00:65::/112", "FELIX_IPV6SUPPORT": "true"}
    agent_node.ns.do("addr", "add", "fd00:10::1/64", "dev", "eth0", "nodad")
    plugin = {
        "type": "calico",
        **agent_node.store.conf(),
        "mtu": 1450,
        "nodename_file": f"{agent_node.root}/lib/nodename",
        "log_file_path": f"{agent_node.root}/cni.log",
        "ipam_lock_file": f"{agent_node.root}/run/ipam.lock",
        "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"},
    }
    network(agent_node).write_text(json.dumps({"cniVersion": "1.0.0", "name": "calnet", "plugins": [plugin]}))
    yield agent_node.run().until_ready()


def network(node: Node) -> Path:
    return node.root / "10-calico.conflist"


def start(node: Node) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "cni_calico.ctl.main", "cluster", "check", "--host", "--network", str(network(node))]
    return subprocess.Popen(
        ["nsenter", f"--net={node.ns.path}", *argv, "--plugins", str(front.executables())],
        cwd=ROOT,
        env=node.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check(node: Node) -> tuple[int, dict[str, tuple[str, str]], str]:
    """(exit status, {what was tried: (outcome, sentence)}, standard error)"""
    with start(node) as process:
        PIDS.append(process.pid)
        out, err = process.communicate(timeout=150)
    found = {}
    for line in out.splitlines():
        for outcome in ("ok", "failed", "not tried"):
            if line.startswith(f"{outcome} "):
                what, _, text = line.removeprefix(outcome).strip().partition(": ")
                found[what] = (outcome, text)
    return process.returncode, found, err


def leftovers(node: Node) -> dict[str, object]:
    """What checks of this test have left, in the datastore and in the kernel."""
    stored = records.dump(DatastoreConfig("local", path=str(node.store.path)))
    taken = {address: handle for address, handle in taken_in(stored).items() if "tunnel" not in handle}
    named = [
        name for name in os.listdir("/var/run/netns") if name.startswith(tuple(f"calico-check-{p}-" for p in PIDS))
    ]
    found = {
        "records": [key for key in stored if "calico-check" in key],
        "links": [link["ifname"] for link in node.ns.ip("link", "show") if link["ifname"].startswith("cali")],
        "namespaces": named,
        "endpoints": select(stored, ResourceList("WorkloadEndpoint")),
        "addresses": taken,
    }
    return {name: value for name, value in found.items() if value}


def drop(node: Node, *what: str) -> None:
    """Packets that this host does not forward."""
    script = f"""add table inet broken
add chain inet broken forward {{ type filter hook forward priority -300; }}
flush chain inet broken forward
add rule inet broken forward {" ".join(what)} drop
"""
    subprocess.run(["nsenter", f"--net={node.ns.path}", "nft", "-f", "-"], input=script, text=True, check=True)


def test_what_works_and_what_does_not(checked_host: Node) -> None:
    code, found, err = check(checked_host)
    assert (code, {what: outcome for what, (outcome, _) in found.items()}, err) == (0, FINDINGS, "")
    assert found["IPv4 MTU"][1] == "packets of 1450 bytes pass"
    assert not leftovers(checked_host)

    drop(checked_host, "meta", "nfproto", "ipv4", "udp", "length", ">", "1000")
    code, found, err = check(checked_host)
    # the length of UDP is without the 20 bytes of the IP header
    assert found["IPv4 MTU"] == (
        "failed",
        "pods send packets of 1450 bytes, but only 1020 bytes pass: lower the pods' MTU (veth_mtu)",
    )
    assert (code, err) == (1, "the network does not work: IPv4 MTU\n")
    assert not leftovers(checked_host)


@pytest.mark.slow
def test_families_that_do_not_get_through(checked_host: Node) -> None:
    drop(checked_host, "meta", "nfproto", "ipv6", "meta", "l4proto", "tcp")
    code, found, err = check(checked_host)
    assert found["IPv4 between pods"][0] == "ok"
    assert found["IPv6 between pods"][1].endswith(": port 8080 does not answer within 2 s")
    assert (code, err) == (1, "the network does not work: IPv6 between pods\n")
    assert not leftovers(checked_host)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(s, marks=pytest.mark.slow) for s in (signal.SIGTERM, signal.SIGHUP))]
)
def test_an_interruption_leaves_nothing(checked_host: Node, number: signal.Signals) -> None:
    with start(checked_host) as process:
        PIDS.append(process.pid)
        assert process.stdout is not None
        for _ in range(4):  # in the midst of it
            process.stdout.readline()
        assert leftovers(checked_host)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert not leftovers(checked_host)


@pytest.mark.slow
def test_what_a_killed_one_left_goes_with_the_next(checked_host: Node) -> None:
    with start(checked_host) as process:
        PIDS.append(process.pid)
        assert process.stdout is not None
        while "IPv6 MTU" not in process.stdout.readline():
            pass
        process.kill()
        process.communicate(timeout=60)
    assert {"links", "namespaces", "endpoints", "addresses"} <= leftovers(checked_host).keys()
    assert check(checked_host)[::2] == (0, "")
    assert not leftovers(checked_host)


@pytest.mark.slow
def test_a_host_that_does_not_enforce_policy(checked_host: Node) -> None:
    checked_host.end()
    checked_host.more |= {"FELIX_POLICYENFORCEMENT": "Disabled"}
    checked_host.run().until_ready()
    code, found, err = check(checked_host)
    assert found["IPv4 policy"] == ("failed", "a port still answers 30 s after a policy forbade it")
    assert (code, err) == (1, "the network does not work: IPv4 policy, IPv6 policy\n")
    assert not leftovers(checked_host)


@pytest.mark.slow
def test_without_an_agent(checked_host: Node) -> None:
    checked_host.end()
    (checked_host.root / "run" / "agent-status.json").unlink()
    code, found, err = check(checked_host)
    assert found["policy"][0] == "not tried" and "calico-node does not run on this host" in found["policy"][1]
    assert (code, err) == (0, "")
