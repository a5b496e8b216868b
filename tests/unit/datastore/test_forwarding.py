"""A store over another one does what the other does, and leaves its end to whoever opened it."""

from __future__ import annotations

import inspect

from cni_calico.datastore.forwarding import ForwardingStore
from cni_calico.datastore.interface import Datastore, Write
from cni_calico.model.keys import HandleKey, HandleList
from tests.deadlines import SOON
from tests.fakes.memory_store import MemoryStore

ONE = HandleKey("one")


def test_everything_reaches_the_other_store_but_its_end() -> None:
    other = MemoryStore()
    store = ForwardingStore(other)
    with store.watch(HandleList(), store.list(HandleList(), SOON).revision) as watch:
        store.commit([Write.put(ONE, {"n": 1})], SOON)
        assert [event.key for event in watch.next(20)] == [ONE]
    found = other.get(ONE, SOON)
    assert found is not None and found == store.get(ONE, SOON) == store.get_many([ONE], SOON)[0]
    assert (store.identity, store.max_commit, store.round_trips) == (
        other.identity,
        other.max_commit,
        other.round_trips,
    )
    store.close()
    assert store.get(ONE, SOON) == found


def test_no_part_of_the_interface_is_forgotten() -> None:
    wanted = {name for name in vars(Datastore) if not name.startswith("_")} | set(Datastore.__annotations__)
    store = ForwardingStore(MemoryStore())
    assert {name for name in wanted if not hasattr(store, name)} == set()
    assert inspect.signature(ForwardingStore.list) == inspect.signature(Datastore.list)
