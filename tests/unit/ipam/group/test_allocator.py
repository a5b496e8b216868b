"""The allocator of the resident server: shared commits, memories that may be wrong, and nothing lost or given twice."""

from __future__ import annotations

import os
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cni_calico.deadline import Deadline
from cni_calico.errors import (
    CalicoError,
    DatastoreUnavailable,
    DeadlineExceeded,
    IPAMError,
    NoPool,
    OutcomeUnknown,
    PoolExhausted,
)
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.group.allocator import GroupAllocator
from cni_calico.ipam.group.items import SLOW, Item
from cni_calico.ipam.view import DirectView
from cni_calico.model.keys import HandleKey
from tests.deadlines import soon, until
from tests.unit.ipam.world import SECOND, World, request, texts

EXAMPLES = int(os.environ.get("CALICO_GROUP_EXAMPLES", "40"))
BOTH = pytest.mark.parametrize("max_commit", [60, 1])


class Snapshot:
    """What the caches knew when they were ``refresh``ed last; as good as never, if that is what a test wants."""

    def __init__(self, world: World, node: str = "n1") -> None:
        self.world = world
        self.node = node
        self.refresh()

    def refresh(self) -> None:
        view = DirectView(self.world.store)
        self._facts = view.facts(self.node, "none", soon())
        self._affinities = {
            family: {cidr: found.record for cidr, found in view.affinities(self.node, family, soon()).items()}
            for family in (4, 6)
        }

    def facts(self, node):
        return self._facts if node in ("", self.node) else None

    def affinities(self, node, family):
        return self._affinities[family] if node == self.node else {}


def group_of(world: World, snapshot: Snapshot | None = None) -> GroupAllocator:
    def clock() -> int:
        world.now_ns += 1  # no two writes at the same nanosecond
        return world.now_ns

    made = GroupAllocator(world.store, snapshot or Snapshot(world), clock=clock, rng=lambda: 0.5, sleep=world.sleep)
    made.spares.request = lambda *_: None  # tested apart; beside the others it would make no run like another
    return made


def one_pool(max_commit: int = 60, cidr: str = "10.77.0.0/24", size: int = 26) -> World:
    world = World(max_commit=max_commit)
    world.pool("a", cidr, size)
    world.node("n1")
    world.node("n2")
    world.config()
    return world


def run(group: GroupAllocator, *items: Item) -> list:
    """What each item gets when all of them come in one batch: addresses or an error."""
    outcomes = []
    for item, outcome in zip(items, group._run(items), strict=True):
        try:
            if outcome is SLOW and item.request is not None:
                outcome = group._assign_alone(item, item.deadline)
            elif item.request is None:
                group._settle(item, outcome)
                outcome = tuple(item.freed)
        except CalicoError as e:
            outcome = e
        outcomes.append(outcome)
    return outcomes


def take(handle_id: str, num4: int = 1, num6: int = 0, deadline: Deadline | None = None, **fields) -> Item:
    return Item(deadline or soon(), handle_id, request(handle_id, num4=num4, num6=num6, **fields))


def give(handle_id: str, deadline: Deadline | None = None) -> Item:
    return Item(deadline or soon(), handle_id)


def commits(world: World) -> int:
    return len(world.store.commits)


def trips(world: World) -> tuple[int, int]:
    return world.store.round_trips.reads, world.store.round_trips.writes


def spent(world: World, before: tuple[int, int]) -> tuple[int, int]:
    return world.store.round_trips.reads - before[0], world.store.round_trips.writes - before[1]


# -- the ordinary case ------------------------------------------------------------------------------------------------


def test_requests_of_a_batch_share_one_commit_and_read_nothing():
    world = one_pool()
    group = group_of(world)
    group.assign(request("net.first"), soon())
    before = trips(world)
    outcomes = run(group, *(take(f"net.{i}") for i in range(20)))
    assert len({text for out in outcomes for text in texts(out)}) == 20
    assert spent(world, before) == (0, 1)
    before = trips(world)
    given = run(group, *(give(f"net.{i}") for i in range(20)))
    assert [list(map(str, out)) for out in given] == [texts(out) for out in outcomes]
    assert spent(world, before) == (0, 1)
    world.require_consistent()
    assert list(world.held()) == ["net.first"]


def test_takes_and_gives_of_one_batch():
    world = one_pool(cidr="10.77.0.0/30", size=30)
    group = group_of(world)
    old = run(group, *(take(f"net.{i}") for i in range(3)))
    outcomes = run(group, take("net.3"), give("net.0"), take("net.4"), give("net.1"))
    assert all(isinstance(out, tuple) for out in outcomes), outcomes
    assert texts(outcomes[0]) == ["10.77.0.3"], "what is freed in a write is not handed out in it"
    assert texts(outcomes[2]) == texts(old[0]) and list(map(str, outcomes[1])) == texts(old[0])
    world.require_consistent()
    assert set(world.held()) == {"net.2", "net.3", "net.4"}


@BOTH
def test_the_first_requests_of_a_node_claim_one_block_between_them(max_commit):
    world = one_pool(max_commit)
    group = group_of(world)
    outcomes = run(group, *(take(f"net.{i}") for i in range(30)))
    assert len({text for out in outcomes for text in texts(out)}) == 30
    assert len(world.blocks()) == 1
    if max_commit > 1:
        assert commits(world) == 3, "the block, the first address, all the others"
    world.require_consistent()


@BOTH
def test_a_batch_that_does_not_fit_into_the_last_block(max_commit):
    world = one_pool(max_commit, size=29)
    group = group_of(world)
    run(group, *(take(f"net.{i}") for i in range(6)))
    outcomes = run(group, *(take(f"more.{i}") for i in range(10)))
    assert len({text for out in outcomes for text in texts(out)}) == 10 and len(world.blocks()) == 2
    world.require_consistent()


def test_two_families_in_one_commit():
    world = one_pool()
    world.pool("six", "fd00:77::/112", 122)
    group = group_of(world)
    run(group, take("net.first", 1, 1))
    before = trips(world)
    outcomes = run(group, *(take(f"net.{i}", 1, 1) for i in range(3)))
    assert [len(out) for out in outcomes] == [2] * 3 and spent(world, before) == (0, 1)
    before = trips(world)
    assert [len(out) for out in run(group, *(give(f"net.{i}") for i in range(3)))] == [2] * 3
    assert spent(world, before) == (0, 1)
    world.require_consistent()


def test_requests_that_differ_do_not_share():
    world = one_pool()
    world.pool("b", "10.78.0.0/24", 26)
    group = group_of(world)
    outcomes = run(group, take("net.1"), take("net.2", pools4=("b",)), take("net.3", pools4=("nope",)))
    assert texts(outcomes[0])[0].startswith("10.77.") and texts(outcomes[1])[0].startswith("10.78.")
    assert isinstance(outcomes[2], NoPool)
    assert outcomes[2].message.startswith('failed to request IPv4 addresses: error parsing pool "nope"')


def test_a_repeated_request_gets_the_same_addresses():
    world = one_pool()
    group = group_of(world)
    (first,) = run(group, take("net.1"))
    again, other = run(group, take("net.1"), take("net.2"))
    assert texts(again) == texts(first) and texts(other) != texts(first)
    one, two = run(group, take("net.3"), take("net.3"))
    assert texts(one) == texts(two)
    world.require_consistent()


def test_a_full_pool_fails_each_with_its_own_text_and_takes_nothing():
    world = one_pool(cidr="10.77.0.0/30", size=30)
    group = group_of(world)
    outcomes = run(group, *(take(f"net.{i}") for i in range(6)))
    assert sum(isinstance(out, tuple) for out in outcomes) == 4
    errors = [out for out in outcomes if not isinstance(out, tuple)]
    assert [e.message for e in errors] == [
        "failed to request IPv4 addresses: Assigned 0 out of 1 requested IPv4 addresses; "
        "No IPs available in pools: [10.77.0.0/30]"
    ] * 2
    assert len(world.held()) == 4
    world.require_consistent()


# -- memories that are wrong ------------------------------------------------------------------------------------------


def test_a_block_that_was_written_past_us_costs_one_conflict():
    world = one_pool()
    group = group_of(world)
    run(group, take("net.1"))
    world.allocator().assign(request("beside.1"), soon())
    before = commits(world)
    outcomes = run(group, take("net.2"), take("net.3"))
    assert len(world.held()) == 4 and commits(world) == before + 1
    assert all(isinstance(out, tuple) for out in outcomes)
    world.require_consistent()


def test_a_request_on_its_own_is_not_starved_by_those_who_write_while_it_stands_back():
    """Two writes come between its first attempts, then one in every pause: what it knew before the pause is old."""
    world = one_pool()
    run(group_of(world), take("net.1"))
    beside = world.allocator()
    pauses = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        beside.assign(request(f"pause.{len(pauses)}"), soon())

    def write(store) -> None:
        script, store.script = store.script, type(store.script)()
        beside.assign(request(f"beside.{len(store.commits)}"), soon())
        store.script = script

    world.store.script.extend([write, write])
    slow = Allocator(world.store, clock=world.clock, rng=lambda: 0.5, sleep=sleep)
    assert len(slow.assign(request("net.2"), soon())) == 1
    assert 1 <= len(pauses) <= 2
    world.require_consistent()


def test_a_block_that_is_full_in_memory_only_is_found_to_have_room():
    world = one_pool(cidr="10.77.0.0/29", size=29)
    world.config(max_blocks_per_host=1)
    group = group_of(world)
    run(group, *(take(f"net.{i}") for i in range(8)))
    for i in range(8):
        world.allocator().release_handle(f"net.{i}", soon())
    (first,) = run(group, take("more.1"))
    assert isinstance(first, tuple), first
    before = trips(world)
    run(group, *(take(f"more.{i}") for i in range(2, 5)))
    assert spent(world, before) == (0, 1), "it is known again"
    world.require_consistent()


@BOTH
def test_a_release_never_believes_an_old_block(max_commit):
    """The handle is known to hold an address, the block in memory is from before: the address must not be lost."""
    world = one_pool(max_commit)
    group = group_of(world)
    run(group, take("net.1"))
    old = dict(group.known.blocks)
    world.allocator().assign(request("beside.1"), soon())
    group.known.blocks.update(old)
    group.known.handles.clear()
    assert [len(out) for out in run(group, give("beside.1"), give("net.1"))] == [1, 1]
    assert world.held() == {} and world.handles() == {}
    world.require_consistent()


@BOTH
def test_a_release_counts_block_by_block(max_commit):
    """Two addresses in one block are not one in each of two: what is in the second must not be lost."""
    world = one_pool(max_commit, size=31, cidr="10.77.0.0/28")
    group = group_of(world)
    run(group, take("net.1", 2))
    world.allocator().assign(request("net.1", num4=3), soon())
    assert len(world.handles()["net.1"].blocks) == 2
    first = next(iter(world.handles()["net.1"].blocks))
    stale = {cidr: found for cidr, found in group.known.blocks.items() if cidr == first}
    group.known.blocks.clear()
    group.known.blocks.update(stale)
    (given,) = run(group, give("net.1"))
    assert len(given) == 3 and world.held() == {} and world.handles() == {}


def test_a_handle_that_grew_past_us_is_released_whole():
    world = one_pool()
    group = group_of(world)
    run(group, take("net.1"))
    world.allocator().assign(request("net.1", num4=3), soon())
    (given,) = run(group, give("net.1"))
    assert len(given) == 3 and world.held() == {}
    world.require_consistent()


def test_a_handle_that_was_released_past_us_is_no_error():
    world = one_pool()
    group = group_of(world)
    run(group, take("net.1"), take("net.2"))
    world.allocator().release_handle("net.1", soon())
    assert all(isinstance(out, tuple) for out in run(group, give("net.1"), give("net.2"), give("never.was")))
    assert world.held() == {}


def test_corrupt_records_are_the_trouble_of_their_own_request():
    world = one_pool()
    group = group_of(world)
    run(group, take("net.1"), take("net.2"))
    world.store.plant(HandleKey("net.bad"), b"no json")
    first, bad, second = run(group, give("net.1"), give("net.bad"), give("net.2"))
    assert (len(first), len(second)) == (1, 1) and isinstance(bad, CalicoError) and "net.bad" in bad.message


def test_without_facts_everybody_goes_the_allocators_own_way():
    world = one_pool()
    snapshot = Snapshot(world)
    snapshot.facts = lambda node: None
    group = group_of(world, snapshot)
    assert all(isinstance(out, tuple) for out in run(group, take("net.1"), take("net.2")))
    assert len(group.assign(request("net.3"), soon())) == 1 and group.statistics.slow == 1


# -- faults and deadlines ---------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("fate", ["lost", "vanish", "fail"])
@pytest.mark.parametrize("nth", range(8))
def test_a_commit_that_goes_wrong_once_harms_nobody(max_commit, fate, nth):
    world = one_pool(max_commit)
    group = group_of(world)
    run(group, take("net.first"))
    world.store.script.extend([*[None] * nth, fate])
    outcomes = run(group, *(take(f"net.{i}") for i in range(3)))
    for handle, out in zip(("net.0", "net.1", "net.2"), outcomes, strict=True):
        if isinstance(out, CalicoError):  # only "fail" is not asked again by the allocator's own way
            assert fate == "fail" and handle not in world.held()
        else:
            assert {item.address for item in out} == world.held()[handle]
    world.store.script.extend([*[None] * nth, fate])
    run(group, *(give(f"net.{i}") for i in range(3)))
    world.store.script.clear()
    run(group, *(give(f"net.{i}") for i in range(3)))
    assert set(world.held()) == set(world.handles()) == {"net.first"}
    world.require_consistent()


class Outage:
    """The store goes away with the answer to its ``nth`` commit, and stays away until ``end``."""

    def __init__(self, world: World, nth: int) -> None:
        self.world = world
        self.commit = world.store.commit
        self.left = nth
        world.store.commit = self

    def __call__(self, writes, deadline):
        committed = self.commit(writes, deadline)
        self.left -= 1
        if self.left == 0:
            self.world.store.set_down(True)
            raise OutcomeUnknown("the answer was lost")
        return committed

    def end(self):
        self.world.store.set_down(False)


@pytest.mark.parametrize(("max_commit", "nth", "complete"), [(60, 1, True), (1, 1, False), (1, 2, False), (1, 3, True)])
def test_what_a_lost_answer_stored_is_found_or_given_back(max_commit, nth, complete):
    world = one_pool(max_commit)
    world.pool("six", "fd00:77::/112", 122)
    group = group_of(world)
    run(group, take("net.first", 1, 1))
    outage = Outage(world, nth)
    item = take("net.1", 1, 1)
    assert group._run([item]) == [SLOW]
    with pytest.raises(DatastoreUnavailable) as raised:
        group._assign_alone(item, soon())
    assert "may still be held under net.1" in raised.value.details
    outage.end()
    world.pool("six", "fd00:77::/112", 122, disabled=True)
    if complete:
        assert {item.address for item in group._assign_alone(item, soon())} == world.held()["net.1"]
        return
    with pytest.raises(NoPool):
        group._assign_alone(item, soon())
    assert "net.1" not in world.held() and "net.1" not in world.handles()


def test_a_members_deadline_is_not_the_others():
    world = one_pool()
    group = group_of(world)
    run(group, take("net.first"))
    late, fine, back = run(group, take("net.1", deadline=Deadline.after(-1)), take("net.2"), give("net.first"))
    assert isinstance(late, DeadlineExceeded) and len(fine) == 1 and len(back) == 1
    assert set(world.held()) == {"net.2"}


def test_an_outage_is_told_to_each():
    world = one_pool()
    group = group_of(world)
    run(group, take("net.first"))
    world.store.set_down(True)
    outcomes = run(group, take("net.1"), give("net.first"))
    assert [type(out) for out in outcomes] == [DatastoreUnavailable] * 2


# -- spare blocks -----------------------------------------------------------------------------------------------------


def with_spares(world: World, snapshot: Snapshot) -> GroupAllocator:
    return GroupAllocator(world.store, snapshot, clock=world.clock, rng=lambda: 0.5, sleep=world.sleep)


def test_a_spare_block_is_claimed_before_the_last_one_is_full():
    world = one_pool(cidr="10.77.0.0/22")
    snapshot = Snapshot(world)
    group = with_spares(world, snapshot)
    run(group, *(take(f"net.{i}") for i in range(47)))
    assert len(world.blocks()) == 1
    snapshot.refresh()
    run(group, take("net.a"), take("net.b"))
    until(lambda: len(world.blocks()) == 2, "a second block is claimed")
    until(lambda: group.spares.claimed == 1, "it is counted")
    before = trips(world)
    run(group, *(take(f"more.{i}") for i in range(40)))
    assert spent(world, before) == (0, 1) and len(world.blocks()) == 2
    world.require_consistent()


def test_the_last_blocks_of_a_pool_are_left_to_others_and_nobody_asks_again_at_once():
    world = one_pool(cidr="10.77.0.0/24")  # four blocks: none to spare
    snapshot = Snapshot(world)
    group = with_spares(world, snapshot)
    run(group, *(take(f"net.{i}") for i in range(50)))
    until(lambda: group.spares._again_at, "there was none to spare")
    before = trips(world)
    run(group, take("net.a"))
    run(group, take("net.b"))
    assert spent(world, before) == (0, 2) and len(world.blocks()) == 1


# -- threads ----------------------------------------------------------------------------------------------------------


class Model:
    """Who must hold what: naive, and right by construction."""

    def __init__(self) -> None:
        self.live: dict[str, frozenset] = {}
        self.dirty: set[str] = set()

    def require(self, world: World) -> None:
        held = world.held()
        for handle, addresses in self.live.items():
            assert addresses <= held.get(handle, set()), f"{handle} lost {addresses - held.get(handle, set())}"
        for (one, mine), (other, theirs) in combinations(self.live.items(), 2):
            assert not mine & theirs, f"{one} and {other} both have {mine & theirs}"
        assert set(held) <= set(self.live) | self.dirty


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_many_threads_on_one_store_that_fails_now_and_then(max_commit, seed):
    """Three servers (two of one node: one is about to end), each with threads that take and give."""
    rng = random.Random(seed)
    world = one_pool(max_commit, cidr="10.77.0.0/25", size=28)
    world.config(max_blocks_per_host=4)
    fates = [None] * 12 + ["lost", "vanish", "fail"]
    world.store.script.extend(rng.choices(fates, k=150))
    groups = [with_spares(world, Snapshot(world, node)) for node in ("n1", "n1", "n2")]
    model, guard = Model(), threading.Lock()

    def work(number: int) -> None:
        own = random.Random(seed * 100 + number)
        group, node = groups[number % 3], ("n1", "n1", "n2")[number % 3]
        mine: list[str] = []
        for step in range(12):
            if mine and own.random() < 0.45:
                handle = mine.pop(own.randrange(len(mine)))
                with guard:
                    model.dirty.add(handle)
                    model.live.pop(handle, None)
                try:
                    group.release_handle(handle, soon())
                except CalicoError:
                    continue
                with guard:
                    model.dirty.discard(handle)
                continue
            handle = f"net.{number}x{step}"
            try:
                given = group.assign(request(handle, node), soon())
            except CalicoError as e:
                assert isinstance(e, DatastoreUnavailable | IPAMError), repr(e)
                with guard:
                    model.dirty.add(handle)
            else:
                mine.append(handle)
                with guard:
                    model.live[handle] = frozenset(item.address for item in given)
                group._snapshot.refresh()

    with ThreadPoolExecutor(9) as pool:
        list(pool.map(work, range(9)))
    world.store.script.clear()
    model.require(world)
    world.require_consistent(crashed=True)
    for handle in [*model.live, *model.dirty]:
        groups[0].release_handle(handle, soon())
    assert world.held() == {} and world.handles() == {}


# -- everything at once, in a history that can be replayed ------------------------------------------------------------


class GroupMachine(RuleBasedStateMachine):
    """Batches of one server, another process of the node and another node beside it, stale caches, faults."""

    @initialize(
        max_commit=st.sampled_from([1, 60]),
        size=st.sampled_from([30, 31, 32]),
        max_blocks=st.sampled_from([0, 2]),
        six=st.booleans(),
    )
    def begin(self, max_commit, size, max_blocks, six):
        self.world = World(max_commit=max_commit)
        self.world.pool("a", "10.77.0.0/28", size)
        self.six = six
        if six:
            self.world.pool("c", "fd00:77::/125", 126)
        self.world.node("n1")
        self.world.node("n2")
        self.world.config(max_blocks_per_host=max_blocks)
        self.snapshot = Snapshot(self.world)
        self.group = group_of(self.world, self.snapshot)
        self.model = Model()
        self.crashed = False
        self.count = 0

    def handle(self):
        self.count += 1
        return f"net.{self.count}"

    def some(self, choices):
        """Handles to give back: live ones, those of failed requests, one that never was."""
        known = sorted({*self.model.live, *self.model.dirty, "net.never"})
        return list(dict.fromkeys(known[choice % len(known)] for choice in choices))

    @rule(
        takes=st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 0]), st.integers(0, 1)), max_size=5),
        again=st.integers(0, 9),
        gives=st.lists(st.integers(0, 20), max_size=4),
        fates=st.lists(st.sampled_from([None] * 4 + ["fail", "lost", "vanish", "beside", "other"]), max_size=5),
        hasty=st.booleans(),
    )
    def batch(self, takes, again, gives, fates, hasty):
        released = self.some(gives)
        wanted = {self.handle(): (num4, num6 if self.six else 0) for num4, num6 in takes}
        wanted = {handle: counts for handle, counts in wanted.items() if sum(counts)}
        if again > 7 and self.model.live:
            old = sorted(set(self.model.live) - set(released) - self.model.dirty)
            wanted |= {handle: self.counts(handle) for handle in old[:1]}
        before = {handle: self.model.live.pop(handle, frozenset()) for handle in released}
        self.model.dirty |= set(released)
        self.world.store.script.extend(self.step(fate) for fate in fates)
        disturbed = bool(set(fates) & {"fail", "lost", "vanish"})
        items = [take(handle, *counts) for handle, counts in wanted.items()] + [give(handle) for handle in released]
        if hasty and items:
            items[0].deadline = Deadline.after(-1)
        outcomes = run(self.group, *items)
        self.world.store.script.clear()
        self.crashed |= disturbed
        for item, outcome in zip(items, outcomes, strict=True):
            if item.request is not None:
                self.taken(item, outcome, disturbed)
            else:
                self.given(item.handle_id, outcome, before[item.handle_id], disturbed)

    def counts(self, handle):
        held = self.model.live[handle]
        return sum(a.version == 4 for a in held), sum(a.version == 6 for a in held)

    def taken(self, item, outcome, disturbed):
        handle, old = item.handle_id, self.model.live.get(item.handle_id)
        if isinstance(outcome, tuple):
            given = frozenset(assigned.address for assigned in outcome)
            wanted = item.request
            assert sum(a.version == 4 for a in given) == wanted.num4
            assert sum(a.version == 6 for a in given) == wanted.num6
            assert old is None or given == old, "a repeated request gets the same"
            self.model.live[handle] = given
            return
        assert isinstance(outcome, IPAMError | DatastoreUnavailable | DeadlineExceeded), repr(outcome)
        if isinstance(outcome, OutcomeUnknown) or disturbed:
            self.model.dirty.add(handle)
        else:
            assert self.world.held().get(handle, set()) <= (old or set()), "a failed request leaves nothing"
        if isinstance(outcome, PoolExhausted) and not self.crashed:
            free = 16 - sum(a.version == 4 for held in self.world.held().values() for a in held)
            free6 = 8 - sum(a.version == 6 for held in self.world.held().values() for a in held)
            assert free < item.request.num4 or free6 < item.request.num6, "there was enough"

    def given(self, handle, outcome, before, disturbed):
        if isinstance(outcome, tuple):
            assert handle not in self.world.held() and handle not in self.world.handles()
            assert disturbed or before <= set(outcome)
            self.model.dirty.discard(handle)
        else:
            assert isinstance(outcome, DatastoreUnavailable | DeadlineExceeded), repr(outcome)

    def step(self, fate):
        if fate == "beside":
            return lambda store: self.elsewhere("n1")
        if fate == "other":
            return lambda store: self.elsewhere("n2")
        return fate

    def elsewhere(self, node):
        """Somebody takes an address in this very moment."""
        script, self.world.store.script = self.world.store.script, type(self.world.store.script)()
        try:
            self.assign_alone(node)
        finally:
            self.world.store.script = script

    def assign_alone(self, node):
        handle = self.handle()
        try:
            given = self.world.allocator().assign(request(handle, node), soon())
            self.model.live[handle] = frozenset(item.address for item in given)
        except IPAMError:
            pass

    @rule(node=st.sampled_from(["n1", "n2"]))
    def another_process_takes(self, node):
        self.assign_alone(node)

    @rule(choice=st.integers(0, 20))
    def another_process_gives(self, choice):
        for handle in self.some([choice]):
            self.model.live.pop(handle, None)
            self.world.allocator().release_handle(handle, soon())
            self.model.dirty.discard(handle)

    @rule()
    def the_caches_catch_up(self):
        self.snapshot.refresh()

    @rule(again=st.booleans())
    def the_server_restarts(self, again):
        self.group = group_of(self.world, self.snapshot)

    @rule(disabled=st.booleans())
    def a_pool_changes(self, disabled):
        if self.six:
            self.world.pool("c", "fd00:77::/125", 126, disabled=disabled)
            self.crashed = True  # not every exhaustion is one any more

    @rule(seconds=st.sampled_from([1, 61]))
    def time_passes(self, seconds):
        self.world.now_ns += seconds * SECOND

    @invariant()
    def nothing_is_lost_or_given_twice(self):
        if hasattr(self, "world"):
            self.model.require(self.world)
            self.world.require_consistent(crashed=True)
            if not self.crashed:
                self.world.require_consistent()

    def teardown(self):
        if not hasattr(self, "world") or sys.exc_info()[0] is not None:
            return
        for handle in [*self.model.live, *self.model.dirty]:
            self.group.release_handle(handle, soon())
        assert self.world.held() == {} and self.world.handles() == {}
        self.world.require_consistent(crashed=True)


GroupMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    database=None,
    phases=[Phase.generate],
)
TestGroup = GroupMachine.TestCase
