"""Fixtures of the contract suite: every test runs once per backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cni_calico.datastore.interface import Datastore
from tests.contract.backends import BACKENDS, Backend, Space


@pytest.fixture(scope="session", params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if BACKENDS[request.param].missing:
        pytest.skip(BACKENDS[request.param].missing)
    made = BACKENDS[request.param]()
    yield made
    made.close()


@pytest.fixture
def space(backend: Backend) -> Iterator[Space]:
    with backend.fresh() as fresh:
        yield fresh


@pytest.fixture
def store(space: Space) -> Datastore:
    return space.first
