"""What the files of this folder ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.systemd.machine import Machine, machine


@pytest.fixture
def lab_machine(tmp_path: Path, bundle: Path) -> Iterator[Machine]:
    """It is up, and nothing of ours is in it but the executables."""
    with machine(tmp_path, bundle) as made:
        made.start()
        made.until_up()
        yield made
