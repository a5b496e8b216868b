"""Commits, old revisions and watches against a naive model."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.datastore.interface import CommitConflict, Datastore, Event, Versioned, Write
from cni_calico.datastore.unread import UnreadDocument
from cni_calico.deadline import Deadline
from cni_calico.model.keys import EverythingList, HandleList, Key, ResourceList
from tests.contract.backends import KEYS, Backend, Space, document, number

ONE, TWO, THREE = KEYS[:3]
OPS = ("create", "update", "put", "delete", "remove", "expect", "expect_absent")
# A commit: members (operation, key, use a stale revision?)
MEMBER = st.tuples(st.sampled_from(OPS), st.sampled_from(range(len(KEYS))), st.booleans())
COMMITS = st.lists(st.lists(MEMBER, min_size=1, max_size=5, unique_by=lambda m: m[1]), min_size=1, max_size=12)


class Model:
    """A dictionary, its past, and what a watch should have seen."""

    def __init__(self) -> None:
        self.now: dict[Key, tuple[int, object]] = {}
        self.seen: dict[Key, list[Versioned]] = {}
        self.snapshots: list[tuple[object, dict[Key, tuple[int, object]]]] = []
        self.batches: list[dict[Key, int | None]] = []
        self.numbers = 0

    def write(self, op: str, key: Key, stale: bool) -> Write:
        self.numbers += 1
        value = document(key, self.numbers)
        past = self.seen.get(key, [])
        base = past[0 if stale else -1] if past else Versioned(key, {}, 1)
        return {
            "create": Write.create(key, value),
            "put": Write.put(key, value),
            "remove": Write.remove(key),
            "update": Write.update(base, value),
            "delete": Write.delete(base),
            "expect": Write.expect(base),
            "expect_absent": Write.expect_absent(key),
        }[op]

    def failing(self, writes: list[Write]) -> list[int]:
        def holds(write: Write) -> bool:
            current = self.now.get(write.key, (0, None))[1]
            return write.op in ("put", "remove") or current == write.revision

        return [i for i, write in enumerate(writes) if not holds(write)]

    def apply(self, writes: list[Write], stored: list[Versioned], revision: object) -> None:
        changed: dict[Key, int | None] = {}
        for write in writes:
            if write.op in ("delete", "remove") and write.key in self.now:
                del self.now[write.key]
                changed[write.key] = None
        for record in stored:
            n = number(record.key, record.value)
            self.now[record.key] = (n, record.revision)
            self.seen.setdefault(record.key, []).append(record)
            changed[record.key] = n
        if changed:
            self.batches.append(changed)
            self.snapshots.append((revision, dict(self.now)))


def listed(store: Datastore, deadline: Deadline, revision=None) -> dict[Key, tuple[int, object]]:
    items = store.list(EverythingList(), deadline, revision=revision).items
    return {v.key: (number(v.key, v.value), v.revision) for v in items}


def numbers_of(events: list[Event]) -> dict[Key, int | None]:
    return {e.key: None if e.value is None else number(e.key, e.value) for e in events}


def watched(store: Datastore, revision, count: int) -> list[dict[Key, int | None]]:
    """The next ``count`` batches after a revision, and that nothing more is there."""
    batches, until = [], time.monotonic() + 20
    with store.watch(EverythingList(), revision) as watch:
        while len(batches) < count and time.monotonic() < until:
            events = watch.next(1.0)
            if events:
                assert len({e.revision for e in events}) == 1
                batches.append(numbers_of(events))
        assert not watch.next(0.03)
    return batches


@settings(max_examples=25, deadline=None)
@given(commits=COMMITS)
def test_random_commits_do_what_a_dictionary_does(backend: Backend, commits) -> None:
    with backend.fresh() as space:
        store, model, soon = space.first, Model(), Deadline.after(60)
        start = store.list(EverythingList(), soon).revision
        for members in commits:
            writes = [model.write(op, KEYS[k], stale) for op, k, stale in members[: store.max_commit]]
            expected = model.failing(writes)
            try:
                done = store.commit(writes, soon)
            except CommitConflict as conflict:
                assert [f.index for f in conflict.failed] == expected and expected
                for failed in conflict.failed:
                    current = failed.current and (number(failed.key, failed.current.value), failed.current.revision)
                    assert current == model.now.get(failed.key)
            else:
                assert not expected
                assert [v.key for v in done.stored] == [w.key for w in writes if w.value is not None]
                model.apply(writes, list(done.stored), done.revision)
            assert listed(store, soon) == model.now
        if backend.history:
            for revision, snapshot in model.snapshots:
                assert listed(store, soon, revision) == snapshot
        assert watched(store, start, len(model.batches)) == model.batches
        middle = len(model.batches) // 2
        if not backend.exact_deletes:
            middle = max((i for i, batch in enumerate(model.batches) if None not in batch.values()), default=-1)
        if 0 <= middle < len(model.batches):
            after = model.snapshots[middle][0]
            assert watched(store, after, len(model.batches) - middle - 1) == model.batches[middle + 1 :]


def test_watch_of_one_listing_sees_only_that(store: Datastore, soon: Deadline) -> None:
    revision = store.list(HandleList(), soon).revision
    with store.watch(HandleList(), revision) as watch:
        for key in KEYS:
            store.commit([Write.create(key, document(key, 4))], soon)
        seen: list[Event] = []
        while len(seen) < 3 and not soon.expired():
            seen += watch.next(1.0)
        assert [e.key for e in seen] == [ONE, TWO, THREE]
        assert not watch.next(0.05)


def test_watch_wakes_for_another_client(space: Space, soon: Deadline) -> None:
    store, other = space.first, space.open()
    revision = store.list(HandleList(), soon).revision
    with store.watch(HandleList(), revision) as watch:
        assert not watch.next(0.05)
        for n in range(1, 6):
            other.commit([Write.put(ONE, document(ONE, n))], soon)
            batch = watch.next(10)
            assert numbers_of(batch) == {ONE: n}


def test_cancel_wakes_a_waiting_reader(store: Datastore, soon: Deadline) -> None:
    watch = store.watch(HandleList(), store.list(HandleList(), soon).revision)
    answers: list[object] = []
    reader = threading.Thread(target=lambda: answers.append(watch.next(30)))
    reader.start()
    watch.cancel()
    reader.join(10)
    assert not reader.is_alive() and not list(answers[0]) and watch.cancelled
    assert not watch.next(5)


def test_a_watcher_beside_writing_threads_misses_nothing(space: Space, soon: Deadline) -> None:
    """Three threads write 30 commits each, two watchers see all of them once and in the order of their revisions."""
    store = space.first
    start = store.list(EverythingList(), soon).revision
    errors: list[BaseException] = []

    def write(key: Key, client: Datastore) -> None:
        try:
            for n in range(1, 31):
                client.commit([Write.put(key, document(key, n))], soon)
        except BaseException as e:
            errors.append(e)

    writers = [threading.Thread(target=write, args=(key, space.open())) for key in (ONE, TWO, KEYS[3])]
    watches = [store.watch(EverythingList(), start), space.open().watch(EverythingList(), start)]
    for writer in writers:
        writer.start()
    for watch in watches:
        seen: dict[Key, list[int | None]] = {}
        revisions = []
        while sum(map(len, seen.values())) < 90 and not soon.expired() and not errors:
            for event in watch.next(1.0):
                seen.setdefault(event.key, []).append(number(event.key, event.value))
                revisions.append(event.revision)
        assert not errors
        assert seen == {key: list(range(1, 31)) for key in (ONE, TWO, KEYS[3])}
        if isinstance(start, int):
            assert revisions == sorted(revisions) and len(set(revisions)) == 90
        watch.cancel()
    for writer in writers:
        writer.join()


def test_lists_at_a_revision_that_is_not_there(backend: Backend, store: Datastore, soon: Deadline) -> None:
    from cni_calico.errors import Compacted

    if not backend.history:
        pytest.skip("backend: no lists at old revisions")
    now = store.list(EverythingList(), soon).revision
    with pytest.raises(Compacted):
        store.list(EverythingList(), soon, revision=now + 1000)


def test_large_documents_come_unread_and_in_their_order(store: Datastore, soon: Deadline) -> None:
    """They say what they would say otherwise; what is small, and a removal, has nothing to be read."""
    first, second = KEYS[5], KEYS[6]
    long, short = ([f"10.{n >> 8}.{n & 255}.0/24" for n in range(count)] for count in (2000, 3))

    def networks(key: Key, nets: list[str]) -> Write:
        value = document(key, 1)
        return Write.put(key, {**value, "spec": {**value["spec"], "nets": nets}})

    writes = [networks(first, long), networks(second, short), networks(first, long[1:]), Write.remove(first)]
    listing = ResourceList("GlobalNetworkSet")
    revision = store.list(listing, soon).revision
    with store.watch(listing, revision) as whole, store.watch(listing, revision, unread_from=10_000) as watch:
        for write in writes:
            store.commit([write], soon)
        expected, seen = ([event for _ in writes for event in one.next(20)] for one in (whole, watch))
    assert [type(event.value) is UnreadDocument for event in seen] == [True, False, True, False]
    read = [one.value.read() if isinstance(one.value, UnreadDocument) else one.value for one in seen]
    assert read == [one.value for one in expected] and seen[3].value is None
    assert all(one.value.size >= 10_000 for one in seen if isinstance(one.value, UnreadDocument))
    about = [[(one.key, one.revision, one.uid) for one in some] for some in (seen, expected)]
    assert about[0] == about[1] and not any(isinstance(one.value, UnreadDocument) for one in expected)
