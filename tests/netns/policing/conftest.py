"""What several files of this folder ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.policing.uplinked import Uplinked, uplinked_lab


@pytest.fixture
def uplinked(tmp_path: Path) -> Iterator[Uplinked]:
    with uplinked_lab(tmp_path) as made:
        yield made
