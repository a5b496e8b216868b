"""The file of numbers: before the kernel gets one, after a restart, damaged, and where it cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cni_calico.flows.deciders import Decider, parse_line
from cni_calico.log import Log
from cni_calico.nodeagent.policing.enforce import numbers
from cni_calico.nodeagent.policing.enforce.numbers import NumbersFile

NOW = 2_000_000_000.0


def rule(index: int) -> Decider:
    return Decider("NetworkPolicy", "a", "p", "default", True, index, "Allow", "d")


def opened(root: Path) -> NumbersFile:
    return NumbersFile(str(root), Log("error", stderr=False), clock=lambda: NOW)


def give(file: NumbersFile, *indexes: int) -> list[int]:
    recording = file.recording("Enabled")
    assert recording is not None
    return [recording.numbers.number_of(rule(index)) for index in indexes]


def test_nothing_is_made_while_it_is_off(tmp_path: Path) -> None:
    file = opened(tmp_path)
    assert file.recording("Disabled") is None
    file.keep()
    assert not list(tmp_path.iterdir())


def test_a_rule_keeps_its_number(tmp_path: Path) -> None:
    file = opened(tmp_path)
    first = give(file, 0, 1, 0)
    assert first == [NOW + 1, NOW + 2, NOW + 1]
    file.keep()
    again = opened(tmp_path)
    assert give(again, 2, 1, 0) == [NOW + 3, NOW + 2, NOW + 1]
    again.keep()
    lines = Path(again.path).read_text().splitlines()
    assert [parse_line(line) for line in lines] == [(NOW + 1 + i, rule(i)) for i in range(3)]
    assert oct(os.stat(again.path).st_mode)[-3:] == "600" and not again.trouble


def test_a_line_that_a_crash_cut_is_forgotten(tmp_path: Path) -> None:
    file = opened(tmp_path)
    give(file, 0, 1)
    file.keep()
    Path(file.path).write_bytes(Path(file.path).read_bytes()[:-9])
    assert give(opened(tmp_path), 0, 1) == [NOW + 1, NOW + 2]


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    file = opened(tmp_path)
    give(file, 0)
    file.keep()
    Path(file.path).write_text("x\ny\nz\n")
    assert give(opened(tmp_path), 5) == [NOW + 1]  # from the clock again: an earlier file's are fewer
    assert Path(f"{file.path}.bad").read_text() == "x\ny\nz\n"


@pytest.mark.parametrize("kind", ["directory", "link", "fifo"])
def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "flows" / "numbers"
    path.parent.mkdir()
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    file = opened(tmp_path)
    assert give(file, 0)
    file.keep()
    assert file.path in file.trouble and not (tmp_path / "elsewhere").exists()


def test_only_the_newest_of_very_many_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_MOST", 6)
    monkeypatch.setattr(numbers, "_KEPT", 3)
    file = opened(tmp_path)
    given = give(file, *range(8))
    file.keep()
    again = give(opened(tmp_path), *range(8))
    assert again[5:] == given[5:] and min(again[:5]) > given[-1]


def test_why_it_cannot_be_recorded_is_told_once_asked_for(tmp_path: Path) -> None:
    asked: list[int] = []

    def why_not() -> str:
        asked.append(1)
        return "no nftables"

    file = NumbersFile(str(tmp_path), Log("error", stderr=False), why_not)
    assert file.recording("Disabled") is None and not asked
    assert file.recording("Denied") is None and file.recording("Enabled") is None
    assert file.trouble == "no nftables" and len(asked) == 1
