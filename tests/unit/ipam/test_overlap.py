"""The allocators on a store that writes one record at a time, but several at once: Kubernetes."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from cni_calico.datastore.interface import Committed, Write
from cni_calico.datastore.overlapped import run_each
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DeadlineExceeded, IPAMError
from cni_calico.model.keys import BlockKey, HandleKey
from tests.deadlines import soon
from tests.fakes.memory_store import MemoryStore
from tests.unit.ipam.group.test_allocator import give, group_of, run, take
from tests.unit.ipam.world import World, request, texts


class OverlappingStore(MemoryStore):
    """``together``: the kinds of keys that were written at the same time. ``trouble(write, attempt)`` may raise."""

    def __init__(self) -> None:
        super().__init__(max_commit=1)
        self.together: list[list[str]] = []
        self.trouble = lambda write, attempt: None
        self._attempts: dict[object, int] = {}
        self._counting = threading.Lock()

    def commit_each(self, writes: Sequence[Write], deadline: Deadline) -> Sequence[Committed | CalicoError]:
        self.together.append([f"{write.op} {type(write.key).__name__}" for write in writes])
        return run_each(writes, lambda write: self.commit((write,), deadline))

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        [write] = writes
        with self._counting:
            self._attempts[write.key] = attempt = self._attempts.get(write.key, 0) + 1
        self.trouble(write, attempt)
        return super().commit(writes, deadline)


@pytest.fixture
def overlap_world() -> World:
    made = World(max_commit=1)
    made.store = OverlappingStore()
    made.pool("a", "10.77.0.0/24", 26)
    made.pool("six", "fd00:77::/112", 122)
    made.node("n1")
    made.config()
    return made


def test_handles_are_created_together_before_their_block_and_deleted_by_each_caller(overlap_world: World) -> None:
    group = group_of(overlap_world)
    run(group, take("net.first"))
    overlap_world.store.together.clear()
    outcomes = run(group, *(take(f"net.{i}") for i in range(20)))
    assert len({text for out in outcomes for text in texts(out)}) == 20
    assert overlap_world.store.together == [["create HandleKey"] * 20]
    created = [key for commit in overlap_world.store.commits[-21:] for key in (commit[0].key,)]
    assert isinstance(created[-1], BlockKey) and all(isinstance(key, HandleKey) for key in created[:-1])
    overlap_world.store.together.clear()
    run(group, *(give(f"net.{i}") for i in range(20)))
    assert overlap_world.store.together == [], "the next batch waits for the block alone"
    kinds = [type(commit[0].key) for commit in overlap_world.store.commits[-21:]]
    assert kinds == [BlockKey] + [HandleKey] * 20
    overlap_world.require_consistent()
    assert list(overlap_world.held()) == ["net.first"]


def test_two_families_are_two_blocks_at_once(overlap_world: World) -> None:
    group = group_of(overlap_world)
    run(group, take("net.first", 1, 1))
    overlap_world.store.together.clear()
    outcomes = run(group, *(take(f"net.{i}", 1, 1) for i in range(4)))
    assert [len(out) for out in outcomes] == [2] * 4
    assert overlap_world.store.together == [["create HandleKey"] * 4, ["update BlockKey"] * 2]
    overlap_world.require_consistent()


@pytest.mark.parametrize("step", ["fail", "vanish", "lost", "taken"])
@pytest.mark.parametrize("victim", ["net.3", "block"])
def test_trouble_with_one_is_not_the_others(overlap_world: World, step: str, victim: str) -> None:
    """Whatever happens to one write of a batch: everybody has an address in the end, and everything comes back."""
    group = group_of(overlap_world)
    run(group, take("net.first"))

    def trouble(write: Write, attempt: int) -> None:
        mine = isinstance(write.key, BlockKey) if victim == "block" else write.key == HandleKey(victim)
        if not mine or done:
            return
        done.append(write.key)
        if step == "taken":
            overlap_world.store.elsewhere(Write.put(write.key, {**(write.value or {})}))
        else:
            overlap_world.store.script.append(step)

    done: list[object] = []
    overlap_world.store.trouble = trouble
    outcomes = run(group, *(take(f"net.{i}") for i in range(8)))
    given = [text for out in outcomes if isinstance(out, tuple) for text in texts(out)]
    assert done and len(set(given)) == len(given) == 8, outcomes
    overlap_world.require_consistent()
    outcomes = run(group, *(give(f"net.{i}") for i in range(8)))
    assert all(isinstance(out, tuple) for out in outcomes), outcomes
    overlap_world.require_consistent()
    assert list(overlap_world.held()) == ["net.first"] and set(overlap_world.handles()) == {"net.first"}


def test_the_next_request_does_not_wait_for_a_handle_that_goes(overlap_world: World) -> None:
    group = group_of(overlap_world)
    run(group, take("net.first"))
    going, may_go = threading.Event(), threading.Event()

    def trouble(write: Write, attempt: int) -> None:
        if write.op == "delete" and isinstance(write.key, HandleKey):
            going.set()
            assert may_go.wait(30)

    overlap_world.store.trouble = trouble
    released: list[object] = []
    releasing = threading.Thread(target=lambda: released.extend(group.release_handle("net.first", soon())))
    releasing.start()
    try:
        assert going.wait(30)
        assert list(overlap_world.held()) == [], "its address is free already"
        given = group.assign(request("net.second"), soon())
        assert not released
    finally:
        may_go.set()
        releasing.join(30)
    assert len(released) == 1 and len(given) == 1
    overlap_world.require_consistent()
    assert set(overlap_world.handles()) == {"net.second"}


def test_a_handle_that_grew_while_its_release_was_under_way_is_released_whole(overlap_world: World) -> None:
    """Its addresses are given back, its end is refused: what it has got meanwhile is given back too."""
    group = group_of(overlap_world)
    run(group, take("net.1"))

    def trouble(write: Write, attempt: int) -> None:
        if write.op == "delete" and isinstance(write.key, HandleKey) and not grown:
            grown.append(True)
            overlap_world.allocator().assign(request("net.1", num4=2), soon())

    grown: list[object] = []
    overlap_world.store.trouble = trouble
    group.release_handle("net.1", soon())
    assert grown and overlap_world.held() == {} and overlap_world.handles() == {}
    overlap_world.require_consistent()


# -- handles made beforehand ------------------------------------------------------------------------------------------


def test_an_assignment_is_a_handle_and_a_block_and_reads_nothing(overlap_world: World) -> None:
    group = group_of(overlap_world)
    group.assign(request("net.first"), soon())
    trips = overlap_world.store.round_trips
    before = trips.reads, trips.writes
    group.assign(request("net.second"), soon())
    assert (trips.reads - before[0], trips.writes - before[1]) == (0, 2)
    kinds = [type(commit[0].key) for commit in overlap_world.store.commits[-2:]]
    assert kinds == [HandleKey, BlockKey], "never an address without its handle"
    overlap_world.require_consistent()


def test_handles_are_made_while_the_batch_before_is_under_way(overlap_world: World) -> None:
    group = group_of(overlap_world)
    group.assign(request("net.first"), soon())
    writing, may_write, made = threading.Event(), threading.Event(), threading.Event()

    def trouble(write: Write, attempt: int) -> None:
        if isinstance(write.key, BlockKey) and not writing.is_set():
            writing.set()
            assert may_write.wait(30)
        if write.key == HandleKey("net.3"):
            made.set()

    overlap_world.store.trouble = trouble
    given: list[str] = []
    threads = [
        threading.Thread(target=lambda name=name: given.extend(texts(group.assign(request(name), soon()))))
        for name in ("net.2", "net.3")
    ]
    try:
        threads[0].start()
        assert writing.wait(30)
        threads[1].start()
        assert made.wait(30)
        assert not given
    finally:
        may_write.set()
        for thread in threads:
            thread.join(30)
    assert len(set(given)) == 2
    overlap_world.require_consistent()


def fill(world: World, left: int) -> None:
    """Until the node's block has so many addresses left."""
    [block] = [block for block in world.blocks().values() if block.cidr.version == 4]
    for number in range(len(block.unallocated) - left):
        world.allocator().assign(request(f"beside.{number}"), soon())


def test_a_handle_that_was_made_for_a_block_that_is_full_by_then(overlap_world: World) -> None:
    """The address is of another block, and the handle counts that one alone."""
    group = group_of(overlap_world)
    group.assign(request("net.first"), soon())
    first = next(iter(overlap_world.blocks()))

    def trouble(write: Write, attempt: int) -> None:
        if write.key == HandleKey("net.2") and write.op == "create":
            overlap_world.store.trouble = lambda write, attempt: None
            fill(overlap_world, 0)

    overlap_world.store.trouble = trouble
    [given] = group.assign(request("net.2"), soon())
    assert given.block != first and list(overlap_world.handles()["net.2"].blocks) == [given.block]
    overlap_world.require_consistent()


def test_no_handle_stays_when_there_is_no_address(overlap_world: World) -> None:
    group = group_of(overlap_world)
    group.assign(request("net.first"), soon())
    overlap_world.config(max_blocks_per_host=1)
    group._snapshot.refresh()

    def trouble(write: Write, attempt: int) -> None:
        if write.key == HandleKey("net.2") and write.op == "create":
            overlap_world.store.trouble = lambda write, attempt: None
            fill(overlap_world, 0)

    overlap_world.store.trouble = trouble
    with pytest.raises(IPAMError):
        group.assign(request("net.2"), soon())
    assert "net.2" not in overlap_world.handles()
    overlap_world.require_consistent()


def test_no_handle_stays_of_a_call_whose_turn_never_came(overlap_world: World) -> None:
    group = group_of(overlap_world)
    group.assign(request("net.first"), soon())
    writing, may_write = threading.Event(), threading.Event()

    def trouble(write: Write, attempt: int) -> None:
        if isinstance(write.key, BlockKey) and not writing.is_set():
            writing.set()
            assert may_write.wait(30)

    overlap_world.store.trouble = trouble
    slow = threading.Thread(target=lambda: group.assign(request("net.2"), soon()))
    slow.start()
    try:
        assert writing.wait(30)
        with pytest.raises(DeadlineExceeded):
            group.assign(request("net.3"), Deadline.after(0.2))
    finally:
        may_write.set()
        slow.join(30)
    assert set(overlap_world.handles()) == {"net.first", "net.2"}
    overlap_world.require_consistent()


@pytest.mark.parametrize("fate", ["fail", "vanish", "lost"])
def test_trouble_with_a_handle_made_beforehand(overlap_world: World, fate: str) -> None:
    group = group_of(overlap_world)
    group.assign(request("net.first"), soon())

    def trouble(write: Write, attempt: int) -> None:
        if write.key == HandleKey("net.2") and attempt == 1:
            overlap_world.store.script.append(fate)

    overlap_world.store.trouble = trouble
    assert len(group.assign(request("net.2"), soon())) == 1
    overlap_world.require_consistent()
    group.release_handle("net.2", soon())
    assert set(overlap_world.handles()) == {"net.first"}
    overlap_world.require_consistent()


def test_a_repeated_assignment_keeps_its_address(overlap_world: World) -> None:
    group = group_of(overlap_world)
    group.assign(request("net.first"), soon())
    once = texts(group.assign(request("net.2"), soon()))
    again = group.assign(request("net.2"), soon())
    assert texts(again) == once and all(item.held for item in again)
    overlap_world.require_consistent()
