"""Records that are read again, one after another, whatever happens to one of them."""

from __future__ import annotations

from cni_calico.datastore.interface import Versioned, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import CorruptRecord
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.feed.rereading import Rereading
from tests.deadlines import until
from tests.fakes.memory_store import MemoryStore


def test_each_that_exists_is_brought() -> None:
    store = MemoryStore()
    keys = [ResourceKey("GlobalNetworkPolicy", name) for name in ("a", "b", "c")]
    for key in keys[:2]:
        store.commit((Write.put(key, {"kind": key.kind, "metadata": {"name": key.name}}),), Deadline.after(5))
    brought: list[ResourceKey] = []

    def bring(key: ResourceKey, found: Versioned) -> None:
        brought.append(key)
        raise CorruptRecord(str(found.key))

    rereading = Rereading(store, bring)
    for key in (keys[2], keys[0], keys[1]):
        rereading.ask(key)
    until(lambda: brought == keys[:2], "both that exist")
    rereading.ask(keys[0])
    until(lambda: len(brought) == 3, "again")
    rereading.stop()


def test_what_nobody_thought_of_holds_up_no_other() -> None:
    store = MemoryStore()
    keys = [ResourceKey("GlobalNetworkPolicy", name) for name in ("a", "b")]
    for key in keys:
        store.commit((Write.put(key, {"kind": key.kind, "metadata": {"name": key.name}}),), Deadline.after(5))
    brought: list[ResourceKey] = []

    def bring(key: ResourceKey, found: Versioned) -> None:
        brought.append(key)
        raise RuntimeError(str(found.key))

    rereading = Rereading(store, bring)
    for number, key in enumerate((*keys, *keys), 1):
        rereading.ask(key)
        until(lambda number=number: len(brought) == number, "it is brought")
    rereading.stop()
