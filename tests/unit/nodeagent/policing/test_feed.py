"""Records on their way to the graph: what cannot be read is never taken for gone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing import feed as feeds
from cni_calico.nodeagent.policing.feed import FedRecord, RecordFeed, Refusal
from tests.fakes.memory_store import MemoryStore
from tests.netns.namespaces import until

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
        self.seen.update(self.feed.take())
        return self.seen.get(DENY)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(feeds, "ASK_AGAIN_S", 0.05)
    made = World()
    yield made
    made.feed.stop()


def selector(world: World) -> object:
    record = world.record()
    return record.spec.get("selector") if record is not None and not isinstance(record, Refusal) else record  # type: ignore[union-attr]


def test_put_and_removed(world: World) -> None:
    assert selector(world) == "all()"
    world.store.commit((Write.put(DENY, document("app == 'b'")),), Deadline.after(5))
    until(lambda: selector(world) == "app == 'b'", "the change")
    world.store.commit((Write.remove(DENY),), Deadline.after(5))
    until(lambda: selector(world) is None, "the end")


def test_garbage_is_refused_and_not_gone(world: World) -> None:
    assert selector(world) == "all()"
    world.store.plant(DENY, b"{garbage")
    until(lambda: isinstance(world.record(), Refusal), "the refusal")
    world.store.plant(DENY, json.dumps(document("app == 'c'")).encode())
    until(lambda: selector(world) == "app == 'c'", "the repaired record")


def test_garbage_that_is_removed_is_gone(world: World) -> None:
    """The watch does not tell: for a cache it was not there."""
    assert selector(world) == "all()"
    world.store.plant(DENY, b"{garbage")
    until(lambda: isinstance(world.record(), Refusal), "the refusal")
    world.store.commit((Write.remove(DENY),), Deadline.after(5))
    until(lambda: world.record() is None, "the end")
