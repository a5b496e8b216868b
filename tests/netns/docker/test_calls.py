"""dockerd asks its drivers as it did when its calls were recorded: each row of what happens to containers and to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.docker.calls import golden, record, recorded_machine, without_questions
from tests.netns.docker.conftest import NEWER
from tests.netns.docker.machine import OLDEST

pytestmark = [pytest.mark.netns, pytest.mark.docker, pytest.mark.takes(40)]


@pytest.mark.parametrize("release", [OLDEST, *NEWER])
def test_every_row(release: str | int, tmp_path: Path) -> None:
    with recorded_machine(tmp_path, str(release)) as box:
        found = record(box)
        until(box.is_clean, "nothing is left")
    expected = golden(str(release))
    assert list(found) == list(expected)
    for row, calls in expected.items():
        assert without_questions(found[row]) == without_questions(calls), row
