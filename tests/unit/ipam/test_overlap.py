"""The allocators on a store that writes one record at a time, but several at once: Kubernetes."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from cni_calico.datastore.client import Committed, Write
from cni_calico.datastore.overlapped import run_each
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.model.keys import BlockKey, HandleKey
from tests.fakes.memory_store import MemoryStore
from tests.unit.ipam.test_group import give, group_of, run, take
from tests.unit.ipam.world import World, texts


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
def world() -> World:
    made = World(max_commit=1)
    made.store = OverlappingStore()
    made.pool("a", "10.77.0.0/24", 26)
    made.pool("six", "fd00:77::/112", 122)
    made.node("n1")
    made.config()
    return made


def test_handles_are_written_together_and_before_their_block(world: World) -> None:
    group = group_of(world)
    run(group, take("net.first"))
    world.store.together.clear()
    outcomes = run(group, *(take(f"net.{i}") for i in range(20)))
    assert len({text for out in outcomes for text in texts(out)}) == 20
    assert world.store.together == [["create HandleKey"] * 20]
    created = [key for commit in world.store.commits[-21:] for key in (commit[0].key,)]
    assert isinstance(created[-1], BlockKey) and all(isinstance(key, HandleKey) for key in created[:-1])
    world.store.together.clear()
    run(group, *(give(f"net.{i}") for i in range(20)))
    assert world.store.together == [["delete HandleKey"] * 20]
    assert isinstance(world.store.commits[-21][0].key, BlockKey)
    world.require_consistent()
    assert list(world.held()) == ["net.first"]


def test_two_families_are_two_blocks_at_once(world: World) -> None:
    group = group_of(world)
    run(group, take("net.first", 1, 1))
    world.store.together.clear()
    outcomes = run(group, *(take(f"net.{i}", 1, 1) for i in range(4)))
    assert [len(out) for out in outcomes] == [2] * 4
    assert world.store.together == [["create HandleKey"] * 4, ["update BlockKey"] * 2]
    world.require_consistent()


@pytest.mark.parametrize("step", ["fail", "vanish", "lost", "taken"])
@pytest.mark.parametrize("victim", ["net.3", "block"])
def test_trouble_with_one_is_not_the_others(world: World, step: str, victim: str) -> None:
    """Whatever happens to one write of a batch: everybody has an address in the end, and everything comes back."""
    group = group_of(world)
    run(group, take("net.first"))

    def trouble(write: Write, attempt: int) -> None:
        mine = isinstance(write.key, BlockKey) if victim == "block" else write.key == HandleKey(victim)
        if not mine or done:
            return
        done.append(write.key)
        if step == "taken":
            world.store.elsewhere(Write.put(write.key, {**(write.value or {})}))
        else:
            world.store.script.append(step)

    done: list[object] = []
    world.store.trouble = trouble
    outcomes = run(group, *(take(f"net.{i}") for i in range(8)))
    given = [text for out in outcomes if isinstance(out, tuple) for text in texts(out)]
    assert done and len(set(given)) == len(given) == 8, outcomes
    world.require_consistent()
    outcomes = run(group, *(give(f"net.{i}") for i in range(8)))
    assert all(isinstance(out, tuple) for out in outcomes), outcomes
    world.require_consistent()
    assert list(world.held()) == ["net.first"] and set(world.handles()) == {"net.first"}
