"""Records on their way to the graph: what cannot be read is never taken for gone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cni_calico.datastore.interface import WHOLE, Listing, Reading, Revision, Write
from cni_calico.deadline import Deadline
from cni_calico.model.keys import PLURALS, Key, ListKey, ResourceKey, ResourceList
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.policing.feed import decoding, records, rereading
from cni_calico.nodeagent.policing.feed.changes import FedRecord, Refusal, Undecoded
from cni_calico.nodeagent.policing.feed.records import RecordFeed
from cni_calico.policy.decode import decoding_record
from cni_calico.policy.flushed import OtherNeeds
from cni_calico.policy.records import Labelled, PolicyRecord
from cni_calico.policy.steps import finish
from tests.deadlines import until
from tests.fakes.memory_store import MemoryStore

DENY = ResourceKey("GlobalNetworkPolicy", "deny")


def document(selector: str) -> dict[str, Any]:
    return {
        "kind": "GlobalNetworkPolicy",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "deny", "uid": "u"},
        "spec": {"selector": selector},
    }


class World:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.woken = threading.Event()
        self.store.commit((Write.put(DENY, document("all()")),), Deadline.after(5))
        self.feed = RecordFeed(self.store, "n1", self.woken.set)
        self.seen: dict[ResourceKey, FedRecord] = {}
        until(lambda: self.feed.synced, "all listings read")

    def record(self) -> FedRecord:
        self.seen.update(self.feed.take()[0])
        return self.seen.get(DENY)


@pytest.fixture
def feed_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(rereading, "ASK_AGAIN_S", 0.05)
    made = World()
    yield made
    made.feed.stop()


def selector(world: World) -> object:
    record = world.record()
    return record.selector.text.replace('"', "'") if isinstance(record, PolicyRecord) else record


def test_put_and_removed(feed_world: World) -> None:
    assert selector(feed_world) == "all()"
    feed_world.store.commit((Write.put(DENY, document("app == 'b'")),), Deadline.after(5))
    until(lambda: selector(feed_world) == "app == 'b'", "the change")
    feed_world.store.commit((Write.remove(DENY),), Deadline.after(5))
    until(lambda: selector(feed_world) is None, "the end")


def test_what_exists_everywhere_has_waited_for_nothing() -> None:
    """An agent whose datastore answered only after minutes would seem to be minutes late."""
    store, before = MemoryStore(), time.monotonic()
    feed = RecordFeed(store, "n1", lambda: None)
    try:
        until(lambda: feed.synced, "all listings read")
        taken, since = feed.take()
        assert set(taken) == {records._DEFAULT_ALLOW} and since == float("inf")
        store.commit((Write.put(DENY, document("all()")),), Deadline.after(5))
        found: dict[ResourceKey, FedRecord] = {}

        def received() -> bool:
            nonlocal since
            changes, since = feed.take()
            found.update(changes)
            return DENY in found

        until(received, "the policy")
        assert before < since <= time.monotonic()
    finally:
        feed.stop()


def test_garbage_is_refused_and_not_gone(feed_world: World) -> None:
    assert selector(feed_world) == "all()"
    feed_world.store.plant(DENY, b"{garbage")
    until(lambda: isinstance(feed_world.record(), Refusal), "the refusal")
    feed_world.store.plant(DENY, json.dumps(document("app == 'c'")).encode())
    until(lambda: selector(feed_world) == "app == 'c'", "the repaired record")


def seen_in_order(world: World) -> Iterator[object]:
    """What is to be taken of the record, with what came before a refusal."""
    record = world.feed.take()[0].get(DENY, ...)
    for one in (*(record.first if isinstance(record, Refusal) else ()), record):
        yield one.selector.text.replace('"', "'") if isinstance(one, PolicyRecord) else one


def test_what_came_before_a_refusal_is_not_lost(feed_world: World) -> None:
    """Neither a good version nor that the record was removed, however many changes are taken together."""
    list(seen_in_order(feed_world))
    for number in range(20):
        for write in (Write.put(DENY, document(f"app == '{number}'")), Write.remove(DENY)):
            feed_world.store.commit((write,), Deadline.after(5))
            feed_world.store.commit((Write.put(DENY, document("app == 'b")),), Deadline.after(5))
            seen: list[object] = []
            until(
                lambda seen=seen: seen.extend(seen_in_order(feed_world)) or isinstance(seen[-1], Refusal), "the refusal"
            )
            before = [one for one in seen if one is not ... and not isinstance(one, Refusal)]
            assert before == [f"app == '{number}'" if write.op == "put" else None]


@pytest.mark.parametrize(
    ("key", "spec"),
    [
        (ResourceKey("Tier", "t"), {"order": "first"}),
        (ResourceKey("Profile", "p"), {"labelsToApply": ["a"]}),
        (ResourceKey("GlobalNetworkSet", "s"), {"nets": ["10.0.0.0/40"]}),
        (ResourceKey("NetworkSet", "s", "default"), {"nets": 7}),
        (ResourceKey("HostEndpoint", "h"), {"node": "n", "expectedIPs": "10.0.0.1"}),
    ],
    ids=str,
)
def test_every_kind_is_judged_before_it_replaces_a_good_version(
    feed_world: World, key: ResourceKey, spec: dict[str, Any]
) -> None:
    metadata = {"name": key.name, "uid": "u", **({"namespace": key.namespace} if key.namespace else {})}
    body = {"kind": key.kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata}
    good = {"node": "n", "interfaceName": "eth0"} if key.kind == "HostEndpoint" else {}
    for put in (good, spec):
        feed_world.store.commit((Write.put(key, {**body, "spec": put}),), Deadline.after(5))
        taken: dict[ResourceKey, FedRecord] = {}
        until(lambda taken=taken: taken.update(feed_world.feed.take()[0]) or key in taken, "the record")
        assert isinstance(taken[key], Refusal) is (put is spec)


def test_a_record_nobody_thought_of_holds_up_no_other(feed_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(key: ResourceKey, value: Any) -> Any:
        if key == DENY:
            raise ZeroDivisionError
        return decoding_record(key, value)

    monkeypatch.setattr(decoding, "decoding_record", read)
    feed_world.store.commit((Write.put(DENY, document("app == 'b'")),), Deadline.after(5))
    until(lambda: isinstance(feed_world.record(), Refusal), "the refusal")
    other = ResourceKey("GlobalNetworkPolicy", "other")
    feed_world.store.commit(
        (Write.put(other, {**document("all()"), "metadata": {"name": "other", "uid": "u"}}),), Deadline.after(5)
    )
    until(lambda: feed_world.record() and isinstance(feed_world.seen.get(other), PolicyRecord), "the other policy")


def test_garbage_that_is_removed_is_gone(feed_world: World) -> None:
    """The watch does not tell: for a cache it was not there."""
    assert selector(feed_world) == "all()"
    feed_world.store.plant(DENY, b"{garbage")
    until(lambda: isinstance(feed_world.record(), Refusal), "the refusal")
    feed_world.store.commit((Write.remove(DENY),), Deadline.after(5))
    until(lambda: feed_world.record() is None, "the end")


def test_what_nobody_thought_of_leaves_no_other_unread(feed_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the records that are asked for again."""
    failed = threading.Event()

    def get(key: ResourceKey, deadline: Deadline) -> Any:
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError
        return MemoryStore.get(feed_world.store, key, deadline)

    assert selector(feed_world) == "all()"
    feed_world.store.plant(DENY, b"{garbage")
    until(lambda: isinstance(feed_world.record(), Refusal), "the refusal")
    monkeypatch.setattr(feed_world.store, "get", get)
    until(failed.is_set, "a failure")
    feed_world.store.commit((Write.remove(DENY),), Deadline.after(5))
    until(lambda: feed_world.record() is None, "the end")


def test_a_large_version_before_a_refusal_is_decoded_in_steps(feed_world: World) -> None:
    found = feed_world.store.get(DENY, Deadline.after(5))
    assert found is not None
    spec = {"selector": "all()", "ingress": [{"action": "Allow"}] * 5}
    large = Undecoded(replace(found, value={**document("all()"), "spec": spec}), 5, 0)
    decoding = feed_world.feed.decoding(DENY, Refusal("garbage", (large,)))
    for _ in range(5):
        next(decoding)
    refused = finish(decoding)
    assert isinstance(refused, Refusal) and [type(one) for one in refused.first] == [PolicyRecord]


# -- two listings of pods ---------------------------------------------------------------------------------------------


class Behind(MemoryStore):
    """Lists the pods of all nodes as they were when ``freeze`` was called; Kubernetes' own policies are none."""

    frozen: Listing | None = None

    def freeze(self) -> None:
        self.frozen = MemoryStore.list(self, ResourceList("WorkloadEndpoint"), Deadline.after(5))

    def list(
        self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None, reading: Reading = WHOLE
    ) -> Listing:
        if listing == ResourceList("WorkloadEndpoint") and self.frozen is not None:
            return replace(self.frozen, items=[reading.receive(item) for item in self.frozen.items])
        if isinstance(listing, ResourceList) and listing.kind not in PLURALS:
            return Listing([], self.revision, [])
        return MemoryStore.list(self, listing, deadline, revision=revision, reading=reading)


def pod(node: str, name: str) -> ResourceKey:
    return ResourceKey("WorkloadEndpoint", f"{node.replace('-', '--')}-k8s-{name}-eth0", "default")


def put_pod(store: MemoryStore, key: ResourceKey, node: str, app: str, *nets: str) -> None:
    spec = {
        "ipNetworks": nets,
        "orchestrator": "k8s",
        "node": node,
        "pod": "p",
        "endpoint": "eth0",
        "interfaceName": "calip",
    }
    metadata = {"name": key.name, "namespace": "default", "uid": "u", "labels": {"app": app}}
    body = {"kind": key.kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}
    store.commit((Write.put(key, body),), Deadline.after(5))


def test_a_listing_of_all_pods_that_is_behind_says_nothing_of_this_nodes() -> None:
    """Its own pods are what their own listing says, gone or changed; another node's name may begin with this one's."""
    store = Behind()
    own, gone = pod("n1", "a"), pod("n1", "gone")
    others = [pod("n2", "b"), pod("n1-x", "c"), pod("n11", "d")]
    for key in (own, gone):
        put_pod(store, key, "n1", "old")
    for key, node in zip(others, ("n2", "n1-x", "n11"), strict=True):
        put_pod(store, key, node, "other")
    store.freeze()
    put_pod(store, own, "n1", "new")
    store.commit((Write.remove(gone),), Deadline.after(5))
    feed = RecordFeed(store, "n1", lambda: None, store)
    try:
        seen: dict[Key, FedRecord] = {}
        until(lambda: feed.synced, "all listings read")
        seen.update(feed.take()[0])
        assert seen[own].metadata.labels == {"app": "new"} and gone not in seen
        until(lambda: feed.need(OtherNeeds(endpoints=True)), "the pods of all nodes read")
        later, _ = feed.take()
        assert own not in later and gone not in later
        assert all(key in {**seen, **later} for key in others)
    finally:
        feed.stop()


def test_nodes_are_handed_over_once_asked_for_and_when_what_rules_need_of_them_changes() -> None:
    """A kubelet writes its Node every few minutes, in a large cluster several of them each second."""
    store, key, other = MemoryStore(), ResourceKey("Node", "n2"), ResourceKey("Node", "n3")

    def put_node(named: ResourceKey, address: str, **annotations: str) -> None:
        spec = {"addresses": [{"type": "InternalIP", "address": address}]}
        metadata = {"name": named.name, "annotations": annotations}
        store.commit((Write.put(named, {"kind": "Node", "metadata": metadata, "spec": spec}),), Deadline.after(5))

    def taken() -> dict[Key, object]:
        return {each: record for each, record in feed.take()[0].items() if each.kind == "Node"}

    put_node(key, "192.0.2.2")
    feed = RecordFeed(store, "n1", lambda: None)
    try:
        until(lambda: feed.synced, "all listings read")
        assert taken() == {}
        until(lambda: feed.need(OtherNeeds(nodes=True)), "nodes read")
        first = Labelled(frozenset(), addresses=(bytes((192, 0, 2, 2)),))
        assert taken() == {key: first}
        put_node(key, "192.0.2.2", image="another")
        put_node(other, "192.0.2.3")  # what was before it has been heard once this one is
        assert until(taken, "the other one").keys() == {other}
        store.commit((Write.put(key, {"kind": "Node", "metadata": {"name": "n2"}, "spec": 5}),), Deadline.after(5))
        assert isinstance(until(taken, "it cannot be read")[key], Refusal)
        put_node(key, "192.0.2.2")
        assert until(taken, "it is as it was, and good") == {key: first}
        store.commit((Write.remove(key),), Deadline.after(5))
        assert until(taken, "it is gone") == {key: None}
    finally:
        feed.stop()


def test_of_other_nodes_pods_only_what_selectors_need_is_handed_over() -> None:
    """And equal labels are one object: a large cluster has few sets of labels, and many pods."""
    store = MemoryStore()
    put_pod(store, pod("n1", "a"), "n1", "x")
    others = [pod("n2", f"p{i}") for i in range(3)]
    for key in others:
        put_pod(store, key, "n2", "x", "10.65.0.7/32")
    put_pod(store, pod("n3", "c"), "n3", "x")  # no address: no endpoint
    feed = RecordFeed(store, "n1", lambda: None)
    try:
        until(lambda: feed.synced, "all listings read")
        seen, _ = feed.take()
        assert isinstance(seen[pod("n1", "a")], WorkloadEndpoint) and seen[pod("n3", "c")] is None
        found = [seen[key] for key in others]
        assert all(isinstance(one, Labelled) and one.addresses == (b"\x0a\x41\0\7",) for one in found)
        assert len({id(one.labels) for one in found if isinstance(one, Labelled)}) == 1
    finally:
        feed.stop()


def test_a_policy_that_cannot_be_understood_is_refused(feed_world: World) -> None:
    assert selector(feed_world) == "all()"
    feed_world.store.commit((Write.put(DENY, document("app == 'b")),), Deadline.after(5))
    until(lambda: isinstance(feed_world.record(), Refusal), "the refusal")
