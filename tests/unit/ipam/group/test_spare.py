"""A spare block is an extra: a request never fails because of it."""

from __future__ import annotations

import threading

import pytest

from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.group.spare import SpareBlocks, claim_spare
from cni_calico.ipam.pools import NodeFacts, select_pools
from tests.deadlines import soon
from tests.fakes.memory_store import MemoryStore
from tests.unit.ipam.world import World, request


def test_no_more_threads_is_no_failure_and_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(thread: threading.Thread) -> None:
        tried.append(thread.name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    spares = SpareBlocks(Allocator(MemoryStore()))
    spares.request("n1", 4, ())
    spares.request("n1", 4, ())
    assert tried == ["spare-block"], "there is a pause"
    spares.request("n2", 4, ())
    assert len(tried) == 2, "the lock is free: another node's request got as far"


def test_no_spare_block_lies_over_one_of_another_size() -> None:
    world = World()
    world.pool("a", "10.77.0.0/24", 28)
    world.node("n1")
    world.config()
    allocator = world.allocator()
    allocator.assign(request("net.first"), soon())

    def spare() -> object:
        pools = select_pools(allocator.view.pools(soon()), family=4, node=NodeFacts("n1"))
        return claim_spare(allocator, "n2", 4, pools)

    world.pool("a", "10.77.0.0/24", 29)
    assert spare() is None
    world.pool("a", "10.77.0.0/24", 28)
    assert spare() is not None
