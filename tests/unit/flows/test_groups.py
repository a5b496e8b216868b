"""Which groups rules report to, as a file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.flows.deciders import ALLOWED_GROUP, DENIED_GROUP
from cni_calico.flows.groups import CHOSEN, PAIRS, groups_of, read_pair, write_pair


def test_the_first_pair_without_a_file(tmp_path: Path) -> None:
    assert read_pair(str(tmp_path)) == 0 and groups_of(0) == (ALLOWED_GROUP, DENIED_GROUP)
    write_pair(str(tmp_path), 0)
    assert list(tmp_path.iterdir()) == []  # nothing to say


def test_pairs_share_no_group() -> None:
    assert len({group for pair in range(PAIRS) for group in groups_of(pair)}) == 2 * PAIRS


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_pair(str(tmp_path / "run"), 3)
    assert read_pair(str(tmp_path / "run")) == 3
    write_pair(str(tmp_path / "run"), 0)
    assert read_pair(str(tmp_path / "run")) == 0


@pytest.mark.parametrize("text", ["", "-1", "8", "x", "1" * 100, "\xff"])
def test_a_file_that_is_not_ours(tmp_path: Path, text: str) -> None:
    (tmp_path / CHOSEN).write_text(text)
    assert read_pair(str(tmp_path)) == 0
