"""The cache under outages, compaction, and its own writes arriving in any order."""

from __future__ import annotations

import operator
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator

import pytest

from cni_calico.datastore import cache as cache_module
from cni_calico.datastore.cache import Cache, stop_caches
from cni_calico.datastore.interface import Versioned, Write
from cni_calico.datastore.local.store import LocalStore
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.deadline import Deadline
from cni_calico.errors import CorruptRecord, DatastoreUnavailable, DeadlineExceeded
from cni_calico.model.keys import HandleKey, HandleList, IPAMConfigKey
from tests.deadlines import SOON, until
from tests.fakes.memory_store import MemoryStore

ONE, TWO = HandleKey("net.one"), HandleKey("net.two")


@pytest.fixture(params=["memory", "local"])
def watched_store(request: pytest.FixtureRequest) -> Iterator:
    if request.param == "memory":
        yield MemoryStore()
        return
    directory = tempfile.mkdtemp(prefix="cct-cache-")
    local = LocalStore(f"{directory}/datastore.db", poll_s=0.005)
    yield local
    local.close()
    shutil.rmtree(directory)


def number(versioned: Versioned) -> int:
    if "n" not in versioned.value:
        raise CorruptRecord(f"cannot read {versioned.key}: no n")
    return int(versioned.value["n"])


@pytest.fixture
def make_cache() -> Iterator:
    caches = []

    def make(
        store, *, keep_documents=True, same=None, delay=None, cached=False, watch_after=None, **told
    ) -> Cache[int]:
        kept = Kept(HandleList(), number, keep_documents, same)
        caches.append(Cache(store, kept, Listeners(**told), delay=delay, cached=cached, watch_after=watch_after))
        return caches[-1]

    yield make
    for cache in caches:
        cache.stop()
        assert not cache._thread.is_alive()


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(cache_module, "FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(cache_module, "LONGEST_PAUSE_S", 0.02)


def test_lists_then_follows(watched_store, make_cache) -> None:
    watched_store.commit([Write.put(ONE, {"n": 1}), Write.put(IPAMConfigKey(), {"n": 9})], SOON)
    told: list = []
    cache = make_cache(watched_store, on_change=told.append)
    cache.wait_synced(SOON)
    assert cache.records() == {ONE: 1} and cache.healthy and cache.get(TWO) is None
    revision = watched_store.commit([Write.put(ONE, {"n": 2}), Write.put(TWO, {"n": 3})], SOON).revision
    assert cache.wait_until(lambda: cache.revision == revision, SOON)
    assert cache.records() == {ONE: 2, TWO: 3} and cache.record(TWO) == 3
    assert cache.items()[ONE].revision == revision
    watched_store.commit([Write.remove(ONE)], SOON)
    assert cache.wait_until(lambda: cache.get(ONE) is None, SOON)
    cache.stop()
    assert told == [{ONE}, {ONE, TWO}, {ONE}]
    assert cache.records() == {TWO: 3} and not cache.healthy


def test_a_first_list_is_told_even_if_nothing_is_in_it(make_cache) -> None:
    empty, filled = MemoryStore(), MemoryStore()
    filled.commit([Write.put(ONE, {"n": 1})], SOON)
    of_empty: list = []
    of_filled: list = []
    make_cache(empty, on_read=lambda: of_empty.append("read"), on_change=of_empty.append)
    make_cache(filled, on_read=lambda: of_filled.append("read"), on_change=of_filled.append)
    until(lambda: of_empty and of_filled, "both first lists are told")
    assert of_empty == ["read"] and of_filled == [{ONE}]
    filled.commit([Write.remove(ONE)], SOON)
    until(lambda: len(of_filled) == 2, "the change is told")
    assert of_filled == [{ONE}, {ONE}]


def test_what_cannot_be_decoded_is_there_without_a_record(watched_store, make_cache) -> None:
    watched_store.commit([Write.put(ONE, {}), Write.put(TWO, {"n": 2})], SOON)
    heard: list = []
    cache = make_cache(watched_store, corrupt=lambda key, why: heard.append(key))
    cache.wait_synced(SOON)
    assert cache.get(ONE) is not None and cache.record(ONE) is None and cache.records() == {TWO: 2}
    assert heard == [ONE]


def test_survives_an_outage_with_what_it_knew(make_cache) -> None:
    store = MemoryStore()
    store.elsewhere(Write.put(ONE, {"n": 1}))
    cache = make_cache(store)
    cache.wait_synced(SOON)
    store.set_down(True)
    assert cache.wait_until(lambda: not cache.healthy, SOON)
    assert isinstance(cache.error, DatastoreUnavailable) and cache.records() == {ONE: 1}
    store.elsewhere(Write.put(ONE, {"n": 2}))
    store.elsewhere(Write.remove(ONE), Write.put(TWO, {"n": 3}))
    store.compact()
    store.set_down(False)
    assert cache.wait_until(lambda: cache.healthy, SOON)
    assert cache.records() == {TWO: 3}


def test_lists_again_when_overtaken_by_compaction(make_cache) -> None:
    store = MemoryStore()
    cache = make_cache(store)
    cache.wait_synced(SOON)
    with store._changed:  # the watcher cannot run in between
        store.elsewhere(Write.put(ONE, {"n": 1}))
        store.elsewhere(Write.put(ONE, {"n": 2}))
        store.compact()
    assert cache.wait_until(lambda: cache.records() == {ONE: 2}, SOON)
    assert cache.error is None


def test_waiting_in_vain_says_why(make_cache) -> None:
    store = MemoryStore()
    store.set_down(True)
    cache = make_cache(store)
    assert cache.wait_until(lambda: cache.error is not None, SOON)
    with pytest.raises(DatastoreUnavailable, match="outage"):
        cache.wait_synced(Deadline.after(0))
    assert not cache.synced and cache.revision is None

    class Silent(MemoryStore):
        def list(self, *arguments, **options):
            released.wait(60)
            return super().list(*arguments, **options)

    released = threading.Event()
    silent = make_cache(Silent())
    with pytest.raises(DeadlineExceeded):
        silent.wait_synced(Deadline.after(0))
    released.set()


def test_a_bug_in_a_callback_does_not_end_the_thread(make_cache) -> None:
    store, calls = MemoryStore(), []

    def broken(keys) -> None:
        calls.append(keys)
        if len(calls) == 1:
            raise ZeroDivisionError

    store.elsewhere(Write.put(ONE, {"n": 1}))
    cache = make_cache(store, on_change=broken)
    store.elsewhere(Write.put(TWO, {"n": 2}))
    assert cache.wait_until(lambda: cache.records() == {ONE: 1, TWO: 2} and cache.healthy, SOON)


def test_own_writes_count_at_once(make_cache) -> None:
    """Also before the watch brings them, and what the watch brings later does not undo them."""
    store, told = MemoryStore(), []
    cache = make_cache(store, on_change=told.append)
    cache.wait_synced(SOON)
    with store._changed:  # the watcher cannot run in between
        first = store.elsewhere(Write.put(ONE, {"n": 1}), Write.put(TWO, {"n": 1}), Write.put(IPAMConfigKey(), {}))
        writes = [Write.update(first.stored[0], {"n": 2}), Write.remove(TWO)]
        second = store.elsewhere(*writes)
        cache.apply(second, writes)
        assert cache.records() == {ONE: 2}
        cache.apply(first)
        assert cache.records() == {ONE: 2}, "an older commit must not undo a newer one"
    assert cache.wait_until(lambda: cache.revision == second.revision, SOON)
    assert cache.records() == {ONE: 2} and set(cache.items()) == {ONE}
    store.elsewhere(Write.put(TWO, {"n": 5}))
    assert cache.wait_until(lambda: cache.records() == {ONE: 2, TWO: 5}, SOON)
    assert cache._known.removed == {}


def test_another_store_in_place_of_ours(make_cache) -> None:
    """A datastore restored from a backup goes back in time; so does the cache, after listing again."""
    store = MemoryStore()
    for n in range(5):
        store.elsewhere(Write.put(ONE, {"n": n}), Write.put(TWO, {"n": n}))
    cache = make_cache(store)
    cache.wait_synced(SOON)
    with store._changed:
        store._past, store.revision, store._compacted = {}, 0, 0
        store.elsewhere(Write.put(ONE, {"n": 77}))
    assert cache.wait_until(lambda: cache.records() == {ONE: 77}, SOON)
    assert cache.revision == 1


def test_only_records_may_be_kept(make_cache) -> None:
    store = MemoryStore()
    store.elsewhere(Write.put(ONE, {"n": 1, "much": "more"}))
    cache = make_cache(store, keep_documents=False)
    cache.wait_synced(SOON)
    assert cache.records() == {ONE: 1}
    store.elsewhere(Write.put(ONE, {"n": 2, "much": "more"}))
    assert cache.wait_until(lambda: cache.record(ONE) == 2, SOON)
    assert cache.get(ONE).value == {}


def test_only_differences_may_be_told(make_cache) -> None:
    """What was written again as it was is known at its new revision, and nobody is told."""
    store, told = MemoryStore(), []
    store.elsewhere(Write.put(ONE, {"n": 1}), Write.put(TWO, {"n": 1}))
    cache = make_cache(store, on_change=told.append, same=operator.eq, keep_documents=False)
    cache.wait_synced(SOON)
    for number in range(3):
        heartbeat = store.elsewhere(Write.put(ONE, {"n": 1, "seen": number}))
        assert cache.wait_until(lambda at=heartbeat.revision: cache.revision == at, SOON)
    assert cache.get(ONE).revision == heartbeat.revision
    store.elsewhere(Write.put(ONE, {"n": 2}))
    store.elsewhere(Write.put(TWO, {}))  # cannot be read any more
    store.elsewhere(Write.put(TWO, {"n": 1}))
    last = store.elsewhere(Write.remove(ONE))
    assert cache.wait_until(lambda: cache.revision == last.revision, SOON)
    cache.stop()
    assert told == [{ONE, TWO}, {ONE}, {TWO}, {TWO}, {ONE}]


def test_only_differences_are_told_after_a_new_list(make_cache) -> None:
    store, told = MemoryStore(), []
    store.elsewhere(Write.put(ONE, {"n": 1}), Write.put(TWO, {"n": 1}))
    cache = make_cache(store, on_change=told.append, same=operator.eq)
    cache.wait_synced(SOON)
    store.set_down(True)
    assert cache.wait_until(lambda: not cache.healthy, SOON)
    store.elsewhere(Write.put(ONE, {"n": 1, "seen": 1}), Write.put(TWO, {"n": 2}))
    store.compact()
    store.set_down(False)
    assert cache.wait_until(lambda: cache.healthy, SOON)
    cache.stop()
    assert told == [{ONE, TWO}, {TWO}]


def test_records_that_are_handed_over_are_not_kept(make_cache) -> None:
    store, given = MemoryStore(), []
    store.elsewhere(Write.put(ONE, {"n": 1}))
    cache = make_cache(store, hand_over=lambda key, record: given.append((key, record)), keep_documents=False)
    cache.wait_synced(SOON)
    last = store.elsewhere(Write.put(TWO, {"n": 2}))
    assert cache.wait_until(lambda: cache.revision == last.revision, SOON)
    assert given == [(ONE, 1), (TWO, 2)]
    assert cache.record(ONE) is None and cache.get(ONE) is not None


class Breaking(MemoryStore):
    """The first list breaks off after its first record."""

    def __init__(self) -> None:
        super().__init__()
        self.lists, self.cached = 0, []

    def list(self, listing, deadline, *, revision=None, reading):
        self.lists += 1
        self.cached.append(reading.cached)
        found = super().list(listing, deadline, revision=revision, reading=reading)
        if self.lists == 1:
            self.elsewhere(Write.remove(ONE))
            raise DatastoreUnavailable("the connection broke")
        return found


def test_a_list_that_broke_off_hands_nothing_over(make_cache) -> None:
    """Its records may be gone before the next one, and nobody would ever say so."""
    store, given = Breaking(), []
    store.elsewhere(Write.put(ONE, {"n": 1}))
    cache = make_cache(store, hand_over=lambda key, record: given.append(key), cached=True)
    cache.wait_synced(SOON)
    assert given == [] and cache.items() == {}


def test_only_the_first_list_may_be_an_old_one(make_cache) -> None:
    store = Breaking()
    cache = make_cache(store, cached=True)
    cache.wait_synced(SOON)
    store.set_down(True)
    assert cache.wait_until(lambda: not cache.healthy, SOON)
    store.elsewhere(Write.put(TWO, {"n": 2}))
    store.compact()
    store.set_down(False)
    assert cache.wait_until(lambda: cache.records() == {TWO: 2}, SOON)
    assert store.cached[:2] == [True, True] and not any(store.cached[2:])
    assert len(store.cached) > 2


def test_a_page_leaves_nothing_behind_but_its_records(make_cache) -> None:
    """While the list is read, nobody holds the document of a record that was decoded."""
    seen: list = []

    class Watched(MemoryStore):
        def list(self, listing, deadline, *, revision=None, reading):
            found = super().list(listing, deadline, revision=revision, reading=reading)
            seen.extend(item.value for item in found.items)
            return found

    store = Watched()
    store.elsewhere(Write.put(ONE, {"n": 1, "much": "more"}))
    cache = make_cache(store, keep_documents=False)
    cache.wait_synced(SOON)
    assert seen == [{}] and cache.records() == {ONE: 1}


def test_the_first_list_can_be_delayed(make_cache, monkeypatch) -> None:
    store = Breaking()
    cache = make_cache(store, delay=lambda stopped: 3600.0)
    assert not cache.synced and store.lists == 0
    cache.stop()
    assert store.lists == 0


class Hanging(MemoryStore):
    """Answers no list before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.asked = threading.Event(), threading.Semaphore(0)

    def list(self, *arguments, **options):
        self.asked.release()
        assert self.go.wait(30)
        return super().list(*arguments, **options)


def test_the_first_watch_can_be_put_off(make_cache, monkeypatch) -> None:
    """What is written meanwhile comes with it; it is not put off for ever."""
    monkeypatch.setattr(cache_module, "PUT_OFF_S", 3600.0)
    store, after = MemoryStore(), threading.Event()
    opened = threading.Event()
    watch = store.watch

    def watched(*arguments, **options):
        opened.set()
        return watch(*arguments, **options)

    monkeypatch.setattr(store, "watch", watched)
    cache = make_cache(store, watch_after=after)
    cache.wait_synced(SOON)
    store.commit([Write.put(ONE, {"n": 1})], SOON)
    assert not opened.is_set() and cache.records() == {}
    after.set()
    assert cache.wait_until(lambda: cache.records() == {ONE: 1}, SOON) and opened.is_set()
    monkeypatch.setattr(cache_module, "PUT_OFF_S", 0.01)
    late = make_cache(store, watch_after=threading.Event())
    late.wait_synced(SOON)
    store.commit([Write.put(TWO, {"n": 2})], SOON)
    assert late.wait_until(lambda: late.records() == {ONE: 1, TWO: 2}, SOON)


def test_many_that_hang_are_waited_for_together(make_cache, monkeypatch):
    store = Hanging()
    caches = [make_cache(store) for _ in range(6)]
    for _ in caches:
        assert store.asked.acquire(timeout=10)
    monkeypatch.setattr(cache_module, "WATCH_S", 0.5)
    begun = time.monotonic()
    stop_caches(caches)
    assert time.monotonic() - begun < 2, "each was waited for by itself"
    assert all(cache._thread.is_alive() and not cache.healthy for cache in caches)
    store.go.set()
    for cache in caches:
        cache._thread.join(10)
        assert not cache._thread.is_alive()
