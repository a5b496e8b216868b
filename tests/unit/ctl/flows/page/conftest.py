"""The recorder that the page asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.recorder import ScriptedRecorder


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[ScriptedRecorder]:
    made = ScriptedRecorder(str(tmp_path / "run"))
    yield made
    made.close()
