"""A file is written whole or not at all, whatever fails."""

import pytest

from cni_calico import faults
from cni_calico.ctl.output.files import write_file
from cni_calico.errors import CalicoError


def test_written_for_its_owner_only(tmp_path):
    path = tmp_path / "report"
    write_file(str(path), "one")
    write_file(str(path), "two")
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["report"]


@pytest.mark.parametrize(
    ("point", "when", "left"),
    [
        ("ctl.write-file", "before", "old"),
        ("ctl.write-file", "after", "old"),
        ("ctl.rename-file", "before", "old"),
        ("ctl.rename-file", "after", "new"),
    ],
)
def test_every_fault(tmp_path, point, when, left):
    path = tmp_path / "report"
    path.write_text("old")
    faults.install(faults.FaultPlan(f"{point}:{when}:1:fail"))
    try:
        with pytest.raises(CalicoError) as caught:
            write_file(str(path), "new")
    finally:
        faults.install(None)
    assert f"cannot write {path}" in str(caught.value)
    assert path.read_text() == left
    assert [p.name for p in tmp_path.iterdir()] == ["report"]


def test_a_place_that_is_not_there(tmp_path):
    with pytest.raises(CalicoError) as caught:
        write_file(str(tmp_path / "none" / "report"), "x")
    assert "No such file or directory" in str(caught.value)


def test_nothing_is_written_through_a_link(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    (tmp_path / "report").symlink_to(theirs)
    write_file(str(tmp_path / "report"), "ours")
    assert (theirs.read_text(), (tmp_path / "report").read_text()) == ("theirs", "ours")
    assert not (tmp_path / "report").is_symlink()
