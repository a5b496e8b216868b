"""A record that cannot be read sends calls to the store, until it is seen to be repaired or gone."""

from __future__ import annotations

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.datastore.unreadable import ASK_AGAIN_S, Unreadable
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreUnavailable
from cni_calico.model.keys import ResourceKey, ResourceList
from tests.fakes.memory_store import MemoryStore

POOL = ResourceKey("IPPool", "p")
POOLS, NODES = (ResourceList("IPPool"),), (ResourceList("Node"),)
GOOD = {
    "apiVersion": "projectcalico.org/v3",
    "kind": "IPPool",
    "metadata": {"name": "p"},
    "spec": {"cidr": "10.65.0.0/16"},
}
BAD = {**GOOD, "spec": {"cidr": 17}}


class World:
    def __init__(self) -> None:
        self.store, self.now, self.said = MemoryStore(), 0.0, []
        self.unreadable = Unreadable(self.store, lambda key, why: self.said.append(key), clock=lambda: self.now)

    def put(self, document: dict | None) -> None:
        write = Write.put(POOL, document) if document is not None else Write.remove(POOL)
        self.store.commit([write], Deadline.after(5))

    def later(self) -> bool:
        self.now += ASK_AGAIN_S
        return self.unreadable.any_of(POOLS)


@pytest.fixture
def unreadable_world() -> World:
    made = World()
    made.put(BAD)
    made.unreadable.note(POOL, "why")
    return made


def test_only_the_listings_that_have_it(unreadable_world: World):
    assert unreadable_world.unreadable.any_of(POOLS) and not unreadable_world.unreadable.any_of(NODES)
    unreadable_world.unreadable.note(POOL, "why")
    assert unreadable_world.said == [POOL]


@pytest.mark.parametrize("end", [GOOD, None])
def test_its_end_is_found_out(unreadable_world: World, end: dict | None):
    assert unreadable_world.later()
    reads = unreadable_world.store.round_trips.reads
    assert (
        unreadable_world.unreadable.any_of(POOLS) and unreadable_world.store.round_trips.reads == reads
    )  # asked a moment ago
    unreadable_world.put(end)
    assert not unreadable_world.later() and not unreadable_world.unreadable.any_of(POOLS)


def test_a_store_that_does_not_answer_has_told_nothing_new(unreadable_world: World, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> None:
        raise DatastoreUnavailable("cannot read: gone")

    unreadable_world.put(GOOD)
    with monkeypatch.context() as patch:
        patch.setattr(unreadable_world.store, "get", fails)
        assert unreadable_world.later()
    assert not unreadable_world.later()
