"""Janitors in processes of their own, on a real etcd and on a real API server with the rights of the manifests: what
nodes and pods left goes, whoever of them is killed, and what somebody has stays.
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import ip_network
from pathlib import Path

import pytest

from cni_calico.ctl.main import run as run_calicoctl
from cni_calico.datastore.etcd.store import EtcdConfig, EtcdStore
from cni_calico.datastore.interface import Write
from cni_calico.model.documents.codec import encode, new_metadata
from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.model.resources import Resource, WorkloadEndpoint
from tests.contract.etcd_process import etcd_binary, single
from tests.deadlines import soon, until
from tests.e2e.janitors import NOW, SPACE, EtcdField, Field, KubeField
from tests.e2e.kubernetes.cluster import NODE_USER, Cluster, shared_cluster
from tests.e2e.kubernetes.records import left, of_node, put
from tests.e2e.kubernetes.roles import RBAC, documents, used


@pytest.fixture
def etcd_field(tmp_path: Path) -> Iterator[EtcdField]:
    if etcd_binary() is None:
        pytest.skip("needs etcd: run tests/setup/build-go-tools.sh")
    with single() as cluster:
        field = EtcdField(cluster.urls[0], tmp_path)
        try:
            yield field
        finally:
            field.close()


@pytest.fixture
def janitor_rights() -> Iterator[Cluster]:
    """An API server with nothing in it but the roles of calico-node, and those of a janitor among the agents."""
    kube = shared_cluster()
    kube.empty()
    kube.ensure_namespace(SPACE)
    kube.ensure_namespace("kube-system")
    with ExitStack() as undo:
        kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
        for document in (*documents("calico.yaml", *kinds), *documents("janitor.yaml")):
            metadata, kind = document["metadata"], document["kind"].lower() + "s"
            if metadata["name"].startswith("calico-node"):
                path = (
                    f"{RBAC}/namespaces/{metadata['namespace']}/{kind}" if "namespace" in metadata else f"{RBAC}/{kind}"
                )
                kube.ensure(path, document)
                undo.callback(kube.request, "DELETE", f"{path}/{metadata['name']}")
        yield kube
        kube.empty()


@pytest.fixture
def kube_field(janitor_rights: Cluster, tmp_path: Path) -> Iterator[KubeField]:
    field = KubeField(janitor_rights, tmp_path)
    try:
        yield field
    finally:
        field.close()


def require_stays(field: Field, *handles: str) -> None:
    assert {"net.podman", "net.bare", "vxlan-tunnel-addr-stays", *handles} <= set(field.held()), field.logs()


@pytest.mark.etcd
def test_on_etcd_a_nodes_leavings_go_whoever_is_killed(etcd_field: EtcdField) -> None:
    field = etcd_field
    field.populate()
    for name in ("one", "two", "three"):
        field.start(name)
    first = field.leader()
    field.delete_node("goes")
    until(lambda: "vxlan-tunnel-addr-goes" not in field.held(), f"released: {field.logs()}", 40)
    until(lambda: "goes" not in field.owners(), f"its block: {field.logs()}", 40)
    first.kill()
    field.create_node("goes-too")
    field.allocate("vxlan-tunnel-addr-goes-too", "goes-too", "Tunnel", type="vxlanTunnelAddress")
    field.delete_node("goes-too")
    second = field.leader()
    assert second is not first
    until(lambda: "goes-too" not in field.owners(), f"by another: {field.logs()}", 40)
    assert {h for h in field.handles() if h.startswith("vxlan")} == {"vxlan-tunnel-addr-stays"}
    require_stays(field)
    second.kill(signal.SIGTERM)  # no handler: as good as killed; the third follows when its lease is over
    assert field.leader() not in (first, second)


@pytest.mark.etcd
def test_on_etcd_a_holder_that_slept_through_its_lease_writes_nothing(etcd_field: EtcdField) -> None:
    """Stopped in the middle, followed by another, woken up: it stands by, and nothing live is touched."""
    field = etcd_field
    field.populate()
    first, _ = field.start("one"), field.start("two")
    until(lambda: first.leads or field.leader(), "one of them", 40)
    first = field.leader()
    first.process.send_signal(signal.SIGSTOP)
    first.leads = False
    second = field.leader()
    assert second is not first
    field.delete_node("goes")
    until(lambda: "goes" not in field.owners(), f"by the second: {field.logs()}", 40)
    first.process.send_signal(signal.SIGCONT)
    until(lambda: "this agent is no longer the janitor" in first.log.read_text(), f"it stands by: {field.logs()}", 40)
    assert second.leads and first.process.poll() is None
    require_stays(field)


@pytest.mark.kubernetes
def test_on_kubernetes_pods_and_nodes_that_are_gone(kube_field: KubeField) -> None:
    field, kube = kube_field, kube_field.kube
    since = len(kube.audited())
    field.populate()
    field.run_pod("dies", "stays", "c0ffee01")
    kept = {"k8s-pod-network.c0ffee02", "k8s-pod-network.c0ffee03", "k8s-pod-network.c0ffee05"}
    field.run_pod("lives", "stays", "c0ffee02")
    field.run_pod("completes", "stays", "c0ffee03")
    old_id = "c0ffee" + 58 * "0"
    for handle in (f"{SPACE}.gone", f"{SPACE}.completes", f"net.{old_id}", "net.sts.space.db.0"):
        field.allocate_bare(handle, "stays")
    field.allocate_bare(old_id, "goes")
    field.run_pod("again-0", "goes", "c0ffee04")  # a StatefulSet's: it comes back on the other node
    path = f"/api/v1/namespaces/{SPACE}/pods/completes/status"
    content = "application/merge-patch+json"
    kube.request("PATCH", path, {"status": {"phase": "Succeeded"}}, content_type=content)
    first = field.start("one")
    field.leader()
    field.start("two")
    field.delete_pod("dies")
    field.delete_pod("again-0")
    field.run_pod("again-0", "stays", "c0ffee05")
    field.delete_node("goes")
    until(lambda: "k8s-pod-network.c0ffee01" not in field.held(), f"the dead pod's: {field.logs()}", 40)
    until(lambda: "k8s-pod-network.c0ffee04" not in field.held(), f"the one before: {field.logs()}", 40)
    until(lambda: "goes" not in field.owners(), f"the node's block: {field.logs()}", 40)
    for handle in (f"{SPACE}.gone", old_id):
        until(lambda handle=handle: handle not in field.held(), f"{handle}: {field.logs()}", 40)
    assert kept | {f"{SPACE}.completes", f"net.{old_id}", "net.sts.space.db.0"} <= set(field.held())
    first.kill()
    field.delete_pod("lives")
    second = field.leader()
    assert second is not first
    until(lambda: "k8s-pod-network.c0ffee02" not in field.held(), f"by another: {field.logs()}", 40)
    require_stays(field, "k8s-pod-network.c0ffee03", "k8s-pod-network.c0ffee05")
    until(lambda: field.handles() <= set(field.held()), "no handle holds nothing", 20)
    requests, refused = used(kube, NODE_USER, since)
    assert not refused
    assert {
        ("get", "leases"),
        ("create", "leases"),
        ("update", "leases"),
        ("get", "pods"),
        ("list", "pods"),
        ("watch", "pods"),
        ("watch", "ipamhandles"),
        ("get", "kubecontrollersconfigurations"),
    } <= requests


@pytest.mark.kubernetes
def test_calicoctl_says_what_would_be_released_and_why(
    kube_field: KubeField, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    field, kube = kube_field, kube_field.kube
    field.populate()
    field.run_pod("lives", "stays", "c0ffee02")
    gone = field.run_pod("dies", "stays", "c0ffee01")
    field.delete_pod("dies")
    field.delete_node("goes")
    config = tmp_path / "calicoctl.cfg"
    config.write_text(
        "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\nspec:\n  datastoreType: kubernetes\n"
        f"  kubeconfig: {kube.kubeconfig()}\n"
    )
    before = field.held()
    assert run_calicoctl(["-c", str(config), "ipam", "check"], {}) == 1  # it found something
    _, _, lost = capsys.readouterr().out.partition("Scanning for what the janitor would release...\n")
    lines = lost.splitlines()
    assert f"  {gone} (handle k8s-pod-network.c0ffee01): pod {SPACE}/dies is not on node stays any more" in lines
    assert any("(handle vxlan-tunnel-addr-goes): there is no Node goes" in line for line in lines)
    assert lines[0] == "Found 2 things without an owner." and not any("c0ffee02" in line for line in lines)
    assert field.held() == before


@pytest.mark.kubernetes
@pytest.mark.slow
def test_on_kubernetes_a_quiet_cluster_costs_no_lists(kube_field: KubeField) -> None:
    """Who stands by only looks at the lease; who leads follows watches."""
    field, kube = kube_field, kube_field.kube
    field.populate()
    for number in range(20):
        field.run_pod(f"p{number}", "stays", f"c0ffee{number:02}")
    field.start("one")
    field.leader()
    field.start("two")
    until(lambda: ("watch", "ipamhandles") in used(kube, NODE_USER, 0)[0], "its watches", 30)
    select.select((), (), (), 3.0)  # what the start brought is over when the lease has been renewed some times
    since, end = len(kube.audited()), time.monotonic() + 6
    until(lambda: time.monotonic() > end, "a while", 20)
    requests, _ = used(kube, NODE_USER, since)
    assert requests <= {("get", "leases"), ("update", "leases"), ("get", "kubecontrollersconfigurations")}, requests
    assert len(field.held()) == 24


@pytest.mark.kubernetes
@pytest.mark.etcd
def test_etcd_beside_kubernetes_a_pods_endpoint_goes_with_it(janitor_rights: Cluster, tmp_path: Path) -> None:
    """The datastore is etcd, pods are Kubernetes': endpoints and addresses of those that are gone."""
    since = len(janitor_rights.audited())
    for document in documents("calico-etcd.yaml", "ClusterRole"):  # the role that goes with etcd
        if document["metadata"]["name"] == "calico-node":
            janitor_rights.request("PUT", f"{RBAC}/clusterroles/calico-node", document)
    with single() as cluster:
        environ = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": cluster.urls[0]}
        field = KubeField(janitor_rights, tmp_path, environ)
        field.store.close()
        field.store = EtcdStore(EtcdConfig(endpoints=(cluster.urls[0],)))
        try:
            field.pool()
            for pod, container in (("dies", "c0ffee01"), ("lives", "c0ffee02")):
                janitor_rights.create_pod(SPACE, pod, "kube-1")
                address = field.allocate(f"net.{container}", "n1", namespace=SPACE, pod=pod)
                key = ResourceKey("WorkloadEndpoint", f"n1-k8s-{pod}-eth0", SPACE)
                metadata = new_metadata(key.name, namespace=SPACE, uid="u", now=NOW)
                networks = (ip_network(address),)
                endpoint = WorkloadEndpoint(
                    metadata, "k8s", "n1", "eth0", f"cali{pod}", container_id=container, pod=pod, ip_networks=networks
                )
                field.store.commit([Write.create(key, encode(endpoint))], soon())
            for name, kubernetes in (("n1", "kube-1"), ("n2", "kube-2")):
                spec = {"orchRefs": [{"nodeName": kubernetes, "orchestrator": "k8s"}]}
                node = Resource("Node", new_metadata(name, uid="u", now=NOW), spec=spec)
                field.store.commit([Write.put(ResourceKey("Node", name), encode(node))], soon())
                janitor_rights.create_node(kubernetes)
            field.allocate("vxlan-tunnel-addr-n2", "n2", "Tunnel", type="vxlanTunnelAddress")
            mine, theirs = put(field.store, of_node("n2")), put(field.store, of_node("n1"))
            field.start("n1")
            field.leader()
            field.delete_pod("dies")
            field.delete_node("kube-2")
            until(lambda: set(field.held()) == {"net.c0ffee02"}, f"released: {field.logs()}", 40)
            nodes = field.store.list(ResourceList("Node"), soon()).items
            assert [item.key.name for item in nodes] == ["n1"]
            assert left(field.store, mine) == set() and left(field.store, theirs) == theirs
            endpoints = field.store.list(ResourceList("WorkloadEndpoint"), soon()).items
            assert [item.key.name for item in endpoints] == ["n1-k8s-lives-eth0"]
            assert not used(janitor_rights, NODE_USER, since)[1], "something was refused"
        finally:
            field.close()
