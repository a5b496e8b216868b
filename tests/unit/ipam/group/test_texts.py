"""What a request is told in the resident server is what a process of its own would have been told."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import (
    BlockLimit,
    CalicoError,
    DatastoreUnavailable,
    DeadlineExceeded,
    NoPool,
    PoolExhausted,
)
from cni_calico.ipam.allocator import Allocator
from tests.deadlines import soon, until
from tests.unit.ipam.group.test_allocator import Snapshot, group_of, one_pool, request, run, take
from tests.unit.ipam.world import World


def full(world: World) -> None:
    for i in range(4):
        world.allocator().assign(request(f"before.{i}"), soon())


def limited(world: World) -> None:
    world.config(max_blocks_per_host=1)
    full(world)


def strict(world: World) -> None:
    world.config(strict_affinity=True)
    full(world)


def disabled(world: World) -> None:
    world.pool("a", "10.77.0.0/29", 30, disabled=True)


def elsewhere(world: World) -> None:
    world.pool("a", "10.77.0.0/29", 30, node_selector="zone == 'x'")


CASES: dict[str, tuple[Callable[[World], None], dict, type[CalicoError], str]] = {
    "full": (lambda world: (full(world), full(world), world.allocator().assign(request("x", num4=4), soon())), {},
             PoolExhausted, "failed to request IPv4 addresses: Assigned 0 out of 1"),
    "block limit": (limited, {}, BlockLimit, "failed to request IPv4 addresses: Assigned 0 out of 1"),
    "too many": (lambda world: None, {"num4": 9}, PoolExhausted, "failed to request IPv4 addresses: Assigned"),
    "disabled": (disabled, {}, NoPool, "failed to request IPv4 addresses: cannot find a qualified ippool"),
    "not this node": (elsewhere, {}, NoPool, "failed to request IPv4 addresses: "),
    "no pool of the family": (lambda world: None, {"num4": 0, "num6": 1}, NoPool, "failed to request IPv6 addresses: "),
    "unknown pool": (lambda world: None, {"pools4": ("nope",)}, NoPool,
             'failed to request IPv4 addresses: error parsing pool "nope"'),
    "down": (lambda world: world.store.set_down(True), {}, DatastoreUnavailable, "cannot reach the datastore"),
}  # fmt: skip


def prepared(case: str) -> World:
    world = one_pool(cidr="10.77.0.0/29", size=30)
    CASES[case][0](world) if case != "down" else None
    return world


def told(allocator: Allocator, fields: dict) -> CalicoError:
    with pytest.raises(CalicoError) as caught:
        allocator.assign(request("net.1", **fields), soon())
    return caught.value


@pytest.mark.parametrize("case", CASES)
def test_each_condition_reads_alike(case: str):
    _, fields, kind, beginning = CASES[case]
    one_shot, world = prepared(case), prepared(case)
    group = group_of(world, Snapshot(world))
    if case == "down":
        one_shot.store.set_down(True)
        world.store.set_down(True)
    expected = told(one_shot.allocator(), fields)
    assert type(expected) is kind and expected.message.startswith(beginning), expected
    found = [told(group, fields), *run(group, *(take(f"net.{i}", **fields) for i in (2, 3)))]
    for error in found:
        assert (type(error), error.code) == (kind, expected.code)
        assert error.message == expected.message and error.details == expected.details
    if case != "down":
        assert not {handle for handle in world.held() if handle.startswith("net.")}
        world.require_consistent()


def test_whose_turn_never_comes_is_told_what_it_waited_for():
    world = one_pool()
    group = group_of(world)
    going, under_way = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        under_way.set()
        going.wait(20)

    world.store.script.append(hold)
    first = threading.Thread(target=lambda: group.assign(request("net.1"), soon()))
    first.start()
    until(under_way.is_set, "the first one's write is under way")
    with pytest.raises(DeadlineExceeded, match=r"^cannot request addresses: the deadline passed while others"):
        group.assign(request("net.2"), Deadline.after(0.05))
    going.set()
    first.join()
    assert set(world.held()) == {"net.1"}
