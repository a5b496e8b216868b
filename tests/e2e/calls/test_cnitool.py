"""A runtime's whole path: cnitool drives the frozen executables, chained with the reference portmap and bandwidth.

Rule: results are compared with what upstream's plugin printed (tests/golden), the network with ``ip``, ``tc`` and real
traffic.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.e2e.cnitool import Cnitool, expected_shape, shape
from tests.e2e.host import Node
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.netns, pytest.mark.bundle, pytest.mark.cnitool]

DUAL = {"ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}}
PORTMAP = {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}
BANDWIDTH = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
VERSIONS = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]


@pytest.fixture
def bundled_node(node: Node, bundle: Path) -> Node:
    """The node of the other end-to-end tests, with the executables instead of functions."""
    node.bin_dir = bundle
    return node


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("pod", "changes"), [("plain", {}), ("dual", DUAL)])
def test_add_check_del(bundled_node: Node, pod_ns: Namespace, version: str, pod: str, changes: dict[str, Any]) -> None:
    tool = Cnitool(bundled_node, version, changes)
    result = tool.ok("add", pod_ns)
    assert result["cniVersion"] == version
    assert shape(result) == expected_shape(pod, version)
    assert pod_ns.addresses("eth0") == {ip["address"] for ip in result["ips"]}
    if version != "0.3.1":
        tool.ok("check", pod_ns)
    tool.ok("del", pod_ns)
    tool.ok("del", pod_ns)
    assert not bundled_node.leftovers()
    assert pod_ns.link("eth0") is None


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
def test_check_fails_when_something_was_changed(bundled_node: Node, pod_ns: Namespace, version: str) -> None:
    tool = Cnitool(bundled_node, version)
    tool.ok("add", pod_ns)
    pod_ns.do("route", "del", "default")
    done = tool.run("check", pod_ns)
    assert done.returncode != 0
    assert "0.0.0.0/0 via 169.254.1.1" in done.stdout + done.stderr
    tool.ok("del", pod_ns)
    assert not bundled_node.leftovers()


@pytest.mark.parametrize("version", VERSIONS)
def test_chained_with_portmap_and_bandwidth(bundled_node: Node, pod_ns: Namespace, version: str) -> None:
    mapping = {"hostPort": 18080, "containerPort": 8080, "protocol": "tcp"}
    rates = {"ingressRate": 8_000_000, "ingressBurst": 8_000_000, "egressRate": 8_000_000, "egressBurst": 8_000_000}
    tool = Cnitool(bundled_node, version, DUAL, [PORTMAP, BANDWIDTH], {"portMappings": [mapping], "bandwidth": rates})
    before = {link["ifname"] for link in bundled_node.host.ip("link", "show")}
    result = tool.ok("add", pod_ns)
    veth = result["interfaces"][0]["name"]
    assert "qdisc tbf" in bundled_node.host.run("tc", "qdisc", "show", "dev", veth).stdout

    server = [
        "nsenter",
        f"--net={pod_ns.path}",
        "/usr/bin/python3",
        "-m",
        "http.server",
        "8080",
        "--directory",
        "/var/empty",
    ]
    with subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as web:
        try:
            # from the host itself to its own address: what portmap maps must come to the pod through our veth
            probe = ["/usr/bin/python3", "-c", PROBE]
            until(
                lambda: "HTTP" in bundled_node.host.run(*probe, check=False).stdout, "an answer through the mapped port"
            )
        finally:
            web.kill()
    if version != "0.3.1":
        tool.ok("check", pod_ns)
    tool.ok("del", pod_ns)
    assert not bundled_node.leftovers()
    assert {link["ifname"] for link in bundled_node.host.ip("link", "show")} == before
    assert "18080" not in bundled_node.host.run("iptables-save").stdout


PROBE = """
import socket
s = socket.create_connection(("192.0.2.10", 18080), 2)
s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
print(s.recv(100).decode())
"""


def test_status(bundled_node: Node, pod_ns: Namespace) -> None:
    Cnitool(bundled_node, "1.1.0").ok("status", pod_ns)
    done = Cnitool(bundled_node, "1.1.0", {"datastore_path": "/nonexistent/datastore.db"}).run("status", pod_ns)
    assert done.returncode != 0


def test_gc_without_a_list_of_what_is_valid_removes_nothing(bundled_node: Node, pod_ns: Namespace) -> None:
    """cnitool knows only its own cache: when that is lost it asks for GC without saying what is in use."""
    tool = Cnitool(bundled_node, "1.1.0")
    tool.ok("add", pod_ns)
    cached = [path for path in (bundled_node.root / "cache").rglob("*") if path.is_file()]
    assert cached
    for path in cached:
        path.unlink()
    done = tool.run("gc", pod_ns)
    assert done.returncode != 0
    assert "valid-attachments is missing" in done.stdout + done.stderr
    assert len(bundled_node.taken()) == 1 and pod_ns.link("eth0") is not None
    tool.ok("del", pod_ns)
    assert not bundled_node.leftovers()
