"""What a large cluster may not cost a node: what its view is told, and how it reads it, on the real API server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.store import EtcdStore
from cni_calico.datastore.interface import Reading, Versioned, Write
from cni_calico.datastore.kubernetes import pages
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.errors import Compacted
from cni_calico.ipam.allocator import Allocator, AssignRequest
from cni_calico.model.documents.codec import encode, encode_node, new_metadata
from cni_calico.model.keys import BlockKey, ResourceKey, ResourceList
from cni_calico.model.resources import IPPool
from cni_calico.nodeagent.view.sources import Sources
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import Cluster
from tests.unit.nodeagent.fabric import node

pytestmark = pytest.mark.kubernetes

MERGE = "application/merge-patch+json"
OWN, OTHER = ResourceKey("Node", "n1"), ResourceKey("Node", "n2")
BGP = "projectcalico.org/IPv4Address"


class View:
    """The agent's view of a datastore, and how often it was told that something is different."""

    def __init__(self, store: Any, **options: Any) -> None:
        self.told = 0
        self.sources = Sources(store, "n1", self._count, **options)
        self.sources.wait_synced(Deadline.after(30))

    def _count(self) -> None:
        self.told += 1

    def await_revision(self, cache: Cache[Any], version: str) -> None:
        until(lambda: str(cache.revision) >= version and len(str(cache.revision)) >= len(version), "the event")


@pytest.fixture
def nodes(kube: Cluster) -> Cluster:
    for name, address in (("n1", "10.0.0.1/24"), ("n2", "10.0.0.2/24")):
        addresses = [{"type": "InternalIP", "address": address.partition("/")[0]}]
        metadata = {"annotations": {BGP: address}, "labels": {"zone": "a"}}
        kube.create_node(name, metadata=metadata, spec={"podCIDRs": ["10.1.0.0/24"]}, status={"addresses": addresses})
    return kube


@pytest.fixture(params=[True, False], ids=["brief", "full"])
def view(request: pytest.FixtureRequest, nodes: Cluster) -> Iterator[View]:
    store = nodes.store()
    made = View(store, brief=request.param)
    yield made
    made.sources.stop()
    store.close()


def heartbeat(kube: Cluster, name: str, count: int) -> str:
    condition = {"type": "Ready", "status": "True", "reason": "x", "lastHeartbeatTime": f"2026-01-01T00:00:{count:02}Z"}
    found = kube.request(
        "PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}}, content_type=MERGE
    )
    return str(found["metadata"]["resourceVersion"])


def test_a_heartbeat_of_a_node_tells_nothing(nodes: Cluster, view: View) -> None:
    until(lambda: len(view.sources.snapshot().nodes) == 2, "the nodes")
    before = view.told
    for count in range(5):
        for name in ("n2", "n1"):
            version = heartbeat(nodes, name, count)
    view.await_revision(view.sources._nodes, version)
    view.await_revision(view.sources._own, version)
    assert view.told == before
    patch = {"metadata": {"annotations": {BGP: "10.0.0.9/24"}}}
    nodes.request("PATCH", "/api/v1/nodes/n2", patch, content_type=MERGE)
    until(lambda: view.told > before, "what makes a difference")
    assert str(view.sources.snapshot().nodes["n2"].ipv4) == "10.0.0.9/24"


def test_the_own_node_is_known_in_full(view: View) -> None:
    """Its pod CIDRs, that is; the others' addresses, labels and tunnels are in their metadata."""
    until(lambda: len(view.sources.snapshot().nodes) == 2, "the nodes")
    known = view.sources.snapshot().nodes
    assert list((known["n1"].status or {})["podCIDRs"]) == ["10.1.0.0/24"]
    assert str(known["n2"].ipv4) == "10.0.0.2/24" and known["n2"].metadata.labels == {"zone": "a"}


def test_a_node_that_goes_is_gone(nodes: Cluster, view: View) -> None:
    until(lambda: len(view.sources.snapshot().nodes) == 2, "the nodes")
    for name in ("n2", "n1"):
        nodes.request("DELETE", f"/api/v1/nodes/{name}")
        until(lambda name=name: name not in view.sources.snapshot().nodes, f"{name} gone")


def test_a_node_written_again_on_etcd_tells_nothing(kube: Cluster) -> None:
    store = EtcdStore(EtcdConfig(endpoints=(f"http://127.0.0.1:{kube.etcd_port}",)))
    deadline = Deadline.after(60)
    writes = [
        Write.put(OWN, encode_node(node("n1", "10.0.0.1/24"))),
        Write.put(OTHER, encode_node(node("n2", "10.0.0.2/24"))),
    ]
    try:
        store.commit(writes, deadline)
        view = View(store)
        try:
            until(lambda: len(view.sources.snapshot().nodes) == 2, "the nodes")
            before = view.told
            for _ in range(5):
                last = store.commit([writes[1]], deadline).revision
            until(lambda: view.sources._nodes.revision >= last, "the same again")
            assert view.told == before
            changed = encode_node(node("n2", "10.0.0.3/24"))
            store.commit([Write.put(OTHER, changed)], deadline)
            until(lambda: view.told > before, "what makes a difference")
        finally:
            view.sources.stop()
    finally:
        store.commit([Write.remove(OWN), Write.remove(OTHER)], deadline)
        store.close()


# -- blocks -----------------------------------------------------------------------------------------------------------

BLOCKS = "/apis/crd.projectcalico.org/v1/ipamblocks"


def assign(store: Any, node: str, handle: str) -> BlockKey:
    """An address for a pod of a node, in a block of the node's; returns the block."""
    request = AssignRequest(node, handle, {"node": node, "namespace": "space", "pod": handle}, num4=1)
    [taken] = Allocator(store).assign(request, Deadline.after(30))
    return BlockKey(ip_network((taken.address, 26), strict=False))


def test_with_bird_other_nodes_blocks_are_neither_listed_nor_watched(nodes: Cluster) -> None:
    """The audit log says what was asked for; a pool that becomes VXLAN has all of them followed."""
    store = nodes.store()
    pool = IPPool(new_metadata("p", uid="u", now="2026-01-01T00:00:00Z"), ip_network("10.65.0.0/16"), 26)
    store.commit([Write.put(ResourceKey("IPPool", "p"), encode(pool))], Deadline.after(30))
    mine, theirs = assign(store, "n1", "a"), assign(store, "n2", "b")
    since = len(nodes.audited())
    view = View(store, brief=True, routed=lambda pools, *felix: any(pool.vxlan_mode != "Never" for pool in pools))

    def asked() -> list[str]:
        uris = [event["requestURI"] for event in nodes.audited(since)]
        return [uri for uri in uris if uri.startswith(BLOCKS)]

    try:
        known = {block.cidr: (block.node, block.used) for block in view.sources.snapshot().blocks}
        assert known == {mine.cidr: ("n1", 1), theirs.cidr: ("n2", 0)}
        name = str(mine.cidr).replace(".", "-").replace("/", "-")
        until(lambda: any("watch=" in uri for uri in asked()), "the watch of its own block", 30)
        assert asked() and all(f"metadata.name%3D{name}" in uri for uri in asked())
        before = view.told
        assert assign(store, "n2", "c") == theirs
        assert assign(store, "n1", "d") == mine
        until(lambda: view.told > before, "its own block")
        assert {block.cidr: block.used for block in view.sources.snapshot().blocks} == {mine.cidr: 2, theirs.cidr: 0}
        changed = replace(pool, vxlan_mode="Always")
        store.commit([Write.put(ResourceKey("IPPool", "p"), encode(changed))], Deadline.after(30))
        until(lambda: view.sources.settle() and any("metadata.name" not in uri for uri in asked()), "every block", 30)
        assert {block.cidr: block.used for block in view.sources.snapshot().blocks} == {mine.cidr: 2, theirs.cidr: 0}
    finally:
        view.sources.stop()
        store.close()


# -- lists ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def many(kube: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for number in range(7):
        kube.create_node(f"node-{number}", metadata={"annotations": {BGP: f"10.0.0.{number + 1}/24"}})
    monkeypatch.setattr(pages, "PAGE", 3)
    return kube


NODES = ResourceList("Node")


@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_every_way_of_reading_gives_the_same(
    many: Cluster, kube_store: KubernetesStore, brief: bool, cached: bool
) -> None:
    listing, seen = ResourceList("Node", brief=brief), []
    until(
        lambda: len(kube_store.list(NODES, Deadline.after(30), reading=Reading(cached=True)).items) == 7,
        "the server's cache",
    )

    def note(versioned: Versioned) -> Versioned:
        seen.append(versioned.key)
        return Versioned(versioned.key, {}, versioned.revision)

    exact = kube_store.list(NODES, Deadline.after(30))
    found = kube_store.list(listing, Deadline.after(30), reading=Reading(note, cached))
    assert [(item.key, item.revision) for item in found.items] == [(item.key, item.revision) for item in exact.items]
    assert sorted(map(str, seen)) == sorted(str(item.key) for item in exact.items)
    assert all(item.value == {} for item in found.items)
    with kube_store.watch(listing, found.revision) as watch:
        many.request("PATCH", "/api/v1/nodes/node-3", {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE)
        [event] = watch.next(30)
        assert event.key == ResourceKey("Node", "node-3") and event.value["metadata"]["labels"] == {"a": "b"}


def test_brief_answers_leave_spec_and_status_out(many: Cluster, kube_store: KubernetesStore) -> None:
    from cni_calico.datastore.kubernetes.layout import select_collections
    from cni_calico.model.kubernetes.groups import CUSTOM

    [collection] = select_collections(CUSTOM, ResourceList("Node", brief=True))
    found: list[Any] = []
    request = ApiRequest("GET", collection.path, "list", accept=collection.accept_list)
    rest = kube_store.api.items(request, Deadline.after(30), found.append)
    assert rest["kind"] == "PartialObjectMetadataList" and len(found) == 7
    assert all("spec" not in obj and "status" not in obj for obj in found)


def test_pages_that_expired_are_read_again_in_one_answer(
    many: Cluster, kube_store: KubernetesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of them counts for nothing: a record may have gone meanwhile."""
    send = kube_store.api.send
    asked: list[str] = []

    def expiring(request: ApiRequest, deadline: Deadline) -> Any:
        asked.append(request.path)
        if "continue=" in request.path:
            many.request("DELETE", "/api/v1/nodes/node-0")
            raise Compacted("the list expired")
        return send(request, deadline)

    monkeypatch.setattr(kube_store.api, "send", expiring)
    found = kube_store.list(NODES, Deadline.after(30))
    assert [item.key.name for item in found.items if isinstance(item.key, ResourceKey)] == [
        f"node-{number}" for number in range(1, 7)
    ]
    assert len(asked) == 2


def test_a_type_that_is_missing_is_named_in_every_way(many: Cluster, kube_store: KubernetesStore) -> None:
    from cni_calico.errors import DatastoreUnsupported

    for path in ("/apis/crd.projectcalico.org/v1/nothings", "/apis/nobody/v1/things"):
        with pytest.raises(DatastoreUnsupported, match="cannot list"):
            kube_store.api.items(ApiRequest("GET", path, f"list {path}"), Deadline.after(30), lambda item: None)
