"""Fixtures of the allocator's tests."""

from __future__ import annotations

import pytest

from tests.unit.ipam.world import World


@pytest.fixture(params=[60, 1], ids=["transactions", "one-write-at-a-time"])
def world(request: pytest.FixtureRequest) -> World:
    """Two nodes, on a store with transactions and on one without."""
    world = World(max_commit=request.param)
    for name in ("n1", "n2"):
        world.node(name)
    return world
