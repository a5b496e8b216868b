"""``calico-node run`` as a whole, in a namespace: comes up, answers probes, serves, survives, ends."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.plugin.call.client import call_server
from tests.deadlines import until
from tests.netns.namespaces import namespace
from tests.netns.nodes import ROOT, Node, Pod
from tests.netns.startups import read_all
from tests.promtool import complaints, undescribed
from tests.unit.nodeagent.fabric import NODES, pool

pytestmark = pytest.mark.netns


def get(node: Node, port: int, path: str) -> str:
    """A page, asked for inside the node's namespace."""
    return node.ns.call(_get, f"http://127.0.0.1:{port}{path}")


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def test_it_comes_up_and_ends(node: Node) -> None:
    assert node.calico_node("-felix-live", check=False).returncode == 1
    node.run().until_ready()
    assert node.calico_node("-felix-live", "-felix-ready").returncode == 0
    assert get(node, 9099, "/readiness") == get(node, 9099, "/liveness") == "ok\n"
    assert node.ns.call(_get, "http://[::1]:9099/liveness") == "ok\n"
    metrics = get(node, 9091, "/metrics")
    assert "calico_agent_passes_total" in metrics and "calico_cni_refused_total" in metrics
    assert complaints(metrics) == "" and undescribed(metrics) == set()
    assert (node.root / "lib" / "nodename").read_text() == "n1"
    until(lambda: node.ns.link("vxlan.calico"), "the tunnel is up", 20)
    shown = node.calico_node("-show-status").stdout
    assert "agent:      ready" in shown and "vxlan.calico 10.65." in shown
    assert (node.root / "lib" / "mtu").read_text() == "1450"
    services = node.calico_node("sv", "status", "/etc/service/enabled/felix", "cni").stdout.splitlines()
    assert all(line.startswith("run: ") for line in services) and len(services) == 2
    assert node.calico_node("sv", "restart", "/etc/service/enabled/felix").stdout.startswith("ok: run: ")
    until(lambda: node.calico_node("-felix-ready", check=False).returncode == 0, "it is ready again", 60)
    before = node.ns.routes(4)
    code, seconds = node.stop()
    assert code == 0 and seconds < 5
    assert node.ns.routes(4) == before and node.ns.link("vxlan.calico") is not None


@pytest.mark.bird
def test_every_line_is_a_record_also_those_of_bird(node: Node) -> None:
    node.more = {"CALICO_NETWORKING_BACKEND": "bird", "CALICO_LOG_FORMAT": "json"}
    node.run().until_applied()
    until(lambda: "bird" in contexts(node.log().splitlines()[:-1]), "BIRD's lines")
    node.stop()
    assert contexts(node.log().splitlines()) >= {"supervisor", "agent", "bird"}


def contexts(lines: list[str]) -> set[str]:
    """Of records as JSON."""
    return {json.loads(line)["context"] for line in lines}


def _readiness() -> tuple[int, str]:
    try:
        return 200, _get("http://127.0.0.1:9099/readiness")
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read().decode()


def answers(node: Node) -> tuple[int, str, int, str]:
    """The probe's exit status and words, and the page's."""
    probe = node.calico_node("-felix-ready", check=False)
    return probe.returncode, probe.stdout + probe.stderr, *node.ns.call(_readiness)


def test_it_is_ready_only_while_pods_reach_the_other_nodes(node: Node) -> None:
    """On a kernel without IPIP, or one that is told so: what a pool needs, and what nothing needs yet."""
    faults = ",".join(f"netlink.tunnel-create:before:{number}:fail" for number in range(1, 300))
    node.more = {"CALICO_FAULT": faults}
    node.store.put(NODES["n2"], pool("10.65.0.0/16", ipip="Always"))
    node.run()

    def unready(other: str) -> bool:
        text = f"IPPool 10.65.0.0-16 needs tunl0 to reach node {other}: cannot make tunl0"
        code, said, status, page = answers(node)
        return code == 1 and status == 503 and text in said and text in page

    until(lambda: node.status().get("synced"), "the first pass", 240)
    until(lambda: unready("n2"), "it is not ready, and says why", 120)
    shown = node.calicoctl("node", "status", check=False)
    assert shown.returncode == 1
    assert "this node is not ready: IPPool 10.65.0.0-16 needs tunl0" in shown.stderr
    assert json.loads(node.calicoctl("node", "status", "-o", "json", check=False).stdout)["ready"] is False
    node.store.put(pool("10.65.0.0/16", ipip="CrossSubnet"))  # n2 is in our subnet
    until(lambda: answers(node)[::2] == (0, 200), "it is ready", 120)
    assert "Ready:     yes" in node.calicoctl("node", "status").stdout
    assert "cannot make tunl0" in str(node.status()["failed"])
    assert "cannot make tunl0" in node.calico_node("-show-status").stdout
    node.store.put(NODES["n3"])  # in another subnet
    until(lambda: unready("n3"), "it is not ready any more", 60)


def test_a_part_that_is_killed_comes_back(node: Node) -> None:
    node.run().until_ready()
    first = node.status()["pid"]
    os.kill(first, signal.SIGKILL)
    until(lambda: node.status()["pid"] != first, "another agent", 20)
    node.until_ready()
    assert "the agent ended (signal 9)" in node.log()


def test_a_supervisor_that_is_killed_takes_its_children_along(node: Node) -> None:
    """Else the next one would make a second agent beside the first."""
    node.run().until_ready()
    first, routes = node.status()["pid"], node.ns.routes(4)
    assert node.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    until(lambda: not Path(f"/proc/{first}").exists(), "the agent has ended", 20)
    socket = f"{node.root}/run/cni.sock"
    until(lambda: not Path(socket).exists() or call_server(socket, "metrics", {}, b"") is None, "the server too", 20)
    assert node.ns.routes(4) == routes
    node.run()
    until(lambda: node.status()["pid"] != first, "another agent", 20)
    node.until_ready()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals(node: Node, number: int) -> None:
    """Also to a supervisor whose children are still starting, and twice."""
    node.run()
    until(lambda: "started" in node.log(), "the first child", 20)
    assert node.process is not None
    node.process.send_signal(number)
    code, seconds = node.stop(number)
    assert code == 0 and seconds < 5, node.log()
    children = [line.split("(process ")[1].split(")")[0] for line in node.log().splitlines() if "(process " in line]
    assert children and not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_startup_is_tried_until_it_succeeds(node: Node) -> None:
    node.ns.do("link", "set", "eth0", "down")
    node.run()
    until(lambda: "cannot detect the node's IPv4 address" in node.log(), "it says what is wrong", 20)
    assert not (node.root / "lib" / "nodename").exists()
    node.ns.do("link", "set", "eth0", "up")
    node.until_ready()


def test_an_address_that_changes_is_followed(node: Node) -> None:
    node.more = {"AUTODETECT_POLL_INTERVAL": "1s"}
    node.run().until_ready()
    until(lambda: node.ns.link("vxlan.calico"), "the tunnel is up", 20)
    node.ns.do("addr", "del", "10.0.0.1/24", "dev", "eth0")
    node.ns.do("addr", "add", "10.0.0.99/24", "dev", "eth0")

    def local() -> str | None:
        link = node.ns.link("vxlan.calico")
        return None if link is None else link["linkinfo"]["info_data"].get("local")

    until(lambda: local() == "10.0.0.99", "the tunnel follows", 20)
    assert "the node's addresses changed" in node.log()


def test_tunnel_addresses_follow_the_pools(node: Node) -> None:
    node.run().until_ready()
    until(lambda: node.ns.link("vxlan.calico"), "the tunnel is up", 20)
    node.store.put(pool("10.70.0.0/16", "Always"))
    node.store.remove(ResourceKey("IPPool", "default-ipv4-ippool"))

    def moved() -> bool:
        return node.ns.link("vxlan.calico") is not None and "10.70." in str(node.ns.addresses("vxlan.calico"))

    until(moved, "an address of the new pool", 20)


@pytest.mark.parametrize(
    "flag", ["-startup", "-allocate-tunnel-addrs-run-once", "-init", "-hostpath-init", "-shutdown"]
)
def test_single_commands(node: Node, flag: str) -> None:
    node.calico_node("-startup")
    assert node.calico_node(flag).returncode == 0
    told = read_all(node.store.path)["nodes/n1"]["spec"].get("ipv4VXLANTunnelAddr")
    assert bool(told) == (flag == "-allocate-tunnel-addrs-run-once")


def test_wrong_use(node: Node) -> None:
    done = node.calico_node("-felixx", check=False)
    assert done.returncode == 2 and "unknown flag -felixx" in done.stderr
    node.more = {"AS": "high"}
    done = node.calico_node("-startup", check=False)
    assert done.returncode == 1 and "AS='high'" in done.stderr and "Traceback" not in done.stderr
    assert node.calico_node("-v").stdout.startswith("v")


def test_one_host_by_itself(node: Node) -> None:
    """With the environment file as it is installed: a pod reaches the outside, masqueraded."""
    lines = (ROOT / "install" / "systemd" / "calico-node.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    node.more = {"IP": "", "CALICO_IPV4POOL_CIDR": "", "CALICO_IPV4POOL_VXLAN": "", **given}
    node.run().until_ready()
    with namespace("outside") as outside, namespace("pod") as pod_ns:
        node.ns.do("link", "add", "eth1", "type", "veth", "peer", "name", "eth0", "netns", outside.name)
        node.ns.do("addr", "add", "198.51.100.1/24", "dev", "eth1")
        node.ns.do("link", "set", "eth1", "up")
        node.ns.do("route", "add", "default", "via", "198.51.100.2")
        outside.do("addr", "add", "198.51.100.2/24", "dev", "eth0")  # no route to pods: only masquerading helps
        outside.do("link", "set", "eth0", "up")
        pod = node.add(Pod(pod_ns, "alone"))
        assert pod.addresses[0].startswith("192.168.")

        def reaches() -> bool:
            return pod_ns.run("ping", "-c1", "-W1", "198.51.100.2", check=False).returncode == 0

        until(reaches, "the outside", 20)
        node.cni("DEL", pod)
    assert node.status()["failed"] == [] and node.status()["problems"] == []
