"""Files of a rehearsal are read as they would be, and are as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.nodeagent.rehearsal.files import RehearsedFiles


def test_nothing_is_written(tmp_path: Path) -> None:
    names = ("same", "changed", "gone", "grown")
    for name in names:
        (tmp_path / name).write_text("old")
    files = RehearsedFiles()
    files.make_directory(f"{tmp_path}/directory")
    files.write_atomic(f"{tmp_path}/same", b"old")
    files.write_atomic(f"{tmp_path}/changed", b"new")
    files.write_atomic(f"{tmp_path}/directory/made", b"new")
    files.remove(f"{tmp_path}/gone")
    files.remove(f"{tmp_path}/never")
    assert files.append(f"{tmp_path}/grown", b"er") == 5
    assert files.read_text(f"{tmp_path}/changed") == "new"
    assert files.read_text(f"{tmp_path}/grown") == "older"
    assert files.exists(f"{tmp_path}/directory/made") and not files.exists(f"{tmp_path}/gone")
    assert files.holds(f"{tmp_path}/changed", b"new") and not files.holds(f"{tmp_path}/gone", b"old")
    with pytest.raises(FileNotFoundError):
        files.read_bytes(f"{tmp_path}/gone")
    changed = ("changed", "directory/made", "gone", "grown")
    assert files.changed() == [f"{tmp_path}/{name}" for name in changed]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(names, "old")
