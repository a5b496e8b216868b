"""A host without Kubernetes as it is meant to be set up: the installer's own 10-calico.conflist, cnitool, the frozen
executables, portmap and bandwidth after them; on both datastores, without and with a server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cni_calico.install.settings import parse_settings
from cni_calico.install.template import render_conflist, template_values
from tests.conftest import ROOT
from tests.e2e.cnitool import Cnitool, expected_shape, shape
from tests.e2e.forks import forks_in
from tests.e2e.host import Node
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.netns, pytest.mark.bundle, pytest.mark.cnitool]

TEMPLATE = ROOT / "conflist" / "10-calico.conflist.template"
MAPPING = {"hostPort": 18081, "containerPort": 8080, "protocol": "tcp"}
RATES = {"ingressRate": 8_000_000, "ingressBurst": 8_000_000, "egressRate": 8_000_000, "egressBurst": 8_000_000}


@pytest.fixture(params=["local", pytest.param("etcd", marks=pytest.mark.etcd)])
def bundled_forking_node(request: pytest.FixtureRequest, bundle: Path) -> Iterator[Node]:
    made: Node = request.getfixturevalue("plain_node" if request.param == "local" else "etcd_node")
    made.bin_dir = bundle
    with forks_in(made.host) as made.forks:
        yield made
    made.forks = None


@pytest.fixture(params=["one-shot", "served"])
def tool(request: pytest.FixtureRequest, bundled_forking_node: Node) -> Iterator[Cnitool]:
    with ExitStack() as stack:
        if request.param == "served":
            stack.enter_context(bundled_forking_node.server())
        if bundled_forking_node.datastore.type == "local":
            # the template leaves it to its default
            bundled_forking_node.environ["DATASTORE_PATH"] = bundled_forking_node.datastore.path
        yield Cnitool(bundled_forking_node, conflist=rendered(bundled_forking_node), network="k8s-pod-network")


def rendered(node: Node) -> str:
    """The configuration that the install container writes."""
    environ = {
        "DATASTORE_TYPE": node.datastore.type,
        "ETCD_ENDPOINTS": ",".join(node.datastore.etcd_endpoints),
        "KUBERNETES_NODE_NAME": node.nodename,
        "CNI_MTU": "1450",
        "LOG_FILE_PATH": str(node.root / "cni.log"),
    }
    settings = parse_settings(environ, bundle="/opt/cni/bin", template_file=str(TEMPLATE))
    values = template_values(settings, node=node.nodename, token="", tls_files=frozenset())
    return render_conflist(TEMPLATE.read_text(), values)


def addresses_in(result: Any) -> set[str]:
    return {ip["address"] for ip in result["ips"]}


def test_every_verb(tool: Cnitool, make_pod_ns: MakeNamespace) -> None:
    node, one, two = tool.node, make_pod_ns("one"), make_pod_ns("two")
    tool.ok("status", one)
    results = {pod.name: tool.ok("add", pod) for pod in (one, two)}
    for pod in (one, two):
        assert shape(results[pod.name]) == expected_shape("plain", "1.0.0")
        assert pod.addresses("eth0") == addresses_in(results[pod.name])
        tool.ok("check", pod)
    assert len(node.taken()) == 2
    tool.ok("del", one)
    tool.ok("del", one)
    tool.ok("check", two)
    assert one.link("eth0") is None and {f"{a}/32" for a in node.taken()} == addresses_in(results[two.name])
    tool.ok("del", two)
    assert not node.leftovers()


def test_gc(tool: Cnitool, make_pod_ns: MakeNamespace) -> None:
    """GC came with 1.1.0, which the installed configuration does not ask for by itself. cnitool deletes what it has in
    its cache and gives the plugin no list of what is valid, so what else is there is left until a runtime says more.
    """
    tool.conflist = tool.conflist.replace('"cniVersion": "1.0.0"', '"cniVersion": "1.1.0"')
    node, cached, unknown = tool.node, make_pod_ns("cached"), make_pod_ns("unknown")
    tool.ok("add", unknown)
    for path in (node.root / "cache").rglob("*"):
        if path.is_file():
            path.unlink()
    tool.ok("add", cached)
    assert len(node.taken()) == 2
    done = tool.run("gc", cached)
    assert done.returncode != 0 and "valid-attachments is missing" in done.stdout + done.stderr
    assert cached.link("eth0") is None and unknown.link("eth0") is not None and len(node.taken()) == 1
    conf = json.loads(tool.conflist)
    plugin = {**conf["plugins"][0], "name": conf["name"], "cniVersion": "1.1.0"}
    stdin = json.dumps({**plugin, "cni.dev/valid-attachments": None, "cni.dev/attachments": None}).encode()
    assert node.call("GC", "", stdin=stdin).ok
    assert not node.leftovers() and unknown.link("eth0") is None
    tool.ok("status", cached)


def test_what_the_runtime_asks_of_the_chain(tool: Cnitool, pod_ns: Namespace) -> None:
    node = tool.node
    tool.runtime_config = {"portMappings": [MAPPING], "bandwidth": RATES}
    before = {link["ifname"] for link in node.host.ip("link", "show")}
    result = tool.ok("add", pod_ns)
    veth = result["interfaces"][0]["name"]
    assert "qdisc tbf" in node.host.run("tc", "qdisc", "show", "dev", veth).stdout
    assert str(MAPPING["hostPort"]) in node.host.run("iptables-save").stdout
    tool.ok("check", pod_ns)
    tool.ok("del", pod_ns)
    assert not node.leftovers()
    assert {link["ifname"] for link in node.host.ip("link", "show")} == before
    assert str(MAPPING["hostPort"]) not in node.host.run("iptables-save").stdout
