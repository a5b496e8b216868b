"""``calico-node run`` as a whole, in a namespace: comes up, answers probes, serves, survives, ends."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
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


def test_it_comes_up_and_ends(agent_node: Node) -> None:
    assert agent_node.calico_node("-felix-live", check=False).returncode == 1
    agent_node.run().until_ready()
    assert agent_node.calico_node("-felix-live", "-felix-ready").returncode == 0
    assert get(agent_node, 9099, "/readiness") == get(agent_node, 9099, "/liveness") == "ok\n"
    assert agent_node.ns.call(_get, "http://[::1]:9099/liveness") == "ok\n"
    metrics = get(agent_node, 9091, "/metrics")
    assert "calico_agent_passes_total" in metrics and "calico_cni_refused_total" in metrics
    assert "\ncalico_cni_server_up 1.0\n" in metrics
    size = re.compile(r'^ipam_ippool_size\{ippool="default-ipv4-ippool"\} 65536$', re.MULTILINE)
    until(
        lambda: size.search(get(agent_node, 9091, "/metrics")), "pools, from the only agent, which is the janitor", 60
    )
    assert complaints(metrics) == "" and undescribed(metrics) == set()
    assert (agent_node.root / "lib" / "nodename").read_text() == "n1"
    until(lambda: agent_node.ns.link("vxlan.calico"), "the tunnel is up", 20)

    def shown() -> str:
        return agent_node.calico_node("-show-status").stdout

    assert "agent:      ready" in shown()
    until(lambda: "vxlan.calico 10.65." in shown(), "the next pass, which comes after its rules, shows it", 20)
    assert (agent_node.root / "lib" / "mtu").read_text() == "1450"
    services = agent_node.calico_node("sv", "status", "/etc/service/enabled/felix", "cni").stdout.splitlines()
    assert all(line.startswith("run: ") for line in services) and len(services) == 2
    assert agent_node.calico_node("sv", "restart", "/etc/service/enabled/felix").stdout.startswith("ok: run: ")
    until(lambda: agent_node.calico_node("-felix-ready", check=False).returncode == 0, "it is ready again", 60)
    before = agent_node.ns.routes(4)
    code, seconds = agent_node.stop()
    assert code == 0 and seconds < 5
    assert agent_node.ns.routes(4) == before and agent_node.ns.link("vxlan.calico") is not None


def test_a_policy_of_before_counts_from_the_start(agent_node: Node) -> None:
    """How long a change takes to be in force begins when it could be known here, not before there was an agent."""
    agent_node.store.put(
        Resource("GlobalNetworkPolicy", Metadata("old"), {"selector": "has(app)", "types": ["Ingress"]})
    )
    begun = time.monotonic()
    agent_node.run().until_ready()

    def counted() -> tuple[float, float] | None:
        page = get(agent_node, 9091, "/metrics")
        found = dict(re.findall(r"(?m)^calico_policy_change_seconds_(sum|count) (\S+)$", page))
        return (float(found["sum"]), float(found["count"])) if float(found.get("count", 0)) else None

    taken, count = until(counted, "the first enforcement is counted", 60)
    assert 0 < taken <= count * (time.monotonic() - begun)


def test_an_agent_that_was_killed_is_not_ready(agent_node: Node) -> None:
    """From the moment it is gone, and with all that it has reported last."""
    agent_node.run().until_ready()
    os.kill(agent_node.status()["pid"], signal.SIGSTOP)  # it reports nothing more, and its supervisor starts no other
    assert agent_node.calicoctl("node", "status").returncode == 0
    agent = agent_node.status()["pid"]
    agent_node.stop(signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{agent}"), "the agent is gone")
    shown = agent_node.calicoctl("node", "status", check=False)
    assert shown.returncode == 1 and "Calico process is not running: the agent has ended" in shown.stdout
    probe = agent_node.calico_node("-felix-live", check=False)
    assert probe.returncode == 1 and "the agent has ended" in probe.stderr


def test_felix_alone_is_ready(agent_node: Node) -> None:
    """Without a CNI server and BIRD, which nobody started; a killed server of ``run`` is still missed."""
    agent_node.calico_node("-startup")
    agent_node.run("-felix").until_applied()
    until(lambda: answers(agent_node)[::2] == (0, 200), "probe and page", 60)
    assert agent_node.status()["cni_server"] is False
    agent_node.stop()
    agent_node.run()
    until(lambda: agent_node.status().get("cni_server"), "the next agent", 60)
    agent_node.until_ready()
    [server] = [pid for line in sv_lines(agent_node, "cni") for pid in re.findall(r"pid (\d+)", line)]
    os.kill(int(server), signal.SIGSTOP)
    try:
        code, said, state, page = answers(agent_node)
        assert (code, state) == (1, 503) and "the CNI server at" in said and "the CNI server at" in page
    finally:
        os.kill(int(server), signal.SIGCONT)


def sv_lines(node: Node, name: str) -> list[str]:
    return node.calico_node("sv", "status", name).stdout.splitlines()


@pytest.mark.bird
def test_a_bird_that_a_single_command_started_stays_and_is_taken_over(agent_node: Node) -> None:
    """As the help of -confd-run-once says."""
    agent_node.more = {"CALICO_NETWORKING_BACKEND": "bird"}
    agent_node.calico_node("-startup")
    assert "stays" in next(x for x in agent_node.calico_node("-help").stdout.splitlines() if "-confd-run-once" in x)
    assert agent_node.calico_node("-confd-run-once").returncode == 0
    assert agent_node.calico_node("-bird-live").returncode == 0
    agent_node.run("-felix", "-confd").until_applied()
    until(lambda: "BIRD is running already" in agent_node.log(), "it is taken over", 60)


@pytest.mark.bird
def test_every_line_is_a_record_also_those_of_bird(agent_node: Node) -> None:
    agent_node.more = {"CALICO_NETWORKING_BACKEND": "bird", "CALICO_LOG_FORMAT": "json"}
    agent_node.run().until_applied()
    until(lambda: "bird" in contexts(agent_node.log().splitlines()[:-1]), "BIRD's lines")
    agent_node.stop()
    assert contexts(agent_node.log().splitlines()) >= {"supervisor", "agent", "bird"}


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


def test_it_is_ready_only_while_pods_reach_the_other_nodes(agent_node: Node) -> None:
    """On a kernel without IPIP, or one that is told so: what a pool needs, and what nothing needs yet."""
    faults = ",".join(f"netlink.tunnel-create:before:{number}:fail" for number in range(1, 300))
    agent_node.more = {"CALICO_FAULT": faults}
    agent_node.store.put(NODES["n2"], pool("10.65.0.0/16", ipip="Always"))
    agent_node.run()

    def unready(other: str) -> bool:
        text = f"IPPool 10.65.0.0-16 needs tunl0 to reach node {other}: cannot make tunl0"
        code, said, status, page = answers(agent_node)
        return code == 1 and status == 503 and text in said and text in page

    until(lambda: agent_node.status().get("synced"), "the first pass", 240)
    until(lambda: unready("n2"), "it is not ready, and says why", 120)
    shown = agent_node.calicoctl("node", "status", check=False)
    assert shown.returncode == 1
    assert "this node is not ready: IPPool 10.65.0.0-16 needs tunl0" in shown.stderr
    assert json.loads(agent_node.calicoctl("node", "status", "-o", "json", check=False).stdout)["ready"] is False
    agent_node.store.put(pool("10.65.0.0/16", ipip="CrossSubnet"))  # n2 is in our subnet
    until(lambda: answers(agent_node)[::2] == (0, 200), "it is ready", 120)
    assert "Ready:     yes" in agent_node.calicoctl("node", "status").stdout
    assert "cannot make tunl0" in str(agent_node.status()["failed"])
    assert "cannot make tunl0" in agent_node.calico_node("-show-status").stdout
    agent_node.store.put(NODES["n3"])  # in another subnet
    until(lambda: unready("n3"), "it is not ready any more", 60)


def test_a_part_that_is_killed_comes_back(agent_node: Node) -> None:
    agent_node.run().until_ready()
    first = agent_node.status()["pid"]
    os.kill(first, signal.SIGKILL)
    until(lambda: agent_node.status().get("pid", first) != first, "another agent", 20)
    agent_node.until_ready()
    assert "the agent ended (signal 9)" in agent_node.log()


def test_a_supervisor_that_is_killed_takes_its_children_along(agent_node: Node) -> None:
    """Else the next one would make a second agent beside the first."""
    agent_node.run().until_ready()
    first, routes = agent_node.status()["pid"], agent_node.ns.routes(4)
    assert agent_node.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    until(lambda: not Path(f"/proc/{first}").exists(), "the agent has ended", 20)
    socket = f"{agent_node.root}/run/cni.sock"
    until(lambda: not Path(socket).exists() or call_server(socket, "metrics", {}, b"") is None, "the server too", 20)
    assert agent_node.ns.routes(4) == routes
    agent_node.run()
    until(lambda: agent_node.status().get("pid", first) != first, "another agent", 20)
    agent_node.until_ready()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals(agent_node: Node, number: int) -> None:
    """Also to a supervisor whose children are still starting, and twice."""
    agent_node.run()
    until(lambda: "started" in agent_node.log(), "the first child", 20)
    assert agent_node.process is not None
    agent_node.process.send_signal(number)
    code, seconds = agent_node.stop(number)
    assert code == 0 and seconds < 5, agent_node.log()
    children = [
        line.split("(process ")[1].split(")")[0] for line in agent_node.log().splitlines() if "(process " in line
    ]
    assert children and not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_startup_is_tried_until_it_succeeds(agent_node: Node) -> None:
    agent_node.ns.do("link", "set", "eth0", "down")
    agent_node.run()
    until(lambda: "cannot detect the node's IPv4 address" in agent_node.log(), "it says what is wrong", 20)
    assert not (agent_node.root / "lib" / "nodename").exists()
    agent_node.ns.do("link", "set", "eth0", "up")
    agent_node.until_ready()


def test_an_address_that_changes_is_followed(agent_node: Node) -> None:
    agent_node.more = {"AUTODETECT_POLL_INTERVAL": "1s"}
    agent_node.run().until_ready()
    until(lambda: agent_node.ns.link("vxlan.calico"), "the tunnel is up", 20)
    agent_node.ns.do("addr", "del", "10.0.0.1/24", "dev", "eth0")
    agent_node.ns.do("addr", "add", "10.0.0.99/24", "dev", "eth0")

    def local() -> str | None:
        link = agent_node.ns.link("vxlan.calico")
        return None if link is None else link["linkinfo"]["info_data"].get("local")

    until(lambda: local() == "10.0.0.99", "the tunnel follows", 20)
    assert "the node's addresses changed" in agent_node.log()


def test_tunnel_addresses_follow_the_pools(agent_node: Node) -> None:
    agent_node.run().until_ready()
    until(lambda: agent_node.ns.link("vxlan.calico"), "the tunnel is up", 20)
    agent_node.store.put(pool("10.70.0.0/16", "Always"))
    agent_node.store.remove(ResourceKey("IPPool", "default-ipv4-ippool"))

    def moved() -> bool:
        return agent_node.ns.link("vxlan.calico") is not None and "10.70." in str(
            agent_node.ns.addresses("vxlan.calico")
        )

    until(moved, "an address of the new pool", 20)


@pytest.mark.parametrize(
    "flag", ["-startup", "-allocate-tunnel-addrs-run-once", "-init", "-hostpath-init", "-shutdown"]
)
def test_single_commands(agent_node: Node, flag: str) -> None:
    agent_node.calico_node("-startup")
    assert agent_node.calico_node(flag).returncode == 0
    told = read_all(agent_node.store.path)["nodes/n1"]["spec"].get("ipv4VXLANTunnelAddr")
    assert bool(told) == (flag == "-allocate-tunnel-addrs-run-once")


def test_wrong_use(agent_node: Node) -> None:
    done = agent_node.calico_node("-felixx", check=False)
    assert done.returncode == 2 and "unknown flag -felixx" in done.stderr
    agent_node.more = {"AS": "high"}
    done = agent_node.calico_node("-startup", check=False)
    assert done.returncode == 1 and "AS='high'" in done.stderr and "Traceback" not in done.stderr
    assert agent_node.calico_node("-v").stdout.startswith("v")


def test_one_host_by_itself(agent_node: Node) -> None:
    """With the environment file as it is installed: a pod reaches the outside, masqueraded. Docker's drivers run, too,
    where they are asked for as upstream's were.
    """
    lines = (ROOT / "install" / "systemd" / "calico-node.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    docker = {"CALICO_LIBNETWORK_ENABLED": "true", "CALICO_DOCKER_PLUGIN_DIR": str(agent_node.root / "plugins")}
    agent_node.more = {"IP": "", "CALICO_IPV4POOL_CIDR": "", "CALICO_IPV4POOL_VXLAN": "", **given, **docker}
    agent_node.run().until_ready()
    with namespace("outside") as outside, namespace("pod") as pod_ns:
        agent_node.ns.do("link", "add", "eth1", "type", "veth", "peer", "name", "eth0", "netns", outside.name)
        agent_node.ns.do("addr", "add", "198.51.100.1/24", "dev", "eth1")
        agent_node.ns.do("link", "set", "eth1", "up")
        agent_node.ns.do("route", "add", "default", "via", "198.51.100.2")
        outside.do("addr", "add", "198.51.100.2/24", "dev", "eth0")  # no route to pods: only masquerading helps
        outside.do("link", "set", "eth0", "up")
        pod = agent_node.add(Pod(pod_ns, "alone"))
        assert pod.addresses[0].startswith("192.168.")

        def reaches() -> bool:
            return pod_ns.run("ping", "-c1", "-W1", "198.51.100.2", check=False).returncode == 0

        until(reaches, "the outside", 20)
        agent_node.cni("DEL", pod)
    assert agent_node.status()["failed"] == [] and agent_node.status()["problems"] == []
    for name, role in (("calico", "NetworkDriver"), ("calico-ipam", "IpamDriver")):
        socket = agent_node.root / "plugins" / f"{name}.sock"
        until(socket.exists, "the driver serves", 20)
        answer = agent_node.ns.run(
            "curl", "-s", "-X", "POST", "--unix-socket", str(socket), "http://docker/Plugin.Activate"
        ).stdout
        assert json.loads(answer) == {"Implements": [role]}
