"""A record created with the addresses it names: all of it, or the addresses alone, and its owner knows which."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.errors import DatastoreUnavailable
from cni_calico.ipam.assign import Companion
from cni_calico.model.keys import BlockKey, HandleKey, ResourceKey
from tests.deadlines import soon
from tests.unit.ipam.group.test_allocator import BOTH, commits, group_of, one_pool, run, take
from tests.unit.ipam.world import World, request, texts


def key_of(name: str) -> ResourceKey:
    return ResourceKey("WorkloadEndpoint", name, "default")


def companion(name: str) -> Companion:
    return Companion(lambda addresses: Write.create(key_of(name), {"spec": {"ip": [str(a) for a in addresses]}}))


def stored(world: World, name: str) -> object:
    found = world.store.get(key_of(name), soon())
    return None if found is None else found.value["spec"]["ip"]


@pytest.fixture
def companion_world() -> World:
    made = one_pool()
    group_of(made).assign(request("net.first"), soon())
    return made


def test_it_is_created_in_the_commit_of_its_addresses(companion_world: World):
    mine, before = companion("one"), commits(companion_world)
    assigned = group_of(companion_world).assign(request("net.1"), soon(), mine)
    assert commits(companion_world) == before + 1
    assert mine.stored is not None and mine.stored.value["spec"]["ip"] == texts(assigned) == stored(
        companion_world, "one"
    )
    assert (mine.stored.key, mine.unknown) == (key_of("one"), False)
    assert {type(write.key) for write in companion_world.store.commits[-1]} == {HandleKey, BlockKey, ResourceKey}
    companion_world.require_consistent()


def test_every_member_of_a_batch_has_its_own_and_some_have_none(companion_world: World):
    items = [take(f"net.{i}") for i in range(6)]
    for i in (0, 2, 4):
        items[i].companion = companion(f"c{i}")
    before = commits(companion_world)
    outcomes = run(group_of(companion_world), *items)
    assert commits(companion_world) == before + 1
    for i, item in enumerate(items):
        if item.companion is not None:
            assert item.companion.stored is not None and stored(companion_world, f"c{i}") == texts(outcomes[i])
    companion_world.require_consistent()


def test_one_that_exists_costs_nobody_an_address(companion_world: World):
    companion_world.store.commit([Write.create(key_of("c1"), {"spec": {"ip": ["somebody's"]}})], soon())
    items = [take(f"net.{i}") for i in range(3)]
    for i, item in enumerate(items):
        item.companion = companion(f"c{i}")
    outcomes = run(group_of(companion_world), *items)
    assert len({text for out in outcomes for text in texts(out)}) == 3
    assert [item.companion.stored for item in items] == [None] * 3, "their owners write them"
    assert [item.companion.unknown for item in items] == [False] * 3
    assert stored(companion_world, "c1") == ["somebody's"] and stored(companion_world, "c0") is None
    companion_world.require_consistent()


def test_a_conflict_over_the_block_leaves_it_to_its_owner(companion_world: World):
    group = group_of(companion_world)
    group.assign(request("net.0"), soon())
    companion_world.allocator().assign(request("net.other"), soon())  # the block in the group's memory is old now
    mine = companion("one")
    assigned = group.assign(request("net.1"), soon(), mine)
    assert (
        len(assigned) == 1 and (mine.stored, mine.unknown) == (None, False) and stored(companion_world, "one") is None
    )
    companion_world.require_consistent()


@pytest.mark.parametrize(("step", "there"), [("lost", True), ("vanish", False)])
def test_a_lost_answer_says_that_it_may_have_been_stored(companion_world: World, step: str, there: bool):
    mine = companion("one")
    group = group_of(companion_world)
    group.assign(request("net.0"), soon())
    companion_world.store.script.append(step)
    assigned = group.assign(request("net.1"), soon(), mine)
    assert len(assigned) == 1 and mine.unknown and mine.stored is None
    assert (stored(companion_world, "one") is not None) == there
    if there:
        assert stored(companion_world, "one") == texts(assigned)
    companion_world.require_consistent()


def test_a_failed_commit_stores_nothing_of_either(companion_world: World):
    group = group_of(companion_world)
    group.assign(request("net.0"), soon())
    mine = companion("one")
    companion_world.store.down = True
    with pytest.raises(DatastoreUnavailable):
        group.assign(request("net.1"), soon(), mine)
    companion_world.store.down = False
    assert (mine.stored, mine.unknown) == (None, False) and stored(companion_world, "one") is None
    assert "net.1" not in companion_world.held()


def test_those_that_do_not_fit_into_the_commit_are_left_out(companion_world: World):
    items = [take(f"net.{i}") for i in range(48)]
    for i, item in enumerate(items):
        item.companion = companion(f"c{i}")
    outcomes = run(group_of(companion_world), *items)
    assert len({text for out in outcomes for text in texts(out)}) == 48
    with_it = [i for i, item in enumerate(items) if item.companion.stored is not None]
    assert 0 < len(with_it) < 48 and all(stored(companion_world, f"c{i}") == texts(outcomes[i]) for i in with_it)
    assert all(stored(companion_world, f"c{i}") is None for i in set(range(48)) - set(with_it))
    assert max(len(writes) for writes in companion_world.store.commits) <= companion_world.store.max_commit


@BOTH
def test_the_first_request_of_a_node_and_stores_without_transactions(max_commit: int):
    world, mine = one_pool(max_commit), companion("one")
    assigned = group_of(world).assign(request("net.1"), soon(), mine)
    assert len(assigned) == 1 and mine.stored is None and stored(world, "one") is None


def test_many_at_once(companion_world: World):
    group = group_of(companion_world)
    companions = [companion(f"c{i}") for i in range(24)]
    with ThreadPoolExecutor(24) as pool:
        given = list(pool.map(lambda i: group.assign(request(f"net.{i}"), soon(), companions[i]), range(24)))
    for i, mine in enumerate(companions):
        assert mine.stored is not None and stored(companion_world, f"c{i}") == texts(given[i])
    companion_world.require_consistent()
