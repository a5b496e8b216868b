"""Large changes in slices while memory is short, while newer versions come, and when something fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing import turns
from cni_calico.nodeagent.policing.ahead import MadeAhead
from cni_calico.nodeagent.policing.changes import FedChange, FedRecord, Refusal, Unread, joined
from cni_calico.nodeagent.policing.feed import RecordFeed
from cni_calico.nodeagent.policing.turns import Turns
from cni_calico.policy.records import PolicyRecord
from cni_calico.policy.steps import Steps
from tests.unit.nodeagent.policing.test_memory import Host, key_of, policy

KEY, OTHER = key_of("a"), key_of("b")
SMALL, LARGE, LARGER = policy("a", 1), policy("a", 12), policy("a", 13)
STAND_IN = policy("a", 2)


class World:
    """What is made ahead takes ten steps. ``graph``: what was taken in of ``KEY``, newest last."""

    def __init__(self, path: Path, used: int = 20) -> None:
        self.host = Host(path, used)
        self.turns = Turns(self.host.guard, slice_s=0.0)
        self.pending: dict[ResourceKey, FedChange] = {}
        self.graph: list[FedRecord] = []
        self.ended: list[FedRecord] = []

    def put(self, change: FedChange, key: ResourceKey = KEY) -> None:
        self.pending[key] = joined(self.pending[key], change) if key in self.pending else change

    # -- the feed, and what is made ahead -----------------------------------------------------------------------------

    def take(self) -> tuple[dict[ResourceKey, FedChange], float]:
        taken, self.pending = self.pending, {}
        return taken, 0.0

    def decoded(self, _: ResourceKey, change: FedChange) -> Any:
        return change.stand_in if isinstance(change, Unread) else change

    def decoding(self, key: ResourceKey, change: FedChange) -> Steps[Any]:
        yield
        return self.decoded(key, change)

    def steps(self, key: ResourceKey, record: FedRecord) -> Iterator[bool]:
        for _ in range(10):
            yield False

    def end(self, record: FedRecord) -> None:
        self.ended.append(record)

    # -- rounds -------------------------------------------------------------------------------------------------------

    def round(self) -> None:
        taken = self.turns.take(cast(RecordFeed, self), cast(MadeAhead, self), everything=False)
        for key, record in taken.changes.items():
            if key == KEY:
                self.graph += record.first if isinstance(record, Refusal) else ()  # type: ignore[arg-type]
                self.graph.append(record)
        self.turns.charge(taken)

    def settle(self) -> None:
        for _ in range(100):
            self.round()
            if not self.turns and not self.pending:
                return
        raise AssertionError("never settles")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(turns, "LONG", 50)
    return World(tmp_path)


def begin(world: World, record: PolicyRecord = LARGE) -> None:
    before = list(world.graph)
    world.put(record)
    for _ in range(3):
        world.round()
    assert world.graph == before and world.turns._begun


@pytest.mark.parametrize("newer", [SMALL, LARGER, None], ids=["small", "larger", "removed"])
def test_what_came_before_a_refusal_is_taken_after_what_was_begun(world: World, newer: PolicyRecord | None) -> None:
    begin(world)
    world.put(newer)
    world.put(Refusal("garbage"))
    world.settle()
    valid = [one for one in world.graph if not isinstance(one, Refusal)]
    assert valid == [LARGE, newer] and isinstance(world.graph[-1], Refusal)


def test_a_refusal_of_what_was_begun_does_not_take_it_again(world: World) -> None:
    begin(world)
    world.put(Refusal("garbage"))
    world.settle()
    assert world.graph == [LARGE, Refusal("garbage")]


def test_a_refusal_is_not_admitted_at_each_slice(world: World) -> None:
    large = policy("a", 100)
    begin(world, large)
    coming = world.host.guard._coming
    world.put(Refusal("garbage"))
    for _ in range(5):
        world.round()
    assert world.host.guard._coming == coming > 0
    world.settle()
    assert world.graph == [large, Refusal("garbage")]


def test_a_newer_version_that_is_taken_with_others_is_admitted(world: World) -> None:
    begin(world)
    world.put(Unread(1 << 20, STAND_IN))
    world.put(policy("b", 1), OTHER)
    world.settle()
    assert world.graph == [STAND_IN] and world.host.guard.waiting() == {"a": 1}
    assert world.host.guard.next_due() == KEY
    world.put(LARGER)
    world.settle()
    assert world.graph[-1] is LARGER and not world.host.guard.waiting()


def test_what_was_given_up_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LONG", 50)
    world = World(tmp_path, 40)
    world.put(SMALL)
    world.settle()
    held = dict(world.host.guard._held)
    begin(world, policy("a", 700))
    world.put(Unread(1 << 20, STAND_IN))
    world.put(policy("b", 1), OTHER)
    world.settle()
    assert world.graph == [SMALL] and world.host.guard._held[KEY] == held[KEY]
    assert not world.turns._begun
    world.put(policy("a", 710))
    world.settle()
    assert world.graph == [SMALL, policy("a", 710)]


def test_what_was_begun_and_is_taken_with_others_is_not_admitted_anew(tmp_path: Path) -> None:
    world = World(tmp_path, 40)
    large = policy("a", 1000)
    assert world.turns._admitted({KEY: large}) == {KEY: large}
    world.turns._begun[KEY] = turns._Begun(large, iter(()))
    assert world.turns._admitted({KEY: large, OTHER: policy("b", 1)})[KEY] is large
    assert not world.turns._begun and not world.host.guard.waiting()


def test_nothing_stays_begun_if_a_newer_version_has_no_room(world: World) -> None:
    world.put(SMALL)
    world.settle()
    begin(world)
    world.host.use(99)
    world.put(LARGER)
    world.put(policy("b", 1), OTHER)
    world.settle()
    assert world.graph == [SMALL] and world.host.guard.waiting()["a"] == 1
    world.round()
    assert not world.turns._begun and world.ended == [LARGE]


def test_what_cannot_be_made_ahead_is_taken_whole(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(key: ResourceKey, record: FedRecord) -> Iterator[bool]:
        yield False
        raise AssertionError(str((key, record)))

    monkeypatch.setattr(world, "steps", steps)
    world.put(LARGE)
    world.settle()
    world.round()
    assert world.graph == [LARGE] and world.ended == [LARGE]


def test_a_large_version_before_a_refusal_is_taken_in_slices(world: World) -> None:
    world.put(LARGE)
    world.put(Refusal("garbage"))
    for _ in range(3):
        world.round()
    assert not world.graph and world.turns._begun
    world.put(Refusal("other garbage"))
    world.settle()
    world.round()
    assert world.graph == [LARGE, Refusal("garbage", (LARGE,)), Refusal("other garbage")] and world.ended == [LARGE]
