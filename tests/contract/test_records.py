"""Single records and commits: what may be written, what a conflict says, what is refused."""

from __future__ import annotations

import pytest

from cni_calico.datastore.interface import CommitConflict, Datastore, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded
from cni_calico.model.keys import (
    BlockList,
    EverythingList,
    HandleKey,
    HandleList,
    IPAMConfigKey,
    ResourceKey,
    ResourceList,
)
from tests.contract.backends import KEYS, Backend, document, number

ONE, TWO, THREE = KEYS[:3]


def test_absent_record_is_none(store: Datastore, soon: Deadline) -> None:
    assert store.get(ONE, soon) is None
    assert list(store.get_many([ONE, TWO], soon)) == [None, None]
    assert list(store.get_many([], soon)) == []


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_record_through_its_whole_life(store: Datastore, soon: Deadline, key) -> None:
    [created] = store.commit([Write.create(key, document(key, 1))], soon).stored
    assert created.key == key and number(key, created.value) == 1
    read = store.get(key, soon)
    assert read is not None and read.revision == created.revision and number(key, read.value) == 1
    [updated] = store.commit([Write.update(read, document(key, 2))], soon).stored
    assert updated.revision != created.revision
    [put] = store.commit([Write.put(key, document(key, 3))], soon).stored
    read = store.get(key, soon)
    assert read is not None and read.revision == put.revision and number(key, read.value) == 3
    assert store.commit([Write.delete(read)], soon).stored in ([], ())
    assert store.get(key, soon) is None


def test_created_twice_conflicts_and_shows_the_first(store: Datastore, soon: Deadline) -> None:
    [first] = store.commit([Write.create(ONE, document(ONE, 1))], soon).stored
    with pytest.raises(CommitConflict) as caught:
        store.commit([Write.create(ONE, document(ONE, 2))], soon)
    [failed] = caught.value.failed
    assert (failed.index, failed.key) == (0, ONE)
    assert failed.current is not None and failed.current.revision == first.revision
    assert number(ONE, failed.current.value) == 1


def test_stale_update_and_delete_conflict(store: Datastore, soon: Deadline) -> None:
    [old] = store.commit([Write.create(ONE, document(ONE, 1))], soon).stored
    store.commit([Write.update(old, document(ONE, 2))], soon)
    for write in (Write.update(old, document(ONE, 3)), Write.delete(old)):
        with pytest.raises(CommitConflict) as caught:
            store.commit([write], soon)
        assert number(ONE, caught.value.failed[0].current.value) == 2
    now = store.get(ONE, soon)
    assert now is not None and number(ONE, now.value) == 2


def test_a_record_made_anew_is_another_record(store: Datastore, soon: Deadline) -> None:
    [old] = store.commit([Write.create(ONE, document(ONE, 1))], soon).stored
    store.commit([Write.delete(old)], soon)
    store.commit([Write.create(ONE, document(ONE, 1))], soon)
    with pytest.raises(CommitConflict):
        store.commit([Write.update(old, document(ONE, 9))], soon)


def test_update_of_what_is_gone_conflicts_with_nothing(store: Datastore, soon: Deadline) -> None:
    [old] = store.commit([Write.create(ONE, document(ONE, 1))], soon).stored
    store.commit([Write.remove(ONE)], soon)
    store.commit([Write.remove(ONE)], soon)
    with pytest.raises(CommitConflict) as caught:
        store.commit([Write.update(old, document(ONE, 9))], soon)
    assert caught.value.failed[0].current is None


def test_every_failing_member_is_named(store: Datastore, soon: Deadline) -> None:
    if store.max_commit < 4:
        pytest.skip("backend: no transactions")
    [one] = store.commit([Write.create(ONE, document(ONE, 1))], soon).stored
    [two] = store.commit([Write.create(TWO, document(TWO, 2))], soon).stored
    store.commit([Write.update(two, document(TWO, 3))], soon)
    writes = [
        Write.update(one, document(ONE, 5)),
        Write.update(two, document(TWO, 6)),
        Write.create(THREE, document(THREE, 7)),
        Write.put(KEYS[3], document(KEYS[3], 8)),
    ]
    with pytest.raises(CommitConflict) as caught:
        store.commit(writes, soon)
    [failed] = caught.value.failed
    assert (failed.index, failed.key, number(TWO, failed.current.value)) == (1, TWO, 3)
    with pytest.raises(CommitConflict) as caught:
        store.commit([Write.create(ONE, document(ONE, 0)), Write.delete(two), Write.create(THREE, {})], soon)
    assert [f.index for f in caught.value.failed] == [0, 1]
    assert [number(k, store.get(k, soon).value) for k in (ONE, TWO)] == [1, 3]
    assert list(store.get_many([THREE, KEYS[3]], soon)) == [None, None]


def test_expectations_write_nothing(store: Datastore, soon: Deadline) -> None:
    if store.max_commit < 3:
        pytest.skip("backend: no transactions")
    [one] = store.commit([Write.create(ONE, document(ONE, 1))], soon).stored
    done = store.commit([Write.expect(one), Write.expect_absent(TWO), Write.create(THREE, document(THREE, 1))], soon)
    assert [v.key for v in done.stored] == [THREE]
    assert store.get(ONE, soon).revision == one.revision
    for unmet in (Write.expect_absent(ONE), Write.expect(done.stored[0]), Write.create(THREE, {})):
        writes = [unmet, Write.put(TWO, document(TWO, 1))]
        if unmet.op == "expect" and unmet.revision is not None:
            store.commit([Write.put(THREE, document(THREE, 2))], soon)
        with pytest.raises(CommitConflict):
            store.commit(writes, soon)
    assert store.get(TWO, soon) is None
    only = store.commit([Write.expect(one)], soon)
    assert only.stored in ([], ()) and only.revision == store.list(EverythingList(), soon).revision


@pytest.mark.parametrize(
    "writes",
    [
        [],
        [Write.put(ONE, {"a": 1}), Write.remove(ONE)],
        [Write("rename", ONE, {})],
        [Write("create", ONE)],
        [Write("delete", ONE, {"a": 1}, 1)],
        [Write.put(ONE, {"a": float("nan")})],
        [Write.put(ONE, {"a": object()})],
        [Write.put(ONE, [1])],
        [Write.put(ResourceKey("GlobalNetworkSet", "a/b"), {})],
        [Write.put(ResourceKey("NetworkSet", "a"), {})],
        [Write.put(HandleKey(""), {})],
    ],
    ids=range(11),
)
def test_what_breaks_the_contract_is_a_value_error(store: Datastore, soon: Deadline, writes) -> None:
    with pytest.raises(ValueError):
        store.commit(writes, soon)
    assert not store.list(EverythingList(), soon).items


def test_too_long_a_commit_is_refused(store: Datastore, soon: Deadline) -> None:
    writes = [Write.put(HandleKey(f"net.{i}"), document(ONE, i)) for i in range(store.max_commit + 1)]
    with pytest.raises(ValueError):
        store.commit(writes, soon)
    assert len(store.commit(writes[:-1], soon).stored) == store.max_commit
    assert len(store.list(HandleList(), soon).items) == store.max_commit


def test_past_deadline_does_nothing(store: Datastore, soon: Deadline) -> None:
    past = Deadline.after(-1)
    for call in (
        lambda: store.commit([Write.put(ONE, document(ONE, 1))], past),
        lambda: store.get(ONE, past),
        lambda: store.list(HandleList(), past),
    ):
        with pytest.raises(DeadlineExceeded):
            call()
    assert store.get(ONE, soon) is None


def test_lists_cover_what_they_say_in_key_order(store: Datastore, soon: Deadline) -> None:
    for i, key in enumerate(reversed(KEYS)):
        store.commit([Write.create(key, document(key, i))], soon)
    assert [v.key for v in store.list(HandleList(), soon).items] == [ONE, THREE, TWO]
    assert [v.key for v in store.list(BlockList(), soon).items] == [KEYS[3], KEYS[4]]
    assert [v.key for v in store.list(BlockList(6), soon).items] == [KEYS[4]]
    assert [v.key for v in store.list(ResourceList("GlobalNetworkSet"), soon).items] == [KEYS[5], KEYS[6]]
    assert [v.key for v in store.list(ResourceList("NetworkSet", "space"), soon).items] == [KEYS[7]]
    assert not store.list(ResourceList("NetworkSet", "spac"), soon).items
    assert not store.list(ResourceList("HostEndpoint"), soon).items
    for listed in store.list(EverythingList(), soon).items:
        read = store.get(listed.key, soon)
        assert read is not None and (read.revision, read.value) == (listed.revision, listed.value)


def test_documents_come_back_as_written(backend: Backend, store: Datastore, soon: Deadline) -> None:
    if not backend.verbatim:
        pytest.skip("backend: documents are translated")
    value = {
        "leer": {},
        "ünï→code": "日本 \U0001f600 \x00 \ud800 \"'\\ </x>",
        "numbers": [0, -1, 2**63, 10**40, 1.5, 1e300],
        "mixed": [None, True, False, [], {"a": [{}]}],
    }
    for key in (IPAMConfigKey(), HandleKey("größe.\U0001f600"), HandleKey("a/b.c d%e")):
        store.commit([Write.create(key, value)], soon)
        assert store.get(key, soon).value == value
    keys = [HandleKey("a/b.c d%e"), HandleKey("größe.\U0001f600")]
    assert [v.key for v in store.list(HandleList(), soon).items] == keys


def test_written_documents_are_copies(backend: Backend, store: Datastore, soon: Deadline) -> None:
    value = {"block": {"10.65.0.0/26": 1}, "deleted": False}
    store.commit([Write.create(ONE, value)], soon)
    value["block"]["10.65.0.0/26"] = 7
    assert number(ONE, store.get(ONE, soon).value) == 1


def test_large_blocks(store: Datastore, soon: Deadline) -> None:
    """A full /20 block is about 60 KB without attributes, 900 KB with one per address."""
    from ipaddress import ip_network

    from cni_calico.model.keys import BlockKey

    key = BlockKey(ip_network("10.70.0.0/20"))
    attributes = [
        {"handle_id": f"net.{i:064x}", "secondary": {"node": "node-1", "pod": f"pod-{i}", "namespace": "default"}}
        for i in range(4096)
    ]
    value = {
        **document(key, 1),
        "allocations": list(range(4096)),
        "unallocated": [],
        "attributes": attributes,
        "sequenceNumberForAllocation": {str(i): 1795000000000000000 + i for i in range(4096)},
    }
    [stored] = store.commit([Write.create(key, value)], soon).stored
    read = store.get(key, soon)
    assert read.value["attributes"] == attributes and read.value["allocations"] == list(range(4096))
    store.commit([Write.update(stored, {**value, "sequenceNumber": 2})], soon)
    assert number(key, store.list(BlockList(4), soon).items[0].value) == 2


def test_five_thousand_records(store: Datastore, soon: Deadline) -> None:
    for start in range(0, 5000, store.max_commit):
        writes = [
            Write.create(HandleKey(f"net.{i:05}"), document(ONE, i))
            for i in range(start, min(5000, start + store.max_commit))
        ]
        store.commit(writes, soon)
    items = store.list(HandleList(), soon).items
    assert [number(v.key, v.value) for v in items] == list(range(5000))
    assert [v.key.handle_id for v in items] == [f"net.{i:05}" for i in range(5000)]


def test_round_trips_are_counted(store: Datastore, soon: Deadline) -> None:
    before = store.round_trips.reads, store.round_trips.writes
    [one] = store.commit([Write.create(ONE, document(ONE, 1))], soon).stored
    store.commit([Write.update(one, document(ONE, 2))], soon)
    store.get(ONE, soon)
    assert (store.round_trips.reads - before[0], store.round_trips.writes - before[1]) == (1, 2)
