"""A collector for the tests of the export."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.goldmane import FakeCollector


@pytest.fixture
def collector() -> Iterator[FakeCollector]:
    found = FakeCollector()
    yield found
    found.stop()
