"""The file of numbers: before the kernel gets one, after a restart, damaged, and where it cannot be written."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.flows.deciders import Decider, parse_line, render_line
from cni_calico.log import Log
from cni_calico.nodeagent.policing.enforce import numbers
from cni_calico.nodeagent.policing.enforce.numbers import NumbersFile
from tests.full_disk import largest_file

NOW = 2_000_000_000.0


def rule(index: int) -> Decider:
    return Decider("NetworkPolicy", "a", "p", "default", True, index, "Allow", "d")


def opened(root: Path) -> NumbersFile:
    return NumbersFile(str(root), Log("error", stderr=False), clock=lambda: NOW)


def give(file: NumbersFile, *indexes: int) -> list[int]:
    recording = file.recording("Enabled")
    assert recording is not None
    return [recording.numbers.number_of(rule(index)) for index in indexes]


def kept(file: NumbersFile) -> list[tuple[int, Decider]]:
    """What a reader finds: each line is one of ours, and has its end."""
    data = Path(file.path).read_text()
    lines = [parse_line(line) for line in data.splitlines()]
    assert not data or data.endswith("\n")
    assert None not in lines
    return [one for one in lines if one is not None]


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
    assert give(again, 1, 0) == [NOW + 2, NOW + 1]
    (new,) = give(again, 2)
    again.keep()
    assert kept(again) == [(NOW + 1, rule(0)), (NOW + 2, rule(1)), (new, rule(2))] and new > NOW + 2
    assert oct(os.stat(again.path).st_mode)[-3:] == "600" and not again.trouble


def test_a_line_that_a_crash_cut_is_forgotten(tmp_path: Path) -> None:
    file = opened(tmp_path)
    give(file, 0, 1)
    file.keep()
    Path(file.path).write_bytes(Path(file.path).read_bytes()[:-9])
    again = opened(tmp_path)
    assert give(again, 0) == [NOW + 1]
    assert give(again, 1)[0] > NOW + 2, "the kernel may still have the number that was cut off"


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    file = opened(tmp_path)
    give(file, 0)
    file.keep()
    damaged = Path(file.path).read_text() + "y\nz\n"
    Path(file.path).write_text(damaged)
    again = opened(tmp_path)
    assert give(again, 0)[0] > NOW + 1
    again.keep()
    assert Path(f"{file.path}.bad").read_text() == damaged and len(kept(again)) == 1


def test_another_file_is_set_aside(tmp_path: Path) -> None:
    file = opened(tmp_path)
    Path(file.path).parent.mkdir()
    Path(file.path).write_text("x\ny\nz\n")
    assert give(file, 5)[0] > NOW
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


def test_what_is_in_force_is_never_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that stays as it is has the number that it had at the beginning."""
    monkeypatch.setattr(numbers, "_MOST", 6)
    monkeypatch.setattr(numbers, "_KEPT", 3)
    file = opened(tmp_path)
    first, asked = give(file, 0)[0], []

    def in_force() -> set[int]:
        asked.append(len(kept(file)))
        return {first}

    for index in range(1, 20):
        give(file, index)
        file.keep(in_force)
    assert kept(file)[0] == (first, rule(0)) and give(file, 0) == [first]
    assert asked and max(asked) < 10, "it is short, and asked seldom"


def test_a_line_is_never_glued_to_one_that_a_crash_cut(tmp_path: Path) -> None:
    file = opened(tmp_path)
    first, _ = give(file, 0, 1)
    file.keep()
    for _ in range(2):  # a second cut is no other than the first
        Path(file.path).write_bytes(Path(file.path).read_bytes()[:-9])
        file = opened(tmp_path)
        assert give(file, 0) == [first]
        given = give(file, 2)
        file.keep()
    assert kept(file) == [(first, rule(0)), (given[0], rule(2))] and not Path(f"{file.path}.bad").exists()


def test_what_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    path = tmp_path / "flows" / "numbers"
    path.mkdir(parents=True)
    file = opened(tmp_path)
    (given,) = give(file, 0)
    file.keep()
    assert file.trouble
    path.rmdir()
    file.keep()
    assert kept(file) == [(given, rule(0))] and not file.trouble


def test_what_was_never_written_is_not_given_again(tmp_path: Path) -> None:
    """More numbers were given in the first minute than it has seconds."""
    file = opened(tmp_path)
    give(file, *range(100))
    file.keep()
    unwritten = give(file, *range(100, 200))
    later = NumbersFile(str(tmp_path), Log("error", stderr=False), clock=lambda: NOW + 60)
    assert not set(unwritten) & set(give(later, *range(200, 300)))


@given(st.lists(st.sampled_from(["rule", "old rule", "keep", "full", "start", "crash"]), max_size=30))
@settings(max_examples=40, deadline=None)
def test_no_number_is_ever_two_rules(steps: list[str]) -> None:
    """Whatever was written, cut off by a crash, or never written: what the kernel once got stays what it was."""
    meant: dict[int, Decider] = {}
    made = number = 0
    with TemporaryDirectory() as root:
        file = opened(Path(root))
        for step in ("rule", *steps):
            if step in ("rule", "old rule"):
                made += step == "rule"
                index = made if step == "rule" else made // 2
                (number,) = give(file, index)
                assert meant.setdefault(number, rule(index)) == rule(index)
            elif step == "keep":
                file.keep()
                assert all(meant[number] == one for number, one in (kept(file) if os.path.exists(file.path) else ()))
            elif step == "full":
                with largest_file(0):
                    file.keep()
            else:
                path = Path(file.path)
                before = path.read_text() if path.exists() else ""
                if step == "crash" and (line := render_line(number, meant[number])) not in before:
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(before + line[:-9])
                file = opened(Path(root))
                file.recording("Enabled")
                file.go_past(lambda: meant)


def test_a_full_disk_leaves_no_half_of_a_line(tmp_path: Path) -> None:
    file = opened(tmp_path)
    give(file, 0)
    file.keep()
    before = Path(file.path).read_bytes()
    give(file, 1)
    with largest_file(len(before) + 9):
        file.keep()
    assert Path(file.path).read_bytes() == before and "cannot write" in file.trouble
    file.keep()
    assert [one for _, one in kept(file)] == [rule(0), rule(1)] and not file.trouble


def test_a_file_that_grows_is_shortened_while_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_MOST", 6)
    monkeypatch.setattr(numbers, "_KEPT", 3)
    file = opened(tmp_path)
    for index in range(8):
        give(file, index)
        file.keep()
    assert [one for _, one in kept(file)] == [rule(index) for index in (4, 5, 6, 7)]
    assert give(file, 0) == [NOW + 9], "what was forgotten has another number"


def test_a_file_that_is_too_large_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(tmp_path)
    give(file, 0)
    file.keep()
    monkeypatch.setattr(numbers, "NUMBERS_BYTES", 20)
    again = opened(tmp_path)
    give(again, 1)
    again.keep()
    assert Path(f"{file.path}.bad").exists() and [one for _, one in kept(again)] == [rule(1)]


def test_why_it_cannot_be_recorded_is_told_once_asked_for(tmp_path: Path) -> None:
    asked: list[bool] = []

    def why_not(allowed: bool) -> str:
        asked.append(allowed)
        return "no labels" if allowed else ""

    file = NumbersFile(str(tmp_path), Log("error", stderr=False), why_not)
    assert file.recording("Disabled") is None and not asked
    assert file.recording("Enabled") is None and file.trouble == "no labels"
    assert file.recording("Enabled") is None and asked == [True]
    assert file.recording("Denied") is not None and not file.trouble, "which needs no labels"
    assert file.recording("Denied") is not None and asked == [True, False]


def test_a_rehearsal_changes_no_file(tmp_path: Path) -> None:
    file = NumbersFile(str(tmp_path), Log("error", stderr=False), keeps=False)
    recording = file.recording("Denied")
    assert recording is not None
    recording.numbers.number_of(rule(1))
    file.keep()
    assert not list(tmp_path.iterdir())
    Path(file.path).parent.mkdir()
    Path(file.path).write_bytes(b"nonsense\n" * 5)
    again = NumbersFile(str(tmp_path), Log("error", stderr=False), keeps=False)
    assert again.recording("Denied") is not None
    assert [one.name for one in Path(file.path).parent.iterdir()] == ["numbers"]
