"""The compare-and-swap loop under conflicts and lost answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.datastore.cas import update
from cni_calico.datastore.interface import Document, Versioned, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreUnavailable, DeadlineExceeded, OutcomeUnknown
from cni_calico.model.keys import HandleKey
from tests.deadlines import SOON
from tests.fakes.memory_store import MemoryStore

KEY = HandleKey("net.one")


def holding(name: str):
    """A change that adds ``name`` to a set of holders: idempotent."""

    def change(current: Versioned | None) -> Document:
        holders = set(current.value["holders"]) if current else set()
        if current and name in holders:
            return current.value
        return {"holders": sorted({*holders, name})}

    return change


def add_elsewhere(name: str):
    def step(store: MemoryStore) -> None:
        before = store.documents().get("/calico/ipam/v2/handle/net.one", {"holders": []})
        store.elsewhere(Write.put(KEY, {"holders": sorted({*before["holders"], name})}))

    return step


def remove_elsewhere(store: MemoryStore) -> None:
    store.elsewhere(Write.remove(KEY))


def stored(store: MemoryStore) -> Document | None:
    found = store.get(KEY, SOON)
    return found.value if found else None


def test_creates_updates_and_deletes() -> None:
    store = MemoryStore()
    created = update(store, KEY, lambda _: {"n": 1}, SOON)
    assert created is not None and created.value == {"n": 1}
    changed = update(store, KEY, lambda current: {"n": current.value["n"] + 1}, SOON)
    assert changed is not None and changed.revision == 2 and stored(store) == {"n": 2}
    assert update(store, KEY, lambda _: None, SOON) is None
    assert stored(store) is None


def test_nothing_to_do_writes_nothing() -> None:
    store = MemoryStore()
    assert update(store, KEY, lambda _: None, SOON) is None
    store.elsewhere(Write.put(KEY, {"n": 1}))
    assert update(store, KEY, lambda current: current.value, SOON).value == {"n": 1}
    assert store.round_trips.writes == 0


def test_a_conflict_costs_no_read() -> None:
    store = MemoryStore()
    store.elsewhere(Write.put(KEY, {"holders": ["a"]}))
    store.script.extend([add_elsewhere("b"), remove_elsewhere, add_elsewhere("c")])
    update(store, KEY, holding("me"), SOON)
    assert stored(store) == {"holders": ["c", "me"]}
    assert store.round_trips.by_operation == {"get": 2, "commit": 4}


def test_a_new_record_costs_no_read() -> None:
    """And one that is there after all is changed, not replaced."""
    store = MemoryStore()
    update(store, KEY, holding("me"), SOON, is_new=True)
    assert store.round_trips.by_operation == {"commit": 1}
    update(store, KEY, holding("you"), SOON, is_new=True)
    assert stored(store) == {"holders": ["me", "you"]}
    assert store.round_trips.by_operation == {"get": 1, "commit": 3}, "the one that was asked for here"


@pytest.mark.parametrize("step", ["lost", "vanish"])
@pytest.mark.parametrize("before", [None, {"n": 1}])
@pytest.mark.parametrize("wanted", [None, {"n": (2, 3)}])
def test_a_lost_answer_is_looked_up(step: str, before: Document | None, wanted: Document | None) -> None:
    store = MemoryStore()
    if before is not None:
        store.elsewhere(Write.put(KEY, before))
    store.script.append(step)
    update(store, KEY, lambda _: wanted, SOON)
    assert stored(store) == (None if wanted is None else {"n": [2, 3]})
    if before is not None or wanted is not None:
        assert len(store.commits) == 1


def test_an_outage_after_a_lost_answer_stays_unknown() -> None:
    store = MemoryStore()

    class Gone(MemoryStore):
        def commit(self, writes, deadline):
            self.down = True
            raise OutcomeUnknown("lost")

    with pytest.raises(OutcomeUnknown):
        update(Gone(), KEY, lambda _: {"n": 1}, SOON)
    store.script.append("fail")
    with pytest.raises(DatastoreUnavailable):
        update(store, KEY, lambda _: {"n": 1}, SOON)
    assert stored(store) is None


def test_a_record_that_keeps_changing_ends_at_the_deadline() -> None:
    store, deadline = MemoryStore(), Deadline.after(60)

    def forever(other: MemoryStore) -> None:
        other.elsewhere(Write.put(KEY, {"n": len(other.script)}))
        deadline.at -= 20

    store.script.extend([forever] * 10)
    with pytest.raises(DeadlineExceeded):
        update(store, KEY, lambda _: {"mine": True}, deadline)
    assert stored(store) != {"mine": True}


STEPS = st.lists(st.sampled_from([None, "lost", "vanish", "elsewhere", "remove"]), max_size=8)


@given(STEPS)
def test_whatever_happens_the_holder_is_there_in_the_end(steps) -> None:
    store = MemoryStore()
    acts = {"elsewhere": add_elsewhere("other"), "remove": remove_elsewhere}
    store.script.extend(acts.get(step, step) for step in steps)
    result = update(store, KEY, holding("me"), SOON)
    assert "me" in stored(store)["holders"] and result.value == stored(store)
