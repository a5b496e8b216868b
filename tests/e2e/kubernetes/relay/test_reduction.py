"""A relay on a real API server: what it tells is the reduction of what the API server tells, whatever happens to it."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Write
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.relayed.served import BLOCKS, READY_PATH, SERVED_IN, affinity_query
from cni_calico.datastore.kubernetes.relayed.store import RelayedStore
from cni_calico.datastore.kubernetes.relayed.targets import RelayTargets
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.datastore.remembered import Kept
from cni_calico.datastore.unread import UnreadDocument
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreDenied
from cni_calico.model.access import API_GROUP, KubernetesAccess, RelayAccess
from cni_calico.model.documents.codec import encode_node
from cni_calico.model.keys import BlockList, ListKey, ResourceKey, ResourceList
from cni_calico.nodeagent.context.open import open_context
from cni_calico.nodeagent.policing.feed.records import RecordFeed
from cni_calico.nodeagent.view.sources import Sources
from cni_calico.policy.flushed import OtherNeeds
from cni_calico.relay.connections import Limits
from cni_calico.relay.reduction import affinity_of, reduce_own_block, reduction_of
from cni_calico.relay.tokens import Accepted
from tests.e2e.kubernetes.cluster import Cluster, free_port
from tests.e2e.relays import RunningRelay, make_certificates, relay_access
from tests.fakes.tcp import Forwarder
from tests.fixtures.kubernetes import NAMESPACE

pytestmark = pytest.mark.kubernetes
FOLLOWED: tuple[ListKey, ...] = (
    ResourceList("Node", brief=True),
    ResourceList("WorkloadEndpoint"),
    ResourceList("Profile"),
    ResourceList("IPPool"),
    BlockList(),
)


@pytest.fixture(scope="module")
def relay_certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("relay")
    make_certificates(directory)
    return directory


class Relayed:
    """A relay and agents that follow the cluster through it."""

    def __init__(
        self, kube: Cluster, certificates: Path, api: KubernetesAPI | None = None, limits: Limits | None = None
    ) -> None:
        self.kube = kube
        self.certificates = certificates
        self.api = api or kube.api()
        self.relay = RunningRelay(self.api, certificates, limits=limits)
        self.port = self.relay.port
        self.troubles: list[str] = []
        self.stores: list[RelayedStore] = []
        self.caches: list[dict[ListKey, Cache[Any]]] = []
        self.wait(lambda: self.relay.relay.cache.synced)

    def wait(self, condition: Any, seconds: float = 30) -> None:
        import select

        deadline = Deadline.after(seconds)
        while not condition():
            assert not deadline.expired(), (self.troubles[-1:], self.relay.relay.cut_off.troubles)
            select.select([], [], [], 0.02)

    def follow(
        self,
        listings: tuple[ListKey, ...] = FOLLOWED,
        *,
        access: KubernetesAccess | None = None,
        relays: RelayAccess | None = None,
        **times: float,
    ) -> dict[ListKey, Cache[Any]]:
        relays = relays or relay_access(self.certificates, self.port)
        store = RelayedStore(access or self.kube.access(), relays, self.troubles.append, **times)
        self.stores.append(store)
        caches = {
            listing: Cache(store, Kept(listing, lambda versioned: dict(versioned.value)), cached=True)
            for listing in listings
        }
        for cache in caches.values():
            cache.wait_synced(Deadline.after(20))
        self.caches.append(caches)
        return caches

    def kill(self) -> None:
        self.relay.kill()

    def start(self) -> None:
        self.relay = RunningRelay(self.api, self.certificates, self.port)

    def expected(self, listing: ListKey) -> dict[Any, Any]:
        """What an agent must know: read from the API server, reduced, and read as the agents read."""
        store = self.kube.store()
        try:
            listed = store.list(listing, Deadline.after(20))
            return {item.key: item for item in listed.items}
        finally:
            store.close()

    def is_told(self, caches: dict[ListKey, Cache[Any]]) -> bool:
        return all(set(cache.items()) == set(self.expected(listing)) for listing, cache in caches.items())

    def client(self) -> KubernetesAPI:
        targets = RelayTargets(relay_access(self.certificates, self.port), self.api)
        return targets.next(Deadline.after(5))[1]

    def close(self) -> None:
        for caches in self.caches:
            for cache in caches.values():
                cache.stop()
        for store in self.stores:
            store.close()
        self.relay.kill()
        self.api.close()


@pytest.fixture
def relayed(kube: Cluster, relay_certificates: Path) -> Iterator[Relayed]:
    found = Relayed(kube, relay_certificates)
    try:
        yield found
    finally:
        found.close()


def fill(kube: Cluster) -> None:
    for number in range(4):
        annotations = {"projectcalico.org/IPv4Address": f"10.9.0.{number + 1}/24", "other.io/x": "y"}
        kube.create_node(f"n{number}", metadata={"labels": {"role": "w"}, "annotations": annotations})
        kube.create_pod(NAMESPACE, f"p{number}", f"n{number}", labels={"app": str(number)})
        spec = {
            "cidr": f"10.7.{number}.0/26",
            "affinity": f"host:n{number % 2}",
            "strictAffinity": False,
            "allocations": [0, 1, *[None] * 62],
            "unallocated": list(range(2, 64)),
            "attributes": [
                {"handle_id": "h", "secondary": {"node": f"n{number % 2}", "pod": "a", "namespace": NAMESPACE}},
                {"handle_id": "i", "secondary": {"node": "n3", "pod": "b", "namespace": NAMESPACE}},
            ],
        }
        body = {"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "spec": spec}
        kube.request("POST", BLOCKS, {**body, "metadata": {"name": f"10-7-{number}-0-26"}})
    pool = {"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": {"name": "p"}}
    kube.request("POST", "/apis/crd.projectcalico.org/v1/ippools", {**pool, "spec": {"cidr": "10.7.0.0/16"}})


def name_of(obj: Any) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def test_its_lists_are_the_reduction_of_the_api_servers(relayed: Relayed) -> None:
    fill(relayed.kube)
    client = relayed.client()
    for path, served in SERVED_IN[API_GROUP].items():
        if served.optional:
            continue
        beside = relayed.kube.request("GET", path)
        version = beside["metadata"]["resourceVersion"]
        history = relayed.relay.relay.cache._histories[path][0]
        newest = max([int(obj["metadata"]["resourceVersion"]) for obj in beside["items"]], default=0)
        relayed.wait(lambda history=history, newest=newest: history.position >= newest)
        found = client.send(ApiRequest("GET", path, "list"), Deadline.after(10)).document
        reduce = reduction_of(path)
        expected = {name_of(obj): reduce(obj) for obj in beside["items"]}
        expected = {name: obj for name, obj in expected.items() if obj is not None}
        told = {name_of(obj): without_type(obj) for obj in found["items"]}
        assert told == expected, (path, version)
        assert found["kind"] == f"{served.kind}List"
    own = client.send(ApiRequest("GET", f"{BLOCKS}?{affinity_query('host:n1')}", "list"), Deadline.after(10)).document
    beside = relayed.kube.request("GET", BLOCKS)["items"]
    assert {name_of(obj): without_type(obj) for obj in own["items"]} == {
        name_of(obj): reduce_own_block(obj) for obj in beside if affinity_of(obj) == "host:n1"
    }
    assert client.text(READY_PATH, Deadline.after(5), "ask") == "ready\n"
    client.close()


def without_type(obj: Any) -> Any:
    return {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}


def test_its_watch_is_the_reduction_of_the_api_servers(relayed: Relayed) -> None:
    """Events that make no difference in the reduced objects are not told."""
    kube = relayed.kube
    begin = kube.request("GET", "/api/v1/nodes")["metadata"]["resourceVersion"]
    client = relayed.client()
    doing, query = "watch", f"?watch=1&resourceVersion={begin}"
    told = client.stream("/api/v1/nodes" + query, Deadline.after(10), doing)
    kube.create_node("w1", metadata={"labels": {"a": "1"}})
    for beat in range(3):
        patch = {"metadata": {"annotations": {"other.io/beat": str(beat)}}}
        kube.request("PATCH", "/api/v1/nodes/w1", patch, content_type="application/merge-patch+json")
    patch = {"metadata": {"labels": {"a": "2"}}}
    kube.request("PATCH", "/api/v1/nodes/w1", patch, content_type="application/merge-patch+json")
    kube.request("DELETE", "/api/v1/nodes/w1")
    beside = relayed.api.stream("/api/v1/nodes" + query, Deadline.after(10), doing)

    def events(connection: Any, count: int) -> list[Any]:
        data = b""
        for piece in connection.chunks(lambda: Deadline.after(10), None):
            data += piece
            if data.count(b"\n") >= count:
                break
        return [json.loads(line) for line in data.split(b"\n") if line]

    whole, got = events(beside, 6), events(told, 3)
    expected: list[Any] = []
    before: Any = None
    for event in whole:
        reduced = reduction_of("/api/v1/nodes")(event["object"])
        assert reduced is not None
        plain = {**reduced, "metadata": {**reduced["metadata"], "resourceVersion": ""}}
        if event["type"] == "DELETED" or plain != before:
            expected.append((event["type"], reduced))
        before = plain
    assert [(event["type"], without_type(event["object"])) for event in got] == expected
    for connection in (beside, told):
        connection.close()
    client.close()


def test_killed_and_restarted_all_resume_without_listing_again(relayed: Relayed) -> None:
    fill(relayed.kube)
    agents = [relayed.follow() for _ in range(5)]
    relayed.wait(lambda: all(relayed.is_told(agent) for agent in agents))
    lists = [store.lists for store in relayed.stores]
    relayed.kill()
    relayed.kube.create_node("later")
    relayed.kube.request("DELETE", "/api/v1/nodes/n2")
    relayed.kube.create_pod(NAMESPACE, "short", "n1")
    relayed.kube.delete_pod(relayed.kube.read_pod(NAMESPACE, "short"))
    relayed.start()
    relayed.wait(lambda: all(relayed.is_told(agent) for agent in agents))
    assert [store.lists for store in relayed.stores] == lists
    assert not any(store.link.direct for store in relayed.stores)
    assert relayed.relay.relay.server.numbers.requests.get("list", 0) == 0


def test_an_agent_moves_to_another_relay_without_listing_again(relayed: Relayed, relay_certificates: Path) -> None:
    fill(relayed.kube)
    agent = relayed.follow()
    relayed.wait(lambda: relayed.is_told(agent))
    lists = relayed.stores[0].lists
    relayed.kill()
    relayed.start()
    second = relayed.relay.relay
    relayed.kube.create_node("later")
    relayed.wait(lambda: relayed.is_told(agent))
    assert second.server.streaming == 1
    assert relayed.stores[0].lists == lists


def test_without_a_relay_an_agent_follows_the_api_server_until_there_is_one(relayed: Relayed) -> None:
    fill(relayed.kube)
    agent = relayed.follow(direct_after_s=1.0, probe_s=0.2)
    relayed.wait(lambda: relayed.is_told(agent))
    lists, link = relayed.stores[0].lists, relayed.stores[0].link
    relayed.kill()
    relayed.kube.create_node("frozen")
    relayed.wait(lambda: link.direct)
    assert "following the API server itself" in relayed.troubles[-1]
    relayed.wait(lambda: relayed.is_told(agent))
    relayed.kube.request("DELETE", "/api/v1/nodes/n1")
    relayed.wait(lambda: relayed.is_told(agent))
    relayed.start()
    relayed.wait(lambda: not link.direct)
    relayed.kube.create_node("back")
    relayed.wait(lambda: relayed.is_told(agent))
    assert relayed.troubles[-1] == ""
    assert relayed.stores[0].lists == lists


@contextmanager
def behind_a_way(kube: Cluster, certificates: Path) -> Iterator[tuple[Forwarder, KubernetesAccess, Relayed]]:
    """A relay whose way to the API server can be cut, and how others reach that by the same way."""
    address = urlsplit(kube.url)
    assert address.hostname is not None
    assert address.port is not None
    port = free_port()  # the same one when the way is open again
    way = Forwarder((address.hostname, address.port), lambda: socket.create_server(("127.0.0.1", port), backlog=64))
    access = replace(kube.access(), api_root=f"https://127.0.0.1:{way.port}")
    relayed = Relayed(kube, certificates, KubernetesAPI(access), Limits(cut_off_s=1.0, bookmark_s=0.2))
    try:
        fill(kube)
        yield way, access, relayed
    finally:
        relayed.close()
        way.close()


def test_agents_leave_a_relay_that_is_cut_off_if_they_reach_the_api_server(
    kube: Cluster, relay_certificates: Path
) -> None:
    """They follow that until the relay is ready again."""
    with behind_a_way(kube, relay_certificates) as (way, _, relayed):
        agent = relayed.follow(direct_after_s=1.0, probe_s=0.2)
        relayed.wait(lambda: relayed.is_told(agent))
        lists, link = relayed.stores[0].lists, relayed.stores[0].link
        way.close()
        kube.create_node("unseen")
        relayed.wait(lambda: link.direct)
        assert "cut off from the API server: cannot follow" in relayed.troubles[-1]
        assert "following the API server itself" in relayed.troubles[-1]
        relayed.wait(lambda: relayed.is_told(agent))
        relayed.wait(lambda: relayed.relay.relay.server.streaming == 0)
        way.open()
        relayed.wait(lambda: not link.direct)
        kube.create_node("back")
        relayed.wait(lambda: relayed.is_told(agent))
        relayed.wait(lambda: relayed.relay.relay.server.streaming == 1)
        assert relayed.relay.relay.cut_off.troubles == {}
        assert relayed.stores[0].lists == lists


def test_agents_stay_at_their_relay_while_the_api_server_is_away_for_all(
    kube: Cluster, relay_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a whole cluster would turn to the API server in the moment in which it returns."""
    with behind_a_way(kube, relay_certificates) as (way, access, relayed):
        agent = relayed.follow(access=access, direct_after_s=0.5, probe_s=0.2)
        relayed.wait(lambda: relayed.is_told(agent))
        link = relayed.stores[0].link
        relayed.wait(lambda: link.connections > 0)  # the lists come before the watch
        lists, opened = relayed.stores[0].lists, link.connections
        way.close()
        kube.create_node("unseen")
        relayed.wait(lambda: any("the view stays as it is" in text for text in relayed.troubles))
        looks: list[bool] = []
        look = RelayTargets.is_direct_ready
        monkeypatch.setattr(RelayTargets, "is_direct_ready", lambda *asked: looks.append(look(*asked)) or looks[-1])
        relayed.wait(lambda: len(looks) >= 10, 90)  # each as long as bookmarks are apart: longer than it would wait
        assert not any(looks)
        assert not link.direct
        assert relayed.relay.relay.server.streaming == 1
        way.open()
        relayed.wait(lambda: relayed.is_told(agent), 90)  # its followers try ever more seldom
        relayed.wait(lambda: relayed.troubles[-1] == "", 90)
        assert (link.connections, relayed.stores[0].lists) == (opened, lists)


def test_an_agent_leaves_for_another_relay_at_once(
    kube: Cluster, relay_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found through the Service, whose endpoints it remembers while the API server is away."""
    with behind_a_way(kube, relay_certificates) as (way, access, relayed):
        second = RunningRelay(kube.api(), relay_certificates)
        # the API server accepts no endpoint on this machine's loopback
        found = [("127.0.0.1", relayed.port), ("127.0.0.1", second.port)]

        def endpoints(targets: RelayTargets, deadline: Deadline) -> list[tuple[str, int]]:
            KubernetesAPI(access).send(ApiRequest("GET", "/version", "find relays"), deadline)
            return found

        monkeypatch.setattr(RelayTargets, "_read_endpoints", endpoints)
        relays = replace(relay_access(relay_certificates, 1), address="", service="calico-typha")
        try:
            agent = relayed.follow(access=access, direct_after_s=60.0, relays=relays)
            relayed.wait(lambda: relayed.is_told(agent))
            link = relayed.stores[0].link
            first = relayed.relay.relay.server

            def is_at_the_first() -> bool:
                second.drop_one("balance")  # its watch comes after the lists
                return first.streaming == 1

            relayed.wait(is_at_the_first)
            way.close()
            kube.create_node("seen-by-the-other-one")
            relayed.wait(lambda: relayed.is_told(agent))
            relayed.wait(lambda: second.relay.server.streaming == 1)  # a follower may just have joined the others
            assert not link.direct
        finally:
            second.kill()


def test_an_agent_that_starts_without_a_relay_lists_at_the_api_server(kube: Cluster, relay_certificates: Path) -> None:
    kube.create_node("alone")
    troubles: list[str] = []
    access = relay_access(relay_certificates, 1)
    store = RelayedStore(kube.access(), access, troubles.append, direct_after_s=0.5, probe_s=60)
    try:
        listed = store.list(ResourceList("Node", brief=True), Deadline.after(20))
        assert [item.key.name for item in listed.items] == ["alone"]
        assert store.link.direct
        assert not store.list(BlockList(owner="host:alone"), Deadline.after(20)).items
    finally:
        store.close()


def test_a_token_that_the_api_server_knows_is_enough(kube: Cluster, relay_certificates: Path) -> None:
    relay = RunningRelay(kube.api(), relay_certificates, accepted=Accepted(frozenset({"admin"})))
    base = relay_access(relay_certificates, relay.port)
    tokens = RelayAccess(address=base.address, ca_file=base.ca_file)
    try:
        for token, accepted in (("admin-token", True), ("nonsense", False)):
            targets = RelayTargets(tokens, kube.api(token))
            client = targets.next(Deadline.after(5))[1]
            if accepted:
                assert "items" in client.send(ApiRequest("GET", "/api/v1/nodes", "list"), Deadline.after(10)).document
            else:
                with pytest.raises(DatastoreDenied, match="does not accept this token"):
                    client.send(ApiRequest("GET", "/api/v1/nodes", "list"), Deadline.after(10))
            client.close()
    finally:
        relay.kill()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"common_name": "somebody"}, "does not have the name somebody"),
        ({"common_name": "", "uri": "spiffe://other"}, "does not have the name spiffe://other"),
        ({"ca_file": "/nonexistent"}, "cannot read the relay's certificate authority /nonexistent"),
    ],
)
def test_a_relay_that_is_not_the_right_one_gets_no_request(
    relayed: Relayed, changes: dict[str, str], text: str
) -> None:
    access = replace(relay_access(relayed.certificates, relayed.port), **changes)
    client = RelayTargets(access, relayed.api).next(Deadline.after(5))[1]
    with pytest.raises(CalicoError, match=text):
        client.send(ApiRequest("GET", "/api/v1/nodes", "list"), Deadline.after(10))
    client.close()


def test_the_relays_of_a_service_are_found(relayed: Relayed) -> None:
    path = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"
    for name, address, ready in (("one", "10.253.0.1", True), ("two", "10.253.0.2", False)):
        slice_ = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"relay-{name}", "labels": {"kubernetes.io/service-name": "calico-typha"}},
            "addressType": "IPv4",
            "ports": [{"name": "calico-typha", "port": relayed.port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}],
        }
        relayed.kube.request("POST", path, slice_)
    try:
        access = RelayAccess(service="calico-typha", ca_file=str(relayed.certificates / "ca.crt"))
        targets = RelayTargets(access, relayed.api)
        assert {targets.next(Deadline.after(5))[0] for _ in range(5)} == {f"10.253.0.1:{relayed.port}"}
    finally:
        for name in ("one", "two"):
            relayed.kube.request("DELETE", f"{path}/relay-{name}")


def test_an_agents_view_is_the_one_it_would_have_of_the_api_server(relayed: Relayed) -> None:
    """Its blocks, too, although a relay tells others' only in part, and its own separately."""
    fill(relayed.kube)
    plain = relayed.kube.store()
    access = relay_access(relayed.certificates, relayed.port)
    store = RelayedStore(relayed.kube.access(), access, relayed.troubles.append)
    direct = Sources(plain, "n1", lambda: None, brief=True)
    view = Sources(store, "n1", lambda: None, brief=True, partial_blocks=True)
    try:
        for sources in (direct, view):
            sources.wait_synced(Deadline.after(30))

        def detailed(sources: Sources) -> Any:
            snapshot = sources.snapshot()
            blocks = {block.cidr: block for block in snapshot.blocks}
            # what only the own node's blocks are asked for
            own = {cidr: (block.used, block.held) for cidr, block in blocks.items() if block.node == "n1"}
            nodes = {
                name: (encode_node(node)["spec"].get("bgp"), node.metadata.labels)
                for name, node in snapshot.nodes.items()
            }
            return blocks, own, nodes, snapshot.pools, snapshot.endpoints, snapshot.problems, snapshot.unread

        relayed.wait(lambda: detailed(view) == detailed(direct))
        assert detailed(view)[1]
        name, block = "10-7-1-0-26", {"spec": {"attributes": [], "allocations": [None] * 64}}
        relayed.kube.request("PATCH", f"{BLOCKS}/{name}", block, content_type="application/merge-patch+json")
        relayed.wait(lambda: not detailed(direct)[1][ip_network("10.7.1.0/26")][1])
        relayed.wait(lambda: detailed(view) == detailed(direct))
        assert store.link.connections >= 1
    finally:
        for sources in (direct, view):
            sources.stop()
        for each in (plain, store):
            each.close()


def test_the_policy_engine_is_fed_the_same_records(relayed: Relayed) -> None:
    fill(relayed.kube)
    policy = {"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "1"}}}]}]}
    body = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "k"}, "spec": policy}
    path = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"
    relayed.kube.request("POST", path, body)
    plain = relayed.kube.store()
    access = relay_access(relayed.certificates, relayed.port)
    store = RelayedStore(relayed.kube.access(), access, relayed.troubles.append)
    feeds = [RecordFeed(each, "n1", lambda: None, each) for each in (plain, store)]
    try:
        for feed in feeds:
            feed.need(OtherNeeds(endpoints=True, services=True, nodes=True))
            relayed.wait(lambda feed=feed: feed.synced)
        records = [feed.take()[0] for feed in feeds]
        assert records[0] == records[1]
        assert records[0]
    finally:
        relayed.kube.request("DELETE", f"{path}/k")
        for feed in feeds:
            feed.stop()
        for each in (plain, store):
            each.close()


def test_felixs_variables_make_an_agent_follow_a_relay(
    relayed: Relayed, relay_certificates: Path, tmp_path: Path
) -> None:
    """As calico-node opens its datastore: what it writes or decides with stays the API server."""
    environ = {
        "DATASTORE_TYPE": "kubernetes",
        "KUBECONFIG": relayed.kube.kubeconfig(),
        "NODENAME": "n1",
        "CALICO_DISABLE_FILE_LOGGING": "true",
        "CALICO_RUN_DIR": str(tmp_path),
        "FELIX_TYPHAADDR": f"127.0.0.1:{relayed.port}",
        "FELIX_TYPHACAFILE": str(relay_certificates / "ca.crt"),
        "FELIX_TYPHACERTFILE": str(relay_certificates / "client.crt"),
        "FELIX_TYPHAKEYFILE": str(relay_certificates / "client.key"),
        "FELIX_TYPHACN": "typha-server",
    }
    fill(relayed.kube)
    context = open_context(environ, "agent", lambda seconds: False, running=True).context
    try:
        assert context.relayed is not None
        assert context.followed is context.followed_kubernetes is context.relayed
        assert type(context.store) is KubernetesStore
        relayed.wait(lambda: relayed.relay.relay.cache.synced)
        found = context.followed.list(ResourceList("Node", brief=True), Deadline.after(20))
        assert len(found.items) == 4
        assert context.relayed.lists == 1
        assert context.troubles == {}
    finally:
        context.close()
    without = {name: text for name, text in environ.items() if not name.startswith("FELIX_TYPHA")}
    plain = open_context(without, "agent", lambda seconds: False, running=True).context
    assert plain.relayed is None
    assert plain.followed is plain.store
    plain.close()
    once = open_context(environ, "startup", lambda seconds: False).context
    assert once.relayed is None  # a command that ends reads the API server
    once.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_agents_end_up_with_what_the_api_server_has(relayed: Relayed, seed: int) -> None:
    choose = random.Random(seed)
    kube = relayed.kube
    fill(kube)
    agents = [relayed.follow(direct_after_s=1.0, probe_s=0.2) for _ in range(3)]
    nodes = {f"n{number}" for number in range(4)}
    made = 0
    for _ in range(60):
        what = choose.randrange(10)
        if what < 4:
            made += 1
            name = f"m{made}"
            kube.create_node(name)
            nodes.add(name)
        elif what < 6 and nodes:
            name = choose.choice(sorted(nodes))
            kube.request("DELETE", f"/api/v1/nodes/{name}")
            nodes.discard(name)
        elif what < 8 and nodes:
            patch = {"metadata": {"labels": {"turn": str(choose.randrange(100))}}}
            path = f"/api/v1/nodes/{choose.choice(sorted(nodes))}"
            kube.request("PATCH", path, patch, content_type="application/merge-patch+json")
        elif what == 8:
            relayed.kill()
            if choose.random() < 0.3:
                relayed.wait(lambda: any(store.link.direct for store in relayed.stores))
            relayed.start()
        else:
            relayed.relay.drop_one("test")
    for agent in agents:
        relayed.wait(lambda agent=agent: relayed.is_told(agent))
        beside = labels_of(relayed.expected(FOLLOWED[0]))
        relayed.wait(lambda agent=agent, beside=beside: labels_of(agent[FOLLOWED[0]].items()) == beside)


def labels_of(items: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: item.value["metadata"].get("labels") for key, item in items.items()}


def test_large_policies_come_through_a_relay_unread(relayed: Relayed) -> None:
    """As from the API server; the text of a set is read when it is looked into."""
    listing, key = ResourceList("GlobalNetworkSet"), ResourceKey("GlobalNetworkSet", "large")
    plain = relayed.kube.store()
    access = relay_access(relayed.certificates, relayed.port)
    store = RelayedStore(relayed.kube.access(), access, relayed.troubles.append)
    try:
        revision = store.list(listing, Deadline.after(20)).revision
        nets = [f"10.{number >> 8}.{number & 255}.0/24" for number in range(2000)]
        value = {"kind": key.kind, "apiVersion": "projectcalico.org/v3", "metadata": {"name": key.name}}
        with store.watch(listing, revision, unread_from=10_000) as watch:
            plain.commit([Write.put(key, {**value, "spec": {"nets": nets}})], Deadline.after(20))
            [put] = watch.next(20)
            plain.commit([Write.remove(key)], Deadline.after(20))
            [removed] = watch.next(20)
        assert isinstance(put.value, UnreadDocument) and put.value.read()["spec"] == {"nets": nets}
        assert (put.key, removed.key, removed.value) == (key, key, None) and store.link.connections
    finally:
        store.close()
        plain.close()
