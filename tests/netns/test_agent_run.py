"""``calico-node run`` as a whole, in a namespace: comes up, answers probes, serves, survives, ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.status import read_status
from tests.netns.agents import Store
from tests.netns.namespaces import Namespace, namespace, until
from tests.netns.startups import add_card, read_all
from tests.unit.nodeagent.fabric import pool

pytestmark = pytest.mark.netns

ROOT = Path(__file__).parents[2]


@dataclass
class Node:
    """A node with its own directories, on a datastore that others may share."""

    ns: Namespace
    name: str
    root: Path
    store: Store
    process: subprocess.Popen[str] | None = None
    more: dict[str, str] | None = None

    def environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "DATASTORE_TYPE": "local",
            "DATASTORE_PATH": str(self.store.path),
            "NODENAME": self.name,
            "IP": "autodetect",
            "CALICO_RUN_DIR": f"{self.root}/run",
            "CALICO_STATE_DIR": f"{self.root}/lib",
            "CALICO_LOG_DIR": f"{self.root}/log",
            "CALICO_NODENAME_FILE": f"{self.root}/lib/nodename",
            "CALICO_BIRD_CONFIG_DIR": f"{self.root}/bird",
            "CALICO_DISABLE_FILE_LOGGING": "true",
            "CALICO_NETWORKING_BACKEND": "vxlan",
            "CALICO_IPV4POOL_CIDR": "10.65.0.0/16",
            "CALICO_IPV4POOL_VXLAN": "Always",
            "CALICO_IPV6POOL_CIDR": "none",
            "FELIX_HEALTHENABLED": "true",
            "FELIX_PROMETHEUSMETRICSENABLED": "true",
            "FELIX_ROUTEREFRESHINTERVAL": "2",
            **(self.more or {}),
        }

    def calico_node(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """One command of calico-node in here, to its end."""
        argv, environ = self._argv(*arguments), self.environ()
        return subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=check, timeout=60)

    def _argv(self, *arguments: str) -> list[str]:
        return ["nsenter", f"--net={self.ns.path}", sys.executable, "-m", "cni_calico.nodeagent.main", *arguments]

    def run(self) -> Node:
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.root / "log.txt", "a") as log:
            self.process = subprocess.Popen(self._argv("run"), cwd=ROOT, env=self.environ(), stderr=log, text=True)
        return self

    def until_ready(self) -> Node:
        until(lambda: self.calico_node("-felix-ready", check=False).returncode == 0, f"{self.name} is ready", 30)
        return self

    def status(self) -> dict[str, Any]:
        return read_status(f"{self.root}/run")

    def log(self) -> str:
        return (self.root / "log.txt").read_text()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """(exit status, seconds)"""
        assert self.process is not None
        begun = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(20)
        self.process = None
        return code, time.monotonic() - begun

    def end(self) -> None:
        """Whatever is left of it."""
        if self.process is not None:
            self.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with namespace("run") as ns:
        add_card(ns, "eth0", "10.0.0.1/24")
        made = Node(ns, "n1", tmp_path / "n1", Store(tmp_path / "store.db"))
        try:
            yield made
        finally:
            made.end()


def get(node: Node, port: int, path: str) -> str:
    """A page, asked for inside the node's namespace."""
    return node.ns.call(_get, f"http://127.0.0.1:{port}{path}")  # type: ignore[no-any-return]


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()  # type: ignore[no-any-return]


def test_it_comes_up_and_ends(node: Node) -> None:
    assert node.calico_node("-felix-live", check=False).returncode == 1
    node.run().until_ready()
    assert node.calico_node("-felix-live", "-felix-ready").returncode == 0
    assert get(node, 9099, "/readiness") == get(node, 9099, "/liveness") == "ok\n"
    metrics = get(node, 9091, "/metrics")
    assert "calico_agent_passes_total" in metrics and "calico_cni_refused_total" in metrics
    assert (node.root / "lib" / "nodename").read_text() == "n1"
    until(lambda: node.ns.link("vxlan.calico"), "the tunnel is up", 20)
    shown = node.calico_node("-show-status").stdout
    assert "agent:      ready" in shown and "vxlan.calico 10.65." in shown
    assert (node.root / "lib" / "mtu").read_text() == "1450"
    before = node.ns.routes(4)
    code, seconds = node.stop()
    assert code == 0 and seconds < 5
    assert node.ns.routes(4) == before and node.ns.link("vxlan.calico") is not None


def test_a_part_that_is_killed_comes_back(node: Node) -> None:
    node.run().until_ready()
    first = node.status()["pid"]
    os.kill(first, signal.SIGKILL)
    until(lambda: node.status()["pid"] != first, "another agent", 20)
    node.until_ready()
    assert "the agent ended (signal 9)" in node.log()


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
