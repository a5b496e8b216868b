"""A cluster whose only definitions are those of projectcalico.org/v3: what is stored, by us and by kubectl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.interface import CommitConflict, Versioned, Write
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.errors import DatastoreUnsupported, RecordRefused
from cni_calico.model.access import API_GROUP
from cni_calico.model.keys import (
    AffinityKey,
    AffinityList,
    BlockKey,
    BlockList,
    EverythingList,
    HandleKey,
    HandleList,
    IPAMConfigKey,
    Key,
    ResourceKey,
    ResourceList,
)
from cni_calico.model.kubernetes import custom
from tests.deadlines import soon
from tests.e2e.kubernetes.cluster import CNI_USER, NATIVE_ROOT, Cluster, native_cluster, plurals_of
from tests.e2e.kubernetes.cluster import read as kubectl_get
from tests.e2e.kubernetes.roles import node_with_role, used
from tests.fixtures.kubernetes import NAMESPACE
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.kubernetes

VECTORS = Path(__file__).parents[3] / "golden" / "vectors"
BLOCK = ip_network("10.65.0.0/26")


@pytest.fixture
def native() -> Cluster:
    made = native_cluster()
    made.empty(NATIVE_ROOT)
    made.ensure_namespace(NAMESPACE)
    return made


@pytest.fixture
def native_store(native: Cluster) -> Iterator[KubernetesStore]:
    """Nothing says which group it is."""
    opened = native.store()
    yield opened
    opened.close()


def resource(kind: str, name: str, spec: Any, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "projectcalico.org/v3",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def what_upstream_stored() -> dict[Key, Any]:
    """Keys and documents, from dumps of the other group; of what is there more than once the last."""
    found: dict[Key, Any] = {}
    for path in sorted(VECTORS.glob("k8s-0*.json")):
        dump = json.loads(path.read_text())
        for plural in (plural for plural in dump if plural not in ("nodes", "pods")):
            found.update(custom.read_object(obj) for obj in dump[plural])
    return found


def without_metadata(item: Versioned) -> dict[str, Any]:
    return {name: value for name, value in item.value.items() if name != "metadata"}


def test_every_record_of_upstreams_is_written_read_listed_and_written_again(
    native: Cluster, native_store: KubernetesStore
) -> None:
    wanted = what_upstream_stored()
    created = {key: native_store.commit([Write.create(key, value)], soon()).stored[0] for key, value in wanted.items()}
    for key, item in created.items():
        filled = {"maxBlocksPerHost": 0} if isinstance(key, IPAMConfigKey) else {}  # the only default that is new here
        assert without_metadata(item) == filled | {k: part for k, part in wanted[key].items() if k != "metadata"}
        assert item.uid and item.revision
    assert {item.key: item for item in native_store.list(EverythingList(), soon()).items} == created
    for item in created.values():
        read = native_store.get(item.key, soon())
        assert read == item
        [written] = native_store.commit([Write.update(read, read.value)], soon()).stored
        assert written.revision == item.revision, "nothing has changed"
    plurals = {
        plural for plural in plurals_of(NATIVE_ROOT) if native.request("GET", f"{NATIVE_ROOT}/{plural}")["items"]
    }
    assert {"ippools", "ipamblocks", "blockaffinities", "ipamhandles", "ipamconfigurations"} <= plurals
    assert "projectcalico.org/metadata" not in native.kubectl("get", ",".join(plurals), "-A", "-o", "json")


def test_what_addresses_leave_has_the_form_that_upstream_reads(native: Cluster, native_store: KubernetesStore) -> None:
    affinity, handle = AffinityKey("n1", BLOCK), HandleKey("Net.C1")
    block = {"cidr": str(BLOCK), "affinity": "host:n1", "allocations": [None] * 64, "unallocated": list(range(64))}
    config = {"strict_affinity": True, "auto_allocate_blocks": True, "maxBlocksPerHost": 3}
    for key, value in (
        (affinity, {"state": "pending", "deleted": False}),
        (handle, {"block": {str(BLOCK): 1}, "deleted": False}),
        (BlockKey(BLOCK), {**block, "attributes": [], "sequenceNumber": 1, "deleted": False}),
        (IPAMConfigKey(), config),
    ):
        native_store.commit([Write.create(key, value)], soon())
    stored = native.request("GET", f"{NATIVE_ROOT}/blockaffinities/n1-10-65-0-0-26")
    assert stored["spec"]["deleted"] is False
    assert stored["metadata"]["labels"] == custom.affinity_labels(affinity) and "annotations" not in stored["metadata"]
    [mine] = native_store.list(AffinityList("n1", 4), soon()).items
    assert mine.key == affinity
    assert native.request("GET", f"{NATIVE_ROOT}/ipamhandles/net.c1")["spec"]["handleID"] == "Net.C1"
    found = native.request("GET", f"{NATIVE_ROOT}/ipamconfigurations/default")["spec"]
    assert found == {"strictAffinity": True, "autoAllocateBlocks": True, "maxBlocksPerHost": 3}
    native_store.commit([Write.remove(affinity), Write.remove(handle)][:1], soon())
    assert native_store.get(affinity, soon()) is None and not native_store.list(AffinityList("n1", 4), soon()).items
    with pytest.raises(RecordRefused, match="no block can belong to 'host:a b'"):
        native_store.commit([Write.put(BlockKey(BLOCK), {**block, "affinity": "host:a b", "attributes": []})], soon())


def test_a_record_made_anew_is_another_one_by_its_uid_and_revision(native_store: KubernetesStore) -> None:
    key = ResourceKey("GlobalNetworkSet", "s")
    [old] = native_store.commit(
        [Write.create(key, resource("GlobalNetworkSet", "s", {"nets": ["10.0.0.0/8"]}))], soon()
    ).stored
    [new] = native_store.commit([Write.update(old, {**old.value, "spec": {"nets": ["10.1.0.0/16"]}})], soon()).stored
    for write in (Write.update(old, old.value), Write.delete(old)):
        with pytest.raises(CommitConflict) as caught:
            native_store.commit([write], soon())
        assert caught.value.failed[0].current == new
    native_store.commit([Write.delete(new)], soon())
    [again] = native_store.commit([Write.create(key, {**old.value, "metadata": {"name": "s"}})], soon()).stored
    assert again.uid not in ("", old.uid) and old.uid == new.uid
    with pytest.raises(CommitConflict):
        native_store.commit([Write.update(replace(new, revision=again.revision), new.value)], soon())


def test_metadata_of_a_resource_is_kubernetes_own(native: Cluster, native_store: KubernetesStore) -> None:
    native.kubectl("create", "configmap", "owner", "-n", NAMESPACE)
    owner = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": kubectl_get(native, "configmap", "owner", "-n", NAMESPACE)["metadata"]["uid"],
    }
    key = ResourceKey("NetworkSet", "set", NAMESPACE)
    more = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "ownerReferences": [owner], "finalizers": ["x.y/z"]}
    wanted = resource("NetworkSet", "set", {"nets": []}, namespace=NAMESPACE, **more)
    [made] = native_store.commit([Write.create(key, wanted)], soon()).stored
    stored = kubectl_get(native, "networksets.projectcalico.org", "set", "-n", NAMESPACE)["metadata"]
    assert {name: stored[name] for name in more} == more
    assert made.value["metadata"]["uid"] == made.uid == stored["uid"]
    applied = {**wanted, "metadata": {"name": "set", "namespace": NAMESPACE, "labels": {"a": "c"}}}
    [written] = native_store.commit([Write.update(made, applied)], soon()).stored
    after = written.value["metadata"]
    assert (after["labels"], after["finalizers"], after["ownerReferences"]) == ({"a": "c"}, ["x.y/z"], [owner])
    assert "annotations" not in after
    released = {**written.value, "metadata": {**after, "finalizers": []}}
    native_store.commit([Write.update(written, released)], soon())
    native_store.commit([Write.remove(key)], soon())
    assert native_store.get(key, soon()) is None


def test_statuses_are_written_through_the_subresource(native_store: KubernetesStore) -> None:
    for kind, spec in (("IPPool", {"cidr": "10.65.0.0/16"}), ("Tier", {"order": 5})):
        key = ResourceKey(kind, "one")
        condition = {"type": "Ready", "status": "True", "reason": "OK"}
        wanted = resource(kind, "one", spec) | {"status": {"conditions": [condition]}}
        [made] = native_store.commit([Write.create(key, wanted)], soon()).stored
        assert made.value["status"] == wanted["status"] and native_store.get(key, soon()) == made
        changed = {**made.value, "status": {"conditions": [{**condition, "status": "False"}]}}
        [written] = native_store.commit([Write.update(made, changed)], soon()).stored
        assert written.value["status"] == changed["status"] and native_store.get(key, soon()) == written
        [kept] = native_store.commit([Write.update(written, resource(kind, "one", spec))], soon()).stored
        [same] = native_store.commit([Write.update(kept, {**kept.value, "status": {}})], soon()).stored
        assert kept.value["status"] == same.value["status"] == changed["status"], "who writes no status leaves it"


def test_changes_are_watched_from_a_list_on(native: Cluster, native_store: KubernetesStore) -> None:
    handle = HandleKey("net.one")
    native_store.commit([Write.create(handle, {"block": {}, "deleted": False})], soon())
    listed = native_store.list(HandleList(), soon())
    assert [item.key for item in listed.items] == [handle]
    with native_store.watch(HandleList(), listed.revision) as watch:
        native.kubectl(
            "create",
            "-f",
            "-",
            stdin=json.dumps(resource("IPAMHandle", "net.two", {"handleID": "net.Two", "block": {}, "deleted": False})),
        )
        [event] = watch.next(30)
        assert event.key == HandleKey("net.Two") and event.value is not None
        native_store.commit([Write.remove(handle)], soon())
        [event] = watch.next(30)
        assert event.key == handle


def test_kubectl_gets_defaults_columns_and_selectable_tiers(native: Cluster, native_store: KubernetesStore) -> None:
    wanted = [
        resource("IPPool", "p", {"cidr": "10.65.0.0/16"}),
        resource("Tier", "t", {"order": 1}),
        resource("GlobalNetworkPolicy", "web", {"tier": "t", "selector": "all()"}),
        resource("GlobalNetworkPolicy", "foo", {"selector": "all()"}),
        resource("GlobalNetworkPolicy", "default.foo", {"selector": "all()"}),
        resource("StagedNetworkPolicy", "s", {"selector": "all()"}, namespace=NAMESPACE),
        resource("FelixConfiguration", "default", {}),
        resource("IPAMConfiguration", "default", {}),
        resource("KubeControllersConfiguration", "default", {"controllers": {"loadBalancer": {}}}),
    ]
    native.kubectl("create", "-f", "-", stdin="---\n".join(json.dumps(each) + "\n" for each in wanted))

    def spec(kind: str, name: str, namespace: str = "") -> Any:
        found = native_store.get(ResourceKey(kind, name, namespace), soon())
        assert found is not None
        return found.value["spec"]

    assert spec("IPPool", "p")["assignmentMode"] == "Automatic"
    assert spec("Tier", "t")["defaultAction"] == "Deny"
    assert spec("GlobalNetworkPolicy", "foo")["tier"] == spec("GlobalNetworkPolicy", "default.foo")["tier"] == "default"
    assert spec("StagedNetworkPolicy", "s", NAMESPACE)["stagedAction"] == "Set"
    assert spec("FelixConfiguration", "default")["nftablesMode"] == "Auto"
    assert spec("KubeControllersConfiguration", "default")["controllers"]["loadBalancer"]["assignIPs"] == "AllServices"
    config = native_store.get(IPAMConfigKey(), soon())
    assert config is not None
    assert config.value == {"strict_affinity": False, "auto_allocate_blocks": True, "maxBlocksPerHost": 0}
    listed = native.kubectl("get", "gnp", "--field-selector", "spec.tier=t")
    assert "web" in listed and "foo" not in listed and "TIER" in listed
    assert "ALLOCATABLE" in native.kubectl("get", "ippools")
    assert "AUTOALLOCATEBLOCKS" in native.kubectl("get", "ipamconfig")
    for without in ("metadata", "spec"):
        whole = resource("GlobalNetworkSet", "less", {})
        whole.pop(without)
        said = native.kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(whole), check=False)
        assert "created" not in said


def test_a_group_that_this_cluster_does_not_serve_is_no_empty_datastore(native: Cluster) -> None:
    wrong = KubernetesStore(native.access(api_group=API_GROUP))
    for listing in (ResourceList("IPPool"), EverythingList()):
        with pytest.raises(DatastoreUnsupported, match=f"{API_GROUP} is not served by this cluster") as caught:
            wrong.list(listing, soon())
        assert "it serves projectcalico.org/v3" in caught.value.details
    wrong.close()


BAD_POOLS = {
    "a-selector": {"cidr": "10.77.0.0/24", "nodeSelector": "((("},
    "host-bits": {"cidr": "10.78.1.3/24"},
    "no-block": {"cidr": "10.76.0.0/28"},
    "a-namespace": {"cidr": "10.79.0.0/24", "namespaceSelector": "not a selector(("},
}


@pytest.mark.netns
def test_an_add_and_a_del_with_the_rights_of_the_manifest(
    native: Cluster, native_store: KubernetesStore, host_ns: Namespace, pod_ns: Namespace, tmp_path: Path
) -> None:
    """The configuration names no group."""
    with node_with_role("calico-v3.yaml", native, host_ns, tmp_path) as node:
        native.create_pod(node.namespace, "web", node.nodename)
        # what kubectl gets past the API server spoils nobody else's addresses
        for name, spec in BAD_POOLS.items():
            native.request("POST", f"{NATIVE_ROOT}/ippools", resource("IPPool", name, spec))
        since = len(native.audited())
        added = node.pod_call("ADD", "web", "c0" * 32, pod_ns.path)
        assert added.ok, added.document
        [block] = [item for item in native_store.list(BlockList(), soon()).items if item.key.cidr.version == 4]
        assert block.value["affinity"] == f"host:{node.nodename}" and block.value["attributes"]
        deleted = node.pod_call("DEL", "web", "c0" * 32, pod_ns.path)
        assert deleted.ok, deleted.document
        assert not native_store.list(HandleList(), soon()).items
        assert node.pod_call("ADD", "web", "c1" * 32, pod_ns.path, calico_api_group="PROJECTCALICO.ORG/v3").ok
        wrong = node.pod_call("DEL", "web", "c1" * 32, pod_ns.path, calico_api_group="crd.projectcalico.org/v1")
        assert node.pod_call("DEL", "web", "c1" * 32, pod_ns.path).ok
        _, refused = used(native, CNI_USER, since)
    assert "crd.projectcalico.org/v1 is not served by this cluster" in str(wrong.document) or wrong.ok
    assert all("/apis/crd.projectcalico.org/v1/" in each for each in refused), "what shows which group it is"
