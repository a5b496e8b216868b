"""A real kube-proxy whose cluster CIDR does not contain the pools: the agent and ``calicoctl`` say it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest

from cni_calico.ctl.main import run
from cni_calico.kernel.filter.service_rules import read_service_sources
from cni_calico.nodeagent.status.file import read_status
from tests.conftest import LAB_CACHE
from tests.deadlines import soon, until
from tests.e2e.kubernetes.agent import agent
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import KubeNode
from tests.fixtures.kubernetes import NAMESPACE

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

SERVICES, SYSTEM = f"/api/v1/namespaces/{NAMESPACE}/services", "/api/v1/namespaces/kube-system"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
NODE = "/api/v1/nodes/node1"
ELSEWHERE = ip_network("10.244.0.0/14")  # its prefix ends inside a byte


def settings(mode: str, kubeconfig: str, cidr: str) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "clusterCIDR": cidr,
        "hostnameOverride": "node1",
        "clientConnection": {"kubeconfig": kubeconfig},
        "conntrack": {"maxPerCore": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"},
    }


@contextmanager
def kube_proxy(node: KubeNode, mode: str, cidr: str) -> Iterator[None]:
    """``mode``: nftables, iptables or legacy. It waits half a minute for a Node's address, so that has one."""
    this = node.kube.request("GET", NODE)
    this["status"]["addresses"] = [{"type": "InternalIP", "address": "192.0.2.1"}]
    node.kube.request("PUT", f"{NODE}/status", this)
    path, root = os.environ["PATH"], Path(node.root)
    if mode == "legacy":
        programs = root / "legacy"
        programs.mkdir(exist_ok=True)
        for name in ("iptables", "ip6tables"):
            for suffix in ("", "-save", "-restore"):
                target = programs / f"{name}{suffix}"
                target.unlink(missing_ok=True)
                target.symlink_to(f"/usr/sbin/{name}-legacy{suffix}")
        path = f"{programs}:{path}"
    file = root / "kube-proxy.json"
    document = settings("iptables" if mode == "legacy" else mode, node.kube.kubeconfig(), cidr)
    file.write_text(json.dumps(document))
    argv = ["nsenter", f"--net={node.host.path}", str(LAB_CACHE / "bin" / "kube-proxy"), f"--config={file}"]
    with open(root / "kube-proxy.log", "ab") as log:
        process = subprocess.Popen(argv, env={"PATH": path}, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def service(kube: Cluster) -> Iterator[None]:
    """With an endpoint: kube-proxy makes a chain for it."""
    kube.ensure_namespace(NAMESPACE)
    metadata = {"name": "web", "labels": {"kubernetes.io/service-name": "web"}}
    kube.ensure(
        SERVICES, {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}}
    )
    endpoints = [{"addresses": ["10.65.0.3"], "nodeName": "node1", "conditions": {"ready": True}}]
    body = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "metadata": metadata}
    kube.ensure(SLICES, {**body, "endpoints": endpoints, "ports": [{"port": 80}]})
    yield
    kube.request("DELETE", f"{SLICES}/web")
    kube.request("DELETE", f"{SERVICES}/web")


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(
    "mode", ["nftables", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("iptables", "legacy"))]
)
def test_its_rules_on_a_node_are_read(unserved_node: KubeNode, mode: str) -> None:
    read = unserved_node.host.call
    assert read(read_service_sources, soon()) == ()
    with kube_proxy(unserved_node, mode, str(ELSEWHERE)):
        until(lambda: read(read_service_sources, soon()) == (ELSEWHERE,), f"the rules of mode {mode}", 60)


@pytest.mark.usefixtures("service")
def test_it_is_said_on_the_node_and_about_the_cluster(
    unserved_node: KubeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kube, [pool] = unserved_node.kube, [p for p in pools(unserved_node.kube) if ":" not in p]
    with kube_proxy(unserved_node, "iptables", "10.244.0.0/16"), agent(unserved_node):
        run_dir = f"{unserved_node.root}/run"
        [text] = until(lambda: read_status(run_dir).get("services"), "the agent's status says it", 60)
        assert "takes only 10.244.0.0/16 for pods: its rules on this node" in text and f"({pool})" in text
    config = tmp_path / "calicoctl.cfg"
    config.write_text(
        "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\n"
        f"spec:\n  datastoreType: kubernetes\n  kubeconfig: {kube.kubeconfig()}\n"
    )

    def calicoctl(*argv: str) -> tuple[int, str, str]:
        code = run(["-c", str(config), *argv], {})
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    for name, last in (("client", 10), ("server", 11)):
        address = f"{pool.partition('/')[0].rpartition('.')[0]}.{last}"
        pod = kube.create_pod(NAMESPACE, name, "node1")
        pod["status"] = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        kube.request("PUT", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/status", pod)
    ask = ("policy", "explain", "--from", f"{NAMESPACE}/client", "--to", f"{NAMESPACE}/server", "--port", "80")
    kube.ensure_namespace("kube-system")
    for cidr, wrong in ((str(ELSEWHERE), True), ("10.0.0.0/8,192.168.0.0/16,172.16.0.0/12,fd00::/8", False)):
        data = {"config.conf": json.dumps(settings("nftables", "/x", cidr))}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-proxy"}, "data": data}
        kube.ensure(f"{SYSTEM}/configmaps", body)
        try:
            code, said, warned = calicoctl(*ask)
            assert code == 0 and "The connection is allowed." in said
            assert ("By a service, kube-proxy takes only 10.244.0.0/14" in warned) == wrong, warned
            _, said, _ = calicoctl("cluster", "check")
            expected = (
                "failed     kube-proxy's networks: kube-proxy takes only"
                if wrong
                else "ok         kube-proxy's networks"
            )
            assert expected in said, said
        finally:
            kube.request("DELETE", f"{SYSTEM}/configmaps/kube-proxy")


def pools(kube: Cluster) -> list[str]:
    return [item["spec"]["cidr"] for item in kube.request("GET", "/apis/crd.projectcalico.org/v1/ippools")["items"]]
