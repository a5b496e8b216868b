"""The node's endpoints in memory, beside others who write them too: wrong memories are found out, never believed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cni_calico.datastore.interface import CommitConflict, Write
from cni_calico.errors import DatastoreUnavailable
from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.model.names import endpoint_name
from cni_calico.server.endpoint_memory import NodeEndpoints
from tests.deadlines import SOON
from tests.fakes.memory_store import MemoryStore

NODE = "node-1"


def key(container: str, node: str = NODE, orchestrator: str = "cni", namespace: str = "default") -> ResourceKey:
    return ResourceKey("WorkloadEndpoint", endpoint_name(node, orchestrator, container, "eth0"), namespace)


def document(container: str, node: str = NODE, **spec: str) -> dict:
    return {
        "apiVersion": "projectcalico.org/v3",
        "kind": "WorkloadEndpoint",
        "metadata": {"name": key(container, node).name, "namespace": "default"},
        "spec": {"node": node, "containerID": container, "endpoint": "eth0", **spec},
    }


def siblings(container: str, node: str = NODE) -> ResourceList:
    prefix = f"{node.replace('-', '--')}-cni-{container[:11].replace('-', '--')}"
    return ResourceList("WorkloadEndpoint", "default", prefix)


@pytest.fixture
def empty_store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def endpoints(empty_store: MemoryStore) -> NodeEndpoints:
    return NodeEndpoints(empty_store, NODE)


def found(door, container: str) -> list[str]:
    return [item.value["spec"]["containerID"] for item in door.list(siblings(container), SOON).items]


def test_our_own_are_listed_once_and_then_known(empty_store: MemoryStore, endpoints: NodeEndpoints):
    empty_store.elsewhere(Write.put(key("old"), document("old")), Write.put(key("x", "other"), document("x", "other")))
    door = endpoints.door(may_miss=True)
    assert found(door, "old") == ["old"] and empty_store.round_trips.reads == 1
    committed = door.commit([Write.create(key("new"), document("new"))], SOON)
    assert found(door, "new") == ["new"]
    door.commit([Write.delete(committed.stored[0])], SOON)
    door.commit([Write.remove(key("old"))], SOON)
    assert found(door, "new") == found(door, "old") == []
    assert empty_store.round_trips.reads == 1


def test_those_with_the_same_first_characters_are_found_and_no_others(
    empty_store: MemoryStore, endpoints: NodeEndpoints
):
    names = ["a-b-c-d-e-f1", "a-b-c-d-e-f2", "a-b-c-d-e-g", "a"]
    empty_store.elsewhere(*(Write.put(key(name), document(name)) for name in names))
    door = endpoints.door(may_miss=True)
    for name in names:
        stored = [item.key for item in empty_store.list(siblings(name), SOON).items]
        assert [item.key for item in door.list(siblings(name), SOON).items] == (
            [k for k in stored if len(name) >= 11 or k == key(name)]
        )


def test_a_del_looks_up_what_memory_does_not_have(empty_store: MemoryStore, endpoints: NodeEndpoints):
    """A one-shot process made it while the server was there."""
    adding, deleting = endpoints.door(may_miss=True), endpoints.door(may_miss=False)
    assert found(adding, "c1") == []
    empty_store.elsewhere(Write.put(key("c1"), document("c1")))
    assert found(adding, "c1") == []
    assert found(deleting, "c1") == ["c1"]
    assert found(adding, "c1") == ["c1"], "known from then on"


def test_an_adds_conflict_tells_what_memory_does_not_have(empty_store: MemoryStore, endpoints: NodeEndpoints):
    door = endpoints.door(may_miss=True)
    assert found(door, "c1") == []
    empty_store.elsewhere(Write.put(key("c1"), document("c1", mac="theirs")))
    with pytest.raises(CommitConflict) as conflict:
        door.commit([Write.create(key("c1"), document("c1"))], SOON)
    assert conflict.value.failed[0].current.value["spec"]["mac"] == "theirs"
    assert [item.value["spec"]["mac"] for item in door.list(siblings("c1"), SOON).items] == ["theirs"]


def test_a_conflict_takes_away_what_is_no_more(empty_store: MemoryStore, endpoints: NodeEndpoints):
    empty_store.elsewhere(Write.put(key("c1"), document("c1")))
    door = endpoints.door(may_miss=True)
    (stale,) = door.list(siblings("c1"), SOON).items
    empty_store.elsewhere(Write.remove(key("c1")))
    assert found(door, "c1") == ["c1"]
    with pytest.raises(CommitConflict):
        door.commit([Write.delete(stale)], SOON)
    assert found(door, "c1") == []


def test_an_old_list_does_not_undo_what_was_written_since(empty_store: MemoryStore, endpoints: NodeEndpoints):
    old = empty_store.elsewhere(Write.put(key("c1"), document("c1", mac="old"))).stored
    door = endpoints.door(may_miss=True)
    (known,) = door.list(siblings("c1"), SOON).items
    door.commit([Write.update(known, document("c1", mac="new"))], SOON)
    endpoints.learn(old)
    assert [item.value["spec"]["mac"] for item in door.list(siblings("c1"), SOON).items] == ["new"]


def test_what_cannot_be_listed_is_an_error_and_not_an_empty_memory(empty_store: MemoryStore, endpoints: NodeEndpoints):
    empty_store.elsewhere(Write.put(key("c1"), document("c1")))
    empty_store.set_down(True)
    door = endpoints.door(may_miss=True)
    with pytest.raises(DatastoreUnavailable):
        door.list(siblings("c1"), SOON)
    empty_store.set_down(False)
    assert found(door, "c1") == ["c1"]


def test_a_lost_answer_teaches_nothing(empty_store: MemoryStore, endpoints: NodeEndpoints):
    door = endpoints.door(may_miss=True)
    assert found(door, "c1") == []
    empty_store.script.append("lost")
    with pytest.raises(DatastoreUnavailable):
        door.commit([Write.create(key("c1"), document("c1"))], SOON)
    assert found(endpoints.door(may_miss=False), "c1") == ["c1"]


def test_a_profile_is_read_once(empty_store: MemoryStore, endpoints: NodeEndpoints):
    name = ResourceKey("Profile", "calnet")
    door = endpoints.door(may_miss=True)
    assert door.get(name, SOON) is None
    door.commit([Write.create(name, {"kind": "Profile"})], SOON)
    reads = empty_store.round_trips.reads
    assert door.get(name, SOON) is not None and empty_store.round_trips.reads == reads


def test_without_transactions_the_store_itself_answers():
    single = MemoryStore(max_commit=1)
    assert NodeEndpoints(single, NODE).door(may_miss=True) is single


def test_many_threads_end_with_what_is_stored(empty_store: MemoryStore, endpoints: NodeEndpoints):
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        door = endpoints.door(may_miss=bool(number % 2))
        for i in range(20):
            container = f"c{number}x{i}"
            stored = door.commit([Write.create(key(container), document(container))], SOON).stored[0]
            assert found(door, container) in ([container], [])  # [] only while the first list is under way
            if i % 3:
                door.commit([Write.delete(stored)], SOON)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    door = endpoints.door(may_miss=False)
    for number in range(8):
        for i in range(20):
            wanted = [] if i % 3 else [f"c{number}x{i}"]
            stored = [
                item.value["spec"]["containerID"] for item in empty_store.list(siblings(f"c{number}x{i}"), SOON).items
            ]
            assert [c for c in stored if c == f"c{number}x{i}"] == wanted
            assert set(wanted) <= set(found(door, f"c{number}x{i}"))


class ListingMeets(MemoryStore):
    """Something happens right after the endpoints have been listed, and before the list is used."""

    def __init__(self) -> None:
        super().__init__()
        self.happens = lambda: None

    def list(self, listing, deadline, **options):
        answer = super().list(listing, deadline, **options)
        happens, self.happens = self.happens, lambda: None
        happens()
        return answer


def test_what_we_write_while_they_are_listed_is_known():
    store = ListingMeets()
    endpoints = NodeEndpoints(store, NODE)
    door = endpoints.door(may_miss=True)
    store.elsewhere(Write.put(key("goes"), document("goes")))
    (goes,) = store.list(ResourceList("WorkloadEndpoint"), SOON).items

    def happens() -> None:
        door.commit([Write.create(key("new"), document("new"))], SOON)
        door.commit([Write.delete(goes)], SOON)

    store.happens = happens
    assert found(door, "new") == ["new"] and found(door, "goes") == []


def test_a_list_from_before_another_process_wrote_is_not_used():
    store = ListingMeets()
    endpoints = NodeEndpoints(store, NODE)

    def happens() -> None:
        store.elsewhere(Write.put(key("beside"), document("beside")))
        endpoints.forget()

    store.happens = happens
    assert found(endpoints.door(may_miss=True), "beside") == ["beside"]
    store.elsewhere(Write.put(key("later"), document("later")))
    assert found(endpoints.door(may_miss=True), "later") == []
    endpoints.forget()
    assert found(endpoints.door(may_miss=True), "later") == ["later"]
