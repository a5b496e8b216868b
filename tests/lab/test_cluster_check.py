"""``calicoctl cluster check`` between the pods of two real nodes, with kube-proxy and a name service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.lab import name_service
from tests.lab.control_plane import NET4
from tests.lab.host import BIN, end, run, start
from tests.lab.lab import Lab, install_manifest, running_lab
from tests.lab.proxy import install_kube_proxy
from tests.lab.test_pods import ready_agents
from tests.pages import blocks

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.bundle, pytest.mark.timeout(600)]
WELL = [
    "ok         pods: node1 to node2; the kubelet reaches the pod",
    "ok         IPv4 between pods",
    "ok         IPv4 MTU: packets of 1430 bytes pass",
    "ok         IPv6 between pods",
    "ok         IPv6 MTU: packets of 1430 bytes pass",
    "ok         IPv4 service",
    "ok         IPv6 service",
    "ok         DNS: kubernetes.default is 10.96.0.1",
    "ok         IPv4 policy: a policy keeps out what it forbids, and nothing else",
    "ok         IPv6 policy: a policy keeps out what it forbids, and nothing else",
    "The network works.",
]


def name_service_objects() -> list[dict[str, object]]:
    """The Service as clusters have it; behind it is the control plane's address."""
    metadata = {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}}
    ports = [{"name": "dns", "protocol": "UDP", "port": 53}]
    behind = {"name": "kube-dns-1", "namespace": "kube-system", "labels": {"kubernetes.io/service-name": "kube-dns"}}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"clusterIP": "10.96.0.10", "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": behind,
            "addressType": "IPv4",
            "endpoints": [{"addresses": [f"{NET4}.1"], "conditions": {"ready": True}}],
            "ports": ports,
        },
    ]


@pytest.fixture(scope="module")
def check_lab(busybox_image: Path, product_image: Path, own_bundle: Path) -> Iterator[Lab]:
    with running_lab(dual=True, images=[busybox_image, product_image], bundle=own_bundle) as made:
        install_manifest(made)
        install_kube_proxy(made, "nftables")
        until(lambda: ready_agents(made) == 2, "calico-node is ready on both nodes", timeout_s=180, pause_s=0.1)
        yield made


@pytest.fixture
def names(check_lab: Lab) -> Iterator[None]:
    check_lab.apply(*name_service_objects())
    script = [sys.executable, name_service.__file__, "kubernetes.default", "10.96.0.1"]
    process = start(check_lab.directory / "names.log", *check_lab.plane.inside(*script))
    try:
        yield
    finally:
        end(process)
        check_lab.kubectl("delete", "-n", "kube-system", "service/kube-dns", "endpointslice/kube-dns-1")


def namespaces(lab: Lab) -> list[str]:
    names = [item["metadata"]["name"] for item in lab.get("namespaces")["items"]]
    return [name for name in names if name.startswith("calico-check-")]


def command(lab: Lab, *more: str) -> list[str]:
    environ = ["env", "DATASTORE_TYPE=kubernetes", f"KUBECONFIG={lab.plane.admin}"]
    assert lab.bundle is not None
    return [str(word) for word in lab.plane.inside(*environ, lab.bundle / "calicoctl", "cluster", "check", *more)]


def check(lab: Lab, *more: str) -> tuple[int, list[str], str]:
    done = subprocess.run(command(lab, *more), capture_output=True, text=True, timeout=280)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_the_first_minute_of_logs_alarms_nobody(check_lab: Lab) -> None:
    """Of the agents that a manifest has just installed, with what their init containers say."""
    said = check_lab.kubectl("logs", "-n", "kube-system", "-l", "k8s-app=calico-node", "--all-containers", "--tail=-1")
    assert said.count("this node enforces policies from now on") == 2
    assert not [line for line in said.splitlines() if "[INFO]" not in line]


def test_everything_works(check_lab: Lab, names: None) -> None:
    code, lines, err = check(check_lab)
    assert (code, err) == (0, ""), lines
    assert [line.startswith(wanted) for line, wanted in zip(lines, WELL, strict=True)] == [True] * len(WELL), lines
    assert namespaces(check_lab) == []
    until(lambda: not check_lab.leftovers(), "nothing is left", timeout_s=20, pause_s=0.1)


def test_what_does_not_work_is_named(check_lab: Lab, names: None) -> None:
    """On the way to the second node, large packets are lost; on the first, the way to services."""
    one = check_lab.nodes[0]
    rules = """add table inet broken
add chain inet broken post { type filter hook postrouting priority 300; }
add rule inet broken post udp dport 4789 udp length > 1300 drop
add chain inet broken pre { type filter hook prerouting priority -300; }
add rule inet broken pre ip daddr 10.96.0.0/16 drop
"""
    subprocess.run([str(word) for word in one.inside("nft", "-f", "-")], input=rules, text=True, check=True)
    try:
        code, lines, err = check(check_lab, "--nodes", "node1,node2")
    finally:
        one.run("nft", "delete", "table", "inet", "broken")
    assert code == 1
    assert err.startswith("the network does not work: IPv4 MTU, IPv6 MTU, IPv4 service, DNS\n"), (lines, err)
    failed = [line for line in lines if line.startswith("failed     IPv4 MTU")]
    assert "pods send packets of 1430 bytes, but only 1270 bytes pass" in failed[0]  # 1300, without UDP and VXLAN
    assert namespaces(check_lab) == []


def test_an_interruption_leaves_nothing(check_lab: Lab) -> None:
    with subprocess.Popen(command(check_lab), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(namespaces(check_lab)) == 1
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=90)
    assert process.returncode == 130
    assert namespaces(check_lab) == []
    until(lambda: not check_lab.leftovers(), "nothing is left", timeout_s=20, pause_s=0.1)


def test_a_node_that_is_not_ready(check_lab: Lab) -> None:
    code, _, err = check(check_lab, "--nodes", "node1,node9")
    assert (code, err) == (1, "cannot check the network: there is no node node9\n")


def test_one_node(check_lab: Lab) -> None:
    code, lines, err = check(check_lab, "--nodes", "node2")
    assert lines[0] == "ok         pods: both on node2; the kubelet reaches the pod"
    assert (code, err) == (0, ""), lines
    assert "not tried  DNS: kube-system has no service with the label k8s-app=kube-dns" in lines


def test_removed_as_the_page_says(check_lab: Lab) -> None:
    """The last one: there is no network afterwards. The page's command waits until no pod needs the plugin any more."""
    [remove] = blocks("kubernetes.md", "Remove it")
    environ = ("env", f"PATH={BIN}:{os.environ['PATH']}", f"KUBECONFIG={check_lab.plane.admin}")
    run(*check_lab.plane.inside(*environ, "bash", "-euc", remove))
    assert check_lab.pods("kube-system") == []
    assert check_lab.leftovers() == []
