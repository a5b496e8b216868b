"""The agent's server of policy sync, for upstream's programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.nodeagent.sync.test_serving import Served


@pytest.fixture
def sync_server(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path, 30.0)
    try:
        yield found
    finally:
        found.stop()
