"""Single writes of several threads in one commit: nobody suffers from what is wrong with another's."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.datastore.grouped import GroupedStore
from cni_calico.datastore.interface import CommitConflict, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    CalicoError,
    DatastoreUnavailable,
    DeadlineExceeded,
    OutcomeUnknown,
    RecordRefused,
)
from cni_calico.model.keys import ResourceKey
from tests.deadlines import SOON
from tests.fakes.memory_store import MemoryStore


def key(number: int) -> ResourceKey:
    return ResourceKey("Profile", f"p{number}")


def document(value: object) -> dict:
    return {"apiVersion": "projectcalico.org/v3", "kind": "Profile", "metadata": {"name": "p"}, "spec": {"v": value}}


class Store(MemoryStore):
    """``refused`` values are refused; ``expire`` is called, and may raise, before a commit is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set = set()
        self.expire = lambda deadline: None

    def commit(self, writes, deadline):
        self.expire(deadline)
        for write in writes:
            if write.value is not None and write.value["spec"]["v"] in self.refused:
                raise RecordRefused(f"cannot write {write.key}: refused")
        return super().commit(writes, deadline)


def together(store, *entries):
    """The outcome of each (write, deadline) when all of them come in one batch."""
    return GroupedStore(store)._run([entry if isinstance(entry, tuple) else (entry, SOON) for entry in entries])


def current(store, number):
    found = store.get(key(number), SOON)
    return None if found is None else found.value["spec"]["v"]


def test_one_commit_for_all_with_the_stored_record_for_each():
    store = Store()
    old = store.elsewhere(Write.put(key(9), document("old"))).stored[0]
    outcomes = together(store, Write.create(key(1), document(1)), Write.put(key(2), document(2)), Write.delete(old))
    assert len(store.commits) == 1
    assert [[v.key for v in out.stored] for out in outcomes] == [[key(1)], [key(2)], []]
    assert all(out.revision == store.revision for out in outcomes)
    assert [current(store, i) for i in (1, 2, 9)] == [1, 2, None]


def test_a_conflict_of_one_is_its_own():
    store = Store()
    there = store.elsewhere(Write.put(key(2), document("there"))).stored[0]
    outcomes = together(store, *(Write.create(key(i), document(i)) for i in (1, 2, 3)))
    assert isinstance(outcomes[1], CommitConflict)
    (failed,) = outcomes[1].failed
    assert (failed.index, failed.key, failed.current) == (0, key(2), there)
    assert [current(store, i) for i in (1, 2, 3)] == [1, "there", 3]


def test_writes_of_one_key_follow_one_another():
    store = Store()
    outcomes = together(
        store,
        Write.create(key(1), document("a")),
        Write.create(key(1), document("b")),
        Write.create(key(2), document(2)),
    )
    assert current(store, 1) == "a" and current(store, 2) == 2 and isinstance(outcomes[1], CommitConflict)
    assert outcomes[1].failed[0].current.value["spec"]["v"] == "a"
    assert [len(writes) for writes in store.commits] == [2]


def test_a_lost_answer_is_everybodys():
    store = Store()
    store.script.append("lost")
    outcomes = together(store, *(Write.create(key(i), document(i)) for i in (1, 2)))
    assert [type(out) for out in outcomes] == [OutcomeUnknown] * 2 and outcomes[0] is not outcomes[1]
    assert [current(store, i) for i in (1, 2)] == [1, 2]


def test_an_outage_is_everybodys():
    store = Store()
    store.script.append("fail")
    outcomes = together(store, *(Write.create(key(i), document(i)) for i in (1, 2)))
    assert [type(out) for out in outcomes] == [DatastoreUnavailable] * 2
    assert store.documents() == {}


@pytest.mark.parametrize("error", [DeadlineExceeded("too late"), DatastoreUnavailable("nobody answered in time")])
def test_who_has_more_time_does_not_fail_for_the_one_who_has_none(error):
    store = Store()

    def expire(deadline):
        if deadline.expired():
            raise error

    store.expire = expire
    outcomes = together(
        store, (Write.create(key(1), document(1)), Deadline.after(-1)), (Write.create(key(2), document(2)), SOON)
    )
    assert type(outcomes[0]) is type(error) and current(store, 1) is None
    assert outcomes[1].revision == store.revision and current(store, 2) == 2


@pytest.mark.parametrize("refused", [{"bad"}, {"bad", 1, 3}])
def test_a_record_that_is_refused_is_one_callers_trouble(refused):
    store = Store()
    store.refused = refused
    outcomes = together(store, *(Write.create(key(i), document(v)) for i, v in enumerate((1, "bad", 3, "fine"))))
    for number, value in enumerate((1, "bad", 3, "fine")):
        assert isinstance(outcomes[number], RecordRefused) == (value in refused)
        assert current(store, number) == (None if value in refused else value)


def test_a_write_that_breaks_the_contract_is_one_callers_trouble():
    store = Store()
    outcomes = together(store, Write("create", key(1)), Write.create(key(2), document(2)))
    assert isinstance(outcomes[0], ValueError) and current(store, 2) == 2


def test_several_members_and_stores_without_transactions_are_passed_on():
    store = Store()
    store.expire = lambda deadline: None
    grouped = GroupedStore(store)
    grouped.commit([Write.put(key(1), document(1)), Write.put(key(2), document(2))], SOON)
    assert [len(writes) for writes in store.commits] == [2] and sum(grouped.sizes) == 0
    single = MemoryStore(max_commit=1)
    GroupedStore(single).commit([Write.put(key(1), document(1))], SOON)
    assert len(single.commits) == 1


@settings(max_examples=40, deadline=None, database=None)
@given(data=st.data(), threads=st.integers(1, 6))
def test_every_caller_is_told_what_happened_to_its_write(data, threads):
    """Threads create, update and delete keys, some of them the same; answers are lost, commits fail."""
    store = Store()
    store.script.extend(data.draw(st.lists(st.sampled_from([None, None, "fail", "lost", "vanish"]), max_size=12)))
    store.refused = data.draw(st.sets(st.integers(0, 30), max_size=3))
    plans = [data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=6)) for _ in range(threads)]
    grouped = GroupedStore(store)
    told: list[tuple[int, object, object]] = []
    guard = threading.Lock()

    def work(number):
        for step, target in enumerate(plans[number]):
            value = number * 10 + step
            found = store.get(key(target), SOON)
            write = Write.update(found, document(value)) if found else Write.create(key(target), document(value))
            try:
                outcome: object = grouped.commit([write], SOON)
            except CalicoError as e:
                outcome = e
            with guard:
                told.append((target, value, outcome))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    written = [(write.key, write.value["spec"]["v"]) for writes in store.commits for write in writes]
    assert len(written) == len(set(written)), "written twice"
    for target, value, outcome in told:
        happened = (key(target), value) in written
        if isinstance(outcome, OutcomeUnknown):
            continue
        assert isinstance(outcome, CalicoError) != happened, (target, value, outcome)
        if isinstance(outcome, CommitConflict):
            assert [failed.key for failed in outcome.failed] == [key(target)]
            assert value not in store.refused
