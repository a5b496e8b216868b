"""A rehearsed store answers as the store itself would, and the store stays as it is."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.datastore.interface import CommitConflict, Datastore, Write
from cni_calico.datastore.rehearsed import RehearsedStore
from cni_calico.model.keys import HandleKey, HandleList, Key
from tests.deadlines import SOON
from tests.fakes.memory_store import MemoryStore

KEYS = [HandleKey(name) for name in "abc"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "update", "stale", "put", "delete", "remove", "expect", "absent"]),
        st.sampled_from(KEYS),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda step: step[1],
)


def plan(store: Datastore, stale: dict[Key, Any], op: str, key: Key, n: int) -> Write:
    current = store.get(key, SOON)
    if op == "stale" and key in stale:
        return Write.update(stale[key], {"n": n})
    if op in ("update", "delete", "expect") and current is not None:
        made = {"update": lambda: Write.update(current, {"n": n}), "delete": lambda: Write.delete(current)}
        return made.get(op, lambda: Write.expect(current))()
    if op in ("remove", "absent"):
        return Write.remove(key) if op == "remove" else Write.expect_absent(key)
    return Write.put(key, {"n": n}) if op == "put" else Write.create(key, {"n": n})


def commit(store: Datastore, stale: dict[Key, Any], steps: list[tuple[str, Key, int]]) -> object:
    """What came of it, without revisions."""
    writes = [plan(store, stale, *step) for step in steps]
    stale.update({key: found for key in KEYS if (found := store.get(key, SOON)) is not None})
    try:
        return [(found.key, found.value) for found in store.commit(writes, SOON).stored]
    except CommitConflict as e:
        return [(f.index, f.key, f.current and f.current.value) for f in e.failed]


def contents(store: Datastore) -> object:
    listed = [(item.key, item.value) for item in store.list(HandleList(), SOON).items]
    read = [found and (found.key, found.value) for found in store.get_many(KEYS, SOON)]
    assert read == [found and (found.key, found.value) for found in (store.get(key, SOON) for key in KEYS)]
    return listed, read


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 3)), max_size=3), st.lists(STEPS, max_size=6))
def test_as_the_store_itself_would(first: list[tuple[Key, int]], commits: list[list[tuple[str, Key, int]]]) -> None:
    real, other = MemoryStore(), MemoryStore()
    for key, n in first:
        for store in (real, other):
            store.commit([Write.put(key, {"n": n})], SOON)
    before = other.documents()
    rehearsed = RehearsedStore(other)
    stale_real: dict[Key, Any] = {}
    stale_rehearsed: dict[Key, Any] = {}
    for steps in commits:
        assert commit(real, stale_real, steps) == commit(rehearsed, stale_rehearsed, steps)
        assert contents(real) == contents(rehearsed)
    assert other.documents() == before
