"""An empty registry for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.publishing.registry import running


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The prefix of an empty one."""
    with running("crane", tmp_path / "registry") as made:
        yield made.prefix
