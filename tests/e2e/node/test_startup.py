"""Start-up, tunnel addresses and the NetworkUnavailable condition on real datastores: etcd and a Kubernetes API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import EverythingList, ResourceKey, etcd_path
from cni_calico.model.names import kubernetes_veth
from cni_calico.nodeagent.view.sources import Sources
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import Cluster
from tests.fixtures.kubernetes import NAMESPACE

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "tests" / "golden" / "vectors"
NODE = ResourceKey("Node", "node1")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """calico-node with its own directories; more variables by keyword."""

    def calico_node(*flags: str, check: bool = True, **environ: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "NODENAME": "node1",
            "IP": "10.99.0.11/24",
            "IP6": "fd99::11/64",
            "CALICO_RUN_DIR": f"{tmp_path}/run",
            "CALICO_STATE_DIR": f"{tmp_path}/lib",
            "CALICO_LOG_DIR": f"{tmp_path}/log",
            "CALICO_NODENAME_FILE": f"{tmp_path}/lib/nodename",
            "CALICO_IPV4POOL_CIDR": "10.65.0.0/16",
            "CALICO_IPV4POOL_VXLAN": "Always",
            "CALICO_IPV6POOL_CIDR": "fd00:65::/112",
            "CLUSTER_TYPE": "k8s,bgp",
            **environ,
        }
        argv = [sys.executable, "-m", "cni_calico.nodeagent.main", *flags]
        return subprocess.run(argv, env=environment, cwd=ROOT, capture_output=True, text=True, check=check, timeout=90)

    return calico_node


def everything(store: Datastore) -> dict[str, Any]:
    """Spec by key of all that is stored."""
    items = store.list(EverythingList(), Deadline.after(30)).items
    prefix = "/calico/resources/v3/projectcalico.org/"
    return {etcd_path(i.key).removeprefix(prefix): i.value.get("spec", i.value) for i in items}


# -- etcd -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def startup_etcd(tmp_path: Path) -> Iterator[tuple[Datastore, dict[str, str]]]:
    from tests.contract.etcd_process import Member, free_ports

    client, peer = free_ports(2)
    member = Member("one", f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}", tmp_path)
    member.start(f"one=http://127.0.0.1:{peer}")
    member.wait_serving()
    store = open_datastore(DatastoreConfig("etcdv3", etcd_endpoints=(member.client_url,)))
    try:
        yield store, {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": member.client_url}
    finally:
        store.close()
        member.stop()


@pytest.mark.etcd
def test_on_etcd(startup_etcd: tuple[Datastore, dict[str, str]], run: Run) -> None:
    store, environ = startup_etcd
    run("-startup", **environ)
    first = everything(store)
    upstream = json.loads((VECTORS / "etcd-dump-00-init.json").read_text())["kvs"]
    for tier in ("default", "kube-admin", "kube-baseline"):
        assert (
            first[f"tiers/{tier}"] == upstream[f"/calico/resources/v3/projectcalico.org/tiers/{tier}"]["value"]["spec"]
        )
    assert first["nodes/node1"]["bgp"] == {"ipv4Address": "10.99.0.11/24", "ipv6Address": "fd99::11/64"}
    assert first["clusterinformations/default"]["clusterType"] == "k8s,bgp"
    run("-startup", "-allocate-tunnel-addrs-run-once", **environ)
    second = everything(store)
    vtep = second["nodes/node1"].pop("ipv4VXLANTunnelAddr")
    assert {path: value for path, value in second.items() if not path.startswith("/calico/ipam")} == first
    assert second["/calico/ipam/v2/handle/vxlan-tunnel-addr-node1"]["block"] == {
        next(v["cidr"] for p, v in second.items() if "assignment" in p): 1
    }
    assert ip_address(vtep) in ip_network("10.65.0.0/16")


@pytest.mark.etcd
def test_waiting_for_etcd(startup_etcd: tuple[Datastore, dict[str, str]], run: Run) -> None:
    _, environ = startup_etcd
    environ = {**environ, "ETCD_ENDPOINTS": "http://127.0.0.1:9"}
    done = run("-startup", check=False, **environ)
    assert done.returncode == 1 and "Traceback" not in done.stderr


# -- Kubernetes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_kube(kube: Cluster) -> dict[str, str]:
    addresses = [{"type": "InternalIP", "address": a} for a in ("10.99.0.11", "fd99::11")]
    kube.create_node("node1")
    kube.request(
        "PATCH",
        "/api/v1/nodes/node1/status",
        {"status": {"addresses": addresses}},
        content_type="application/merge-patch+json",
    )
    return {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig()}


@pytest.mark.kubernetes
def test_on_kubernetes(kube: Cluster, kube_store: Datastore, on_kube: dict[str, str], run: Run) -> None:
    run("-startup", **on_kube)
    first = everything(kube_store)
    golden = json.loads((VECTORS / "k8s-01-startup.json").read_text())
    wanted = golden["nodes"][0]["metadata"]["annotations"]
    annotations = kube.request("GET", "/api/v1/nodes/node1")["metadata"]["annotations"]
    for name in ("projectcalico.org/IPv4Address", "projectcalico.org/IPv6Address"):
        assert annotations[name] == wanted[name]
    information = golden["clusterinformations"][0]["spec"]
    assert {**first["clusterinformations/default"], "clusterGUID": ""} == {**information, "clusterGUID": ""}
    assert first["felixconfigurations/default"].items() <= golden["felixconfigurations"][0]["spec"].items()
    assert not any(path.startswith("felixconfigurations/node.") for path in first)
    for tier in golden["tiers"]:
        assert first[f"tiers/{tier['metadata']['name']}"] == tier["spec"]
    pool = {**golden["ippools"][0]["spec"], "vxlanMode": "Always"}
    assert first["ippools/default-ipv4-ippool"] == pool
    audited = len(kube.audited())
    run("-startup", **on_kube)
    assert everything(kube_store) == first
    writes = [e for e in kube.audited(audited) if e["verb"] in ("create", "update", "patch", "delete")]
    assert [e for e in writes if e["user"]["username"] != "system:apiserver"] == []  # which renews a lease of its own


@pytest.mark.kubernetes
def test_tunnel_addresses_on_kubernetes(kube: Cluster, on_kube: dict[str, str], run: Run) -> None:
    run("-startup", **on_kube)
    run("-allocate-tunnel-addrs-run-once", **on_kube)
    annotations = kube.request("GET", "/api/v1/nodes/node1")["metadata"]["annotations"]
    vtep = annotations["projectcalico.org/IPv4VXLANTunnelAddr"]
    blocks = kube.request("GET", "/apis/crd.projectcalico.org/v1/ipamblocks")["items"]
    (attribute,) = blocks[0]["spec"]["attributes"]
    assert attribute == {
        "handle_id": "vxlan-tunnel-addr-node1",
        "secondary": {"node": "node1", "type": "vxlanTunnelAddress"},
    }
    run("-allocate-tunnel-addrs-run-once", **on_kube)
    again = kube.request("GET", "/api/v1/nodes/node1")["metadata"]["annotations"]
    assert again["projectcalico.org/IPv4VXLANTunnelAddr"] == vtep


@pytest.mark.kubernetes
def test_kubeadm_internal_ip_and_shutdown(
    kube: Cluster, kube_store: Datastore, on_kube: dict[str, str], run: Run
) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kubeadm-config", "namespace": "kube-system"},
        "data": {"ClusterConfiguration": "networking:\n  podSubnet: 10.244.0.0/16,fd44::/112\n"},
    }
    kube.ensure_namespace("kube-system")
    kube.ensure("/api/v1/namespaces/kube-system/configmaps", body)
    try:
        method = {"IP_AUTODETECTION_METHOD": "kubernetes-internal-ip", "IP": "autodetect", "IP6": ""}
        run("-startup", CALICO_IPV4POOL_CIDR="", CALICO_IPV6POOL_CIDR="", **{**on_kube, **method})
    finally:
        kube.request("DELETE", "/api/v1/namespaces/kube-system/configmaps/kubeadm-config")
    found = everything(kube_store)
    assert found["ippools/default-ipv4-ippool"]["cidr"] == "10.244.0.0/16"
    assert found["ippools/default-ipv6-ippool"]["cidr"] == "fd44::/112"
    assert found["clusterinformations/default"]["clusterType"] == "kdd,k8s,bgp,kubeadm"
    assert found["nodes/node1"]["bgp"]["ipv4Address"] == "10.99.0.11/32"  # no interface here holds it
    run("-shutdown", **on_kube)
    conditions = kube.request("GET", "/api/v1/nodes/node1")["status"]["conditions"]
    assert [(c["type"], c["status"], c["reason"]) for c in conditions] == [
        ("NetworkUnavailable", "True", "CalicoIsDown")
    ]


@pytest.mark.kubernetes
def test_a_node_that_kubernetes_does_not_know(on_kube: dict[str, str], run: Run) -> None:
    done = run("-startup", check=False, **{**on_kube, "NODENAME": "node9"})
    assert done.returncode == 1
    assert "Kubernetes has no node of that name" in done.stderr and "kubectl get nodes" in done.stderr


@pytest.mark.kubernetes
def test_the_agents_view_of_kubernetes(kube: Cluster, kube_store: Datastore, on_kube: dict[str, str], run: Run) -> None:
    run("-startup", "-allocate-tunnel-addrs-run-once", **on_kube)
    changed = threading.Event()
    sources = Sources(kube_store, "node1", changed.set)
    try:
        sources.wait_synced(Deadline.after(30))
        first = sources.snapshot()
        assert first.own is not None and str(first.own.ipv4) == "10.99.0.11/24"
        assert [str(pool.cidr) for pool in first.pools] == ["10.65.0.0/16", "fd00:65::/112"]
        assert [(block.node, block.used) for block in first.blocks] == [("node1", 1)]
        assert first.felix_default is not None and first.felix_default["logSeverityScreen"] == "Info"
        assert first.endpoints == () and first.problems == ()
        kube.create_pod(NAMESPACE, "web", "node1", annotations={"cni.projectcalico.org/podIP": "10.65.0.9/32"})
        until(lambda: sources.snapshot().endpoints, "the pod's endpoint", 30)
        (endpoint,) = sources.snapshot().endpoints
        assert endpoint.ip_networks == ()  # whoever may edit the pod can write the annotation
        status = {"status": {"podIP": "10.65.0.9", "podIPs": [{"ip": "10.65.0.9"}]}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/web/status"
        kube.request("PATCH", path, status, content_type="application/merge-patch+json")

        def networks() -> list[str]:
            return [str(network) for found in sources.snapshot().endpoints for network in found.ip_networks]

        until(networks, "the address of the pod's status", 30)
        assert networks() == ["10.65.0.9/32"]
        assert endpoint.interface_name == kubernetes_veth(NAMESPACE, "web")
        assert changed.is_set() and sources.healthy
    finally:
        sources.stop()
