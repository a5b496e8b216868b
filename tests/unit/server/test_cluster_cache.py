"""What the server knows of a cluster: kept by watches, and not believed while they are broken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cni_calico.datastore import cache as cache_module
from cni_calico.datastore.interface import Write
from cni_calico.model.keys import CLUSTER, IPAMConfigKey, ResourceKey
from cni_calico.server.cluster_cache import ClusterCaches
from tests.deadlines import until
from tests.fakes.memory_store import MemoryStore

POOL = ResourceKey("IPPool", "pool")


def put_pool(store: MemoryStore, **spec: object) -> None:
    document = {"metadata": {"name": "pool"}, "spec": {"cidr": "10.65.0.0/16", **spec}}
    store.elsewhere(Write.put(POOL, document))


def ready(value: bool) -> Write:
    return Write.put(CLUSTER, {"metadata": {"name": "default"}, "spec": {"datastoreReady": value}})


@pytest.fixture
def one_pool_store() -> MemoryStore:
    made = MemoryStore()
    put_pool(made)
    made.elsewhere(ready(True), Write.put(IPAMConfigKey(), {"auto_allocate_blocks": True}))
    return made


@pytest.fixture
def caches(one_pool_store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterCaches]:
    monkeypatch.setattr(cache_module, "FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(cache_module, "LONGEST_PAUSE_S", 0.02)
    made = ClusterCaches(one_pool_store, "node1", lambda key, why: None)
    until(lambda: made.healthy, "everything has been read")
    yield made
    made.stop()


def disabled(caches: ClusterCaches) -> bool | None:
    facts = caches.facts("node1")
    return None if facts is None else facts.pools[0].disabled


def test_nothing_is_known_while_a_watch_is_broken(one_pool_store: MemoryStore, caches: ClusterCaches):
    assert disabled(caches) is False and caches.cluster_information()[0]
    one_pool_store.set_down(True)
    until(lambda: not any(cache.healthy for cache in caches.all), "every watch is broken")
    assert caches.facts("node1") is None and caches.facts("") is None
    assert caches.cluster_information() == (False, None)
    put_pool(one_pool_store, disabled=True)
    one_pool_store.elsewhere(ready(False))
    one_pool_store.set_down(False)
    seen = until(lambda: caches.facts("node1"), "it is known again")
    assert seen.pools[0].disabled, "what is known again is what is stored now"
    until(lambda: caches.cluster_information()[0], "the state too")
    assert caches.cluster_information()[1]["spec"]["datastoreReady"] is False


def test_one_broken_watch_is_enough(one_pool_store: MemoryStore, caches: ClusterCaches):
    """Reservations that may not be seen are reason enough to ask."""
    caches.reservations.stop()
    assert caches.facts("node1") is None and caches.cluster_information()[0]


def test_facts_that_were_made_during_a_change_are_not_kept(
    one_pool_store: MemoryStore, caches: ClusterCaches, monkeypatch
):
    make = caches._make_facts

    def overtaken():
        facts = make()
        if not overtaking:
            overtaking.append(True)
            put_pool(one_pool_store, disabled=True)
            until(lambda: caches.pools.record(POOL).disabled and caches._changes > before, "the watch brings it")
        return facts

    overtaking: list[bool] = []
    before = caches._changes
    monkeypatch.setattr(caches, "_make_facts", overtaken)
    assert disabled(caches) is False and disabled(caches) is True
