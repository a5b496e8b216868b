"""A server of policy sync, for real clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.nodeagent.sync import serving
from tests.unit.nodeagent.sync.test_serving import Served


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    found = Served(tmp_path, getattr(request, "param", serving.CUT_S))
    try:
        yield found
    finally:
        found.stop()
