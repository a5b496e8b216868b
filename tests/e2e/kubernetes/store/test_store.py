"""The Kubernetes datastore on a real API server: what the contract suite cannot say for all backends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.main import run as run_calicoctl
from cni_calico.datastore.interface import Write
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    Compacted,
    DatastoreDenied,
    DatastoreError,
    DatastoreUnavailable,
    DatastoreUnsupported,
    RecordRefused,
)
from cni_calico.model.access import CRD_ROOT, KubernetesAccess
from cni_calico.model.documents.codec import decode_pool
from cni_calico.model.keys import (
    AffinityKey,
    AffinityList,
    BlockKey,
    BlockList,
    EverythingList,
    HandleKey,
    HandleList,
    ResourceKey,
)
from cni_calico.model.kubernetes.custom import affinity_labels
from tests.e2e.kubernetes.cluster import NODE_USER, Cluster, running_cluster
from tests.fixtures.kubernetes import NAMESPACE

pytestmark = pytest.mark.kubernetes

VECTORS = Path(__file__).parents[3] / "golden" / "vectors"
NODE = "node-1"
ENDPOINT = ResourceKey("WorkloadEndpoint", "node--1-k8s-web--0-eth0", NAMESPACE)
BLOCK = ip_network("10.65.0.0/26")


def block(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "cidr": str(BLOCK),
        "affinity": f"host:{NODE}",
        "allocations": [None] * 64,
        "unallocated": list(range(64)),
        "attributes": [],
        "sequenceNumber": number,
        "sequenceNumberForAllocation": {},
        "deleted": False,
        **changes,
    }


# -- what upstream stored ---------------------------------------------------------------------------------------------


def test_a_patch_that_a_role_does_not_allow_says_what_to_do(kube: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    pool = {"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": {"name": "p"}}
    kube.request("POST", f"{CRD_ROOT}/ippools", {**pool, "spec": {"cidr": "10.65.0.0/16", "blockSize": 26}})
    role: dict[str, Any] = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "only-reads"}}
    first = ["clusterinformations", "tiers"]  # what calicoctl makes in a cluster where it is missing
    rules = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]},
        {"apiGroups": ["crd.projectcalico.org"], "resources": first, "verbs": ["create"]},
    ]
    subject = {"kind": "User", "name": NODE_USER, "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "only-reads"}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    with ExitStack() as undo:
        for plural, document in (
            ("clusterroles", {**role, "kind": "ClusterRole", "rules": rules}),
            (
                "clusterrolebindings",
                {**role, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]},
            ),
        ):
            kube.ensure(f"{rbac}/{plural}", document)
            undo.callback(kube.request, "DELETE", f"{rbac}/{plural}/only-reads")
        environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig("node-token")}
        patch = ["patch", "ippool", "p", "-p", '{"spec":{"disabled":true}}']
        assert run_calicoctl(patch, environ) == 1
        said = capsys.readouterr().err
        kube.request("POST", "/api/v1/nodes", {"metadata": {"name": "patched"}})
        undo.callback(kube.request, "DELETE", "/api/v1/nodes/patched")
        patch = ["patch", "node", "patched", "-p", '{"spec":{"bgp":{"asNumber":64512}}}']
        assert run_calicoctl(patch, environ) == 1
        assert "it is the Kubernetes node: use kubectl" in capsys.readouterr().err
        kube.create_pod(NAMESPACE, "web-0", NODE)
        undo.callback(kube.request, "DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/web-0")
        changed = '{"spec":{"containerID":"c1","ipNetworks":["10.65.0.7/32"]}}'
        patch = ["patch", "workloadendpoint", ENDPOINT.name, "-n", NAMESPACE, "-p", changed]
        assert run_calicoctl(patch, environ) == 1
        of_a_pod = capsys.readouterr().err
        assert "in this datastore a WorkloadEndpoint is a pod: change the pod itself with kubectl" in of_a_pod
        assert "the roles in the manifests" not in of_a_pod
    assert "ippools.crd.projectcalico.org" in said and '"disabled":true' in said and "grant him that verb" in said
    assert "the roles in the manifests" not in said


@pytest.mark.parametrize("name", sorted(path.name for path in VECTORS.glob("k8s-0*.json")))
def test_what_upstream_stored_is_accepted_read_and_written_back(
    name: str, kube: Cluster, kube_store: KubernetesStore, soon: Deadline
) -> None:
    dump = {k: v for k, v in json.loads((VECTORS / name).read_text()).items() if k not in ("nodes", "pods")}
    stored: dict[tuple[str, str], Any] = {}
    for plural, objects in dump.items():
        for obj in objects:
            metadata = {k: v for k, v in obj["metadata"].items() if k in ("name", "namespace", "labels", "annotations")}
            made = kube.request("POST", f"{CRD_ROOT}/{plural}", {**obj, "metadata": metadata})
            if plural == "kubecontrollersconfigurations":
                path = f"{CRD_ROOT}/{plural}/{metadata['name']}/status"
                made = kube.request("PUT", path, {**made, "status": obj["status"]})
            assert (made["spec"], made.get("status")) == (obj["spec"], obj.get("status"))
            stored[plural, metadata["name"]] = made
    records = kube_store.list(EverythingList(), soon).items
    assert len(records) == len(stored)
    for record in records:
        again = kube_store.get(record.key, soon)
        assert again == record
        [written] = kube_store.commit([Write.update(again, again.value)], soon).stored
        assert written.value == record.value
    for (plural, object_name), before in stored.items():
        after = kube.request("GET", f"{CRD_ROOT}/{plural}/{object_name}")
        for obj in (before, after):
            for field in ("resourceVersion", "generation", "managedFields"):
                obj["metadata"].pop(field, None)
        assert after == before


# -- validation by the API server -------------------------------------------------------------------------------------


def pool(name: str, **spec: Any) -> tuple[ResourceKey, dict[str, Any]]:
    return ResourceKey("IPPool", name), {"metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    "spec",
    [
        {"cidr": "10.0.0.0"},
        {"cidr": "300.0.0.0/8"},
        {},
        {"cidr": "10.0.0.0/16", "blockSize": 33},
        {"cidr": "10.0.0.0/16", "blockSize": 19},
        {"cidr": "10.0.0.0/28", "blockSize": 26},
        {"cidr": "fd00::/48", "blockSize": 64},
        {"cidr": "10.0.0.0/16", "ipipMode": "Sometimes"},
        {"cidr": "10.0.0.0/16", "ipipMode": "Always", "vxlanMode": "CrossSubnet"},
        {"cidr": "fd00::/48", "ipipMode": "Always"},
        {"cidr": "10.0.0.0/16", "allowedUses": ["Play"]},
        {"cidr": "10.0.0.0/16", "natOutgoing": "yes"},
    ],
    ids=range(12),
)
def test_a_wrong_pool_is_refused(spec: dict[str, Any], kube_store: KubernetesStore, soon: Deadline) -> None:
    key, value = pool("wrong", **spec)
    with pytest.raises(RecordRefused, match=r"cannot create IPPool wrong: .*spec"):
        kube_store.commit([Write.create(key, value)], soon)


def test_what_must_not_change_does_not(kube_store: KubernetesStore, soon: Deadline) -> None:
    key, value = pool("p", cidr="10.0.0.0/16", blockSize=26, natOutgoing=False)
    [made] = kube_store.commit([Write.create(key, value)], soon).stored
    for change in ({"cidr": "10.1.0.0/16"}, {"blockSize": 27}):
        with pytest.raises(RecordRefused, match="cannot be changed"):
            kube_store.commit([Write.update(made, {**value, "spec": {**value["spec"], **change}})], soon)
    [changed] = kube_store.commit(
        [Write.update(made, {**value, "spec": {**value["spec"], "natOutgoing": True}})], soon
    ).stored
    assert decode_pool(key, changed.value).nat_outgoing


def test_fields_of_newer_releases_are_kept(kube_store: KubernetesStore, soon: Deadline) -> None:
    key, value = pool("p", cidr="10.0.0.0/16", futureField={"a": [1]}, awsSubnetID="subnet-1")
    kube_store.commit([Write.create(key, value)], soon)
    assert kube_store.get(key, soon).value["spec"]["futureField"] == {"a": [1]}


def test_users_metadata_of_a_resource_comes_back(kube: Cluster, kube_store: KubernetesStore, soon: Deadline) -> None:
    key, value = pool("p", cidr="10.0.0.0/16")
    value["metadata"] |= {"labels": {"site": "a"}, "annotations": {"note": "b"}}
    kube_store.commit([Write.create(key, value)], soon)
    path = f"{CRD_ROOT}/ippools/p"
    owned = [{"apiVersion": "v1", "kind": "Namespace", "name": "x", "uid": "1"}]
    patch = {"metadata": {"finalizers": ["example.org/hold"], "ownerReferences": owned}}
    kube.request("PATCH", path, patch, content_type="application/merge-patch+json")
    read = kube_store.get(key, soon)
    assert (read.value["metadata"]["labels"], read.value["metadata"]["annotations"]) == ({"site": "a"}, {"note": "b"})
    kube_store.commit([Write.update(read, {**read.value, "spec": {"cidr": "10.0.0.0/16", "disabled": True}})], soon)
    after = kube.request("GET", path)
    assert after["metadata"]["finalizers"] == ["example.org/hold"] and after["metadata"]["ownerReferences"] == owned
    kube.request("PATCH", path, {"metadata": {"finalizers": None}}, content_type="application/merge-patch+json")


# -- IPAM records -----------------------------------------------------------------------------------------------------


def test_affinities_are_found_by_their_labels(kube: Cluster, kube_store: KubernetesStore, soon: Deadline) -> None:
    mine = [AffinityKey(NODE, BLOCK), AffinityKey(NODE, ip_network("fd00::/122"))]
    others = [AffinityKey("node-10", BLOCK), AffinityKey(NODE, ip_network("10.65.0.64/26"), "virtual")]
    for key in (*mine, *others):
        kube_store.commit([Write.create(key, {"state": "pending", "deleted": False})], soon)
    assert [v.key for v in kube_store.list(AffinityList(NODE), soon).items] == mine
    assert [v.key for v in kube_store.list(AffinityList(NODE, 6), soon).items] == mine[1:]
    assert [v.key for v in kube_store.list(AffinityList(type="virtual"), soon).items] == others[1:]
    assert len(kube_store.list(AffinityList(), soon).items) == 3
    obj = kube.request("GET", f"{CRD_ROOT}/blockaffinities/node-1-10-65-0-0-26")
    assert obj["spec"]["deleted"] == "false" and obj["metadata"]["labels"] == affinity_labels(mine[0])


@pytest.mark.parametrize(
    ("key", "value", "plural", "mark"),
    [
        (BlockKey(BLOCK), block(), "ipamblocks", True),
        (HandleKey("net.abc"), {"block": {str(BLOCK): 1}, "deleted": False}, "ipamhandles", True),
        (AffinityKey(NODE, BLOCK), {"state": "confirmed", "deleted": False}, "blockaffinities", "true"),
    ],
    ids=["block", "handle", "affinity"],
)
def test_a_half_done_deletion_is_finished_by_whoever_reads(
    key: Any, value: Any, plural: str, mark: Any, kube: Cluster, kube_store: KubernetesStore, soon: Deadline
) -> None:
    def half_delete() -> None:
        kube_store.commit([Write.create(key, value)], soon)
        [obj] = kube.request("GET", f"{CRD_ROOT}/{plural}")["items"]
        obj["spec"]["deleted"] = mark
        kube.request("PUT", f"{CRD_ROOT}/{plural}/{obj['metadata']['name']}", obj)

    def left() -> int:
        return len(kube.request("GET", f"{CRD_ROOT}/{plural}")["items"])

    half_delete()
    assert kube_store.get(key, soon) is None and left() == 0
    half_delete()
    listing = {"ipamblocks": BlockList(), "ipamhandles": HandleList(), "blockaffinities": AffinityList()}[plural]
    assert not kube_store.list(listing, soon).items and left() == 0
    half_delete()
    [made] = kube_store.commit([Write.create(key, value)], soon).stored
    assert left() == 1
    kube_store.commit([Write.delete(made)], soon)
    assert left() == 0


def test_a_deletion_is_two_requests_and_the_record_is_marked_first(
    kube: Cluster, kube_store: KubernetesStore, soon: Deadline
) -> None:
    key = HandleKey("net.abc")
    [made] = kube_store.commit([Write.create(key, {"block": {str(BLOCK): 1}, "deleted": False})], soon).stored
    before = kube_store.round_trips.writes, kube_store.round_trips.reads
    watch = kube.store().watch(HandleList(), made.revision)
    kube_store.commit([Write.delete(made)], soon)
    assert (kube_store.round_trips.writes - before[0], kube_store.round_trips.reads - before[1]) == (2, 0)
    with watch:
        assert [e.value for e in watch.next(10)] == [None]
        assert not watch.next(0.2)


def test_the_end_of_a_handle_can_be_left_for_later(kube: Cluster, kube_store: KubernetesStore, soon: Deadline) -> None:
    """Once it is marked it is gone for everybody, whether or not its deletion is ever finished."""
    later: list[Callable[[], object]] = []
    kube_store.finish_by(later.append)
    handle, affinity = HandleKey("net.abc"), AffinityKey(NODE, BLOCK)
    [made] = kube_store.commit([Write.create(handle, {"block": {str(BLOCK): 1}, "deleted": False})], soon).stored
    [owned] = kube_store.commit([Write.create(affinity, {"state": "confirmed", "deleted": False})], soon).stored
    kube_store.commit([Write.delete(made)], soon)
    kube_store.commit([Write.delete(owned)], soon)
    assert not kube.request("GET", f"{CRD_ROOT}/blockaffinities")["items"], "others are deleted at once"
    [left] = kube.request("GET", f"{CRD_ROOT}/ipamhandles")["items"]
    assert left["spec"]["deleted"] is True and len(later) == 1
    later.pop()()
    assert not kube.request("GET", f"{CRD_ROOT}/ipamhandles")["items"]
    [made] = kube_store.commit([Write.create(handle, {"block": {str(BLOCK): 1}, "deleted": False})], soon).stored
    kube_store.commit([Write.delete(made)], soon)
    [again] = kube_store.commit([Write.create(handle, {"block": {str(BLOCK): 2}, "deleted": False})], soon).stored
    later.pop()()
    assert kube_store.get(handle, soon) == again, "a new handle of that name is not the one that was to go"


def test_a_long_node_name_is_shortened(kube_store: KubernetesStore, soon: Deadline) -> None:
    node = ".".join(["n" * 60] * 4)
    key = AffinityKey(node, ip_network("fd00:65:aaaa:bbbb:cccc:dddd:eeee:0/122"))
    kube_store.commit([Write.create(key, {"state": "pending", "deleted": False})], soon)
    assert kube_store.get(key, soon) is not None
    assert [v.key for v in kube_store.list(AffinityList(node), soon).items] == [key]


# -- revisions, rights, servers ---------------------------------------------------------------------------------------


def test_lists_at_a_revision(kube_store: KubernetesStore, soon: Deadline) -> None:
    one, two = HandleKey("net.a"), HandleKey("net.b")
    value = {"block": {}, "deleted": False}
    first = kube_store.commit([Write.create(one, value)], soon)
    kube_store.commit([Write.create(two, value)], soon)
    assert [v.key for v in kube_store.list(HandleList(), soon, revision=first.revision).items] == [one]


def test_a_watch_from_too_long_ago_is_compacted(kube_store: KubernetesStore) -> None:
    with kube_store.watch(HandleList(), "1") as watch, pytest.raises(Compacted):
        for _ in range(10):
            watch.next(5)


def test_a_missing_right_is_named(kube: Cluster, soon: Deadline) -> None:
    nobody = kube.store("nobody-token")
    for call, words in (
        (lambda: nobody.get(HandleKey("net.a"), soon), ("read handle net.a", "get", "ipamhandles")),
        (lambda: nobody.list(BlockList(), soon), ("list", "list", "ipamblocks")),
        (
            lambda: nobody.commit([Write.create(BlockKey(BLOCK), block())], soon),
            ("create block", "create", "ipamblocks"),
        ),
        (lambda: nobody.get(ENDPOINT, soon), ("read WorkloadEndpoint", "get", "pods")),
    ):
        with pytest.raises(DatastoreDenied) as caught:
            call()
        text = str(caught.value)
        assert 'User "nobody" cannot' in text and all(word in text for word in words)
        assert caught.value.details


def test_a_wrong_token_is_denied(kube: Cluster, soon: Deadline) -> None:
    with pytest.raises(DatastoreDenied, match="Unauthorized"):
        kube.store("no-such-token").get(HandleKey("net.a"), soon)


def test_a_server_of_another_authority_is_not_trusted(kube: Cluster, tmp_path: Path, soon: Deadline) -> None:
    import subprocess

    other = tmp_path / "ca.crt"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{tmp_path}/key"]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, "-out", str(other), "-subj", "/CN=other"], check=True, capture_output=True
    )
    access = KubernetesAccess(api_root=kube.url, token="admin-token", certificate_authority=str(other))
    with pytest.raises(DatastoreError, match=r"(?i)certificate.verify.failed"):
        KubernetesStore(access).get(HandleKey("net.a"), soon)


def test_client_certificates_and_plugins(kube: Cluster, soon: Deadline) -> None:
    certificate = {"client-certificate": "cert.crt", "client-key": "cert.key"}
    with pytest.raises(DatastoreDenied, match='User "cert-user" cannot'):
        KubernetesStore(KubernetesAccess(kubeconfig=kube.kubeconfig("by-certificate", **certificate))).get(
            HandleKey("net.a"), soon
        )
    version = "client.authentication.k8s.io/v1"
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": {"token": "admin-token"}})
    plugin = {
        "apiVersion": version,
        "command": sys.executable,
        "args": ["-c", f"print({answer!r})"],
        "interactiveMode": "Never",
    }
    path = kube.kubeconfig("by-plugin", exec=plugin)
    assert KubernetesStore(KubernetesAccess(kubeconfig=path)).get(HandleKey("net.a"), soon) is None


@pytest.mark.slow
def test_without_custom_resource_definitions_the_missing_ones_are_named(soon: Deadline) -> None:
    with running_cluster() as bare:
        empty = bare.store()
        for call in (
            lambda: empty.get(HandleKey("net.a"), soon),
            lambda: empty.list(HandleList(), soon),
            lambda: empty.commit([Write.create(HandleKey("net.a"), {"block": {}})], soon),
            lambda: empty.list(EverythingList(), soon),
        ):
            with pytest.raises(DatastoreUnsupported, match="does not know /apis/crd"):
                call()


@pytest.mark.slow
def test_a_restarted_server_is_found_again_and_watches_go_on(soon: Deadline) -> None:
    with running_cluster() as own:
        own.apply_definitions()
        used = own.store()
        value = {"block": {}, "deleted": False}
        with used.watch(HandleList(), used.list(HandleList(), soon).revision) as watch:
            used.commit([Write.create(HandleKey("net.a"), value)], soon)
            assert watch.next(10)
            own.stop("kube-apiserver")
            with pytest.raises(DatastoreError):
                used.get(HandleKey("net.a"), soon)
            own.start_apiserver()
            until = Deadline.after(60)
            used.commit([Write.put(HandleKey("net.b"), value)], until)
            seen: set[Any] = set()
            while HandleKey("net.b") not in seen and not until.expired():
                try:
                    seen |= {event.key for event in watch.next(5)}
                except Compacted:  # the new server remembers nothing older than itself
                    seen |= {item.key for item in used.list(HandleList(), until).items}
                except DatastoreUnavailable:
                    continue
            assert HandleKey("net.b") in seen
