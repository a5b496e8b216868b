"""What init has written is known again, and nobody else's file is lost."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cni_calico.ctl.node.setup.plan import PlannedFile
from cni_calico.ctl.node.setup.written import KEPT, MOVED, NOTES, WrittenFiles, read_written
from cni_calico.errors import InvalidConfig

ENV = PlannedFile("/etc/calico/calico-node.env", "A=1\n", 0o600)
CHANGED = PlannedFile("/etc/calico/calico-node.env", "A=2\n", 0o600)
LINK = PlannedFile("/usr/local/bin/calicoctl", target="/opt/cni/bin/calicoctl")


class Killed(BaseException):
    """The program ends here."""


def content(root: Path, path: str) -> str:
    return (root / path.lstrip("/")).read_text()


def put(root: Path, path: str, text: str) -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_a_second_run_knows_its_files_and_all_of_them_go(tmp_path: Path) -> None:
    root = str(tmp_path)
    first = read_written(root)
    assert [first.write(one) for one in (ENV, LINK)] == [True, True]
    second = read_written(root)
    assert list(second.conflicts((CHANGED, LINK))) == [] and not second.write(LINK)
    assert second.write(CHANGED) and content(tmp_path, ENV.path) == "A=2\n"
    assert not (tmp_path / f"etc/calico/calico-node.env{KEPT}").exists(), "it was init's own"
    third = read_written(root)
    assert third.remove_others((LINK,)) == [ENV.path] and not (tmp_path / "etc/calico").exists()
    assert list(read_written(root).remove_all()) == [LINK.path]
    assert not (tmp_path / "usr/local/bin/calicoctl").is_symlink()


def test_what_somebody_else_wrote_or_changed_is_refused_or_kept(tmp_path: Path) -> None:
    file = put(tmp_path, ENV.path, "THEIRS=1\n")
    written = read_written(str(tmp_path))
    assert list(written.conflicts((ENV, LINK))) == [ENV.path]
    assert written.write(ENV) and content(tmp_path, ENV.path + KEPT) == "THEIRS=1\n"
    file.write_text("A=1\nMINE=2\n")
    assert list(read_written(str(tmp_path)).conflicts((ENV,))) == [ENV.path]
    assert content(tmp_path, ENV.path + KEPT) == "THEIRS=1\n"
    again = read_written(str(tmp_path))
    assert again.write(CHANGED) and again.kept == [ENV.path + MOVED]
    assert content(tmp_path, ENV.path + MOVED) == "A=1\nMINE=2\n" and content(tmp_path, ENV.path + KEPT) == "THEIRS=1\n"
    list(read_written(str(tmp_path)).remove_all())
    assert content(tmp_path, ENV.path) == "THEIRS=1\n" and not Path(f"{file}{KEPT}").exists()
    list(read_written(str(tmp_path)).remove_all())
    assert content(tmp_path, ENV.path) == "THEIRS=1\n", "a second time"


@pytest.mark.parametrize(
    "remove", [lambda written: list(written.remove_all()), lambda written: written.remove_others(())]
)
def test_what_was_changed_after_init_stays_aside(tmp_path: Path, remove: Callable[[WrittenFiles], list[str]]) -> None:
    edits = ["A=1\nMINE=2\n", "A=1\nMINE=3\n"]
    for text in edits:
        read_written(str(tmp_path)).write(ENV)
        put(tmp_path, ENV.path, text)
        written = read_written(str(tmp_path))
        assert remove(written) == [ENV.path] and not (tmp_path / ENV.path.lstrip("/")).exists()
        assert len(written.kept) == 1
    assert [content(tmp_path, f"{ENV.path}{name}") for name in (MOVED, f"{MOVED}.2")] == edits


def test_a_file_that_was_there_as_wanted_is_not_ours(tmp_path: Path) -> None:
    put(tmp_path, ENV.path, ENV.text).chmod(0o600)
    (tmp_path / "usr/local/bin").mkdir(parents=True)
    (tmp_path / "usr/local/bin/calicoctl").symlink_to(LINK.target)
    written = read_written(str(tmp_path))
    assert [written.write(one) for one in (ENV, LINK)] == [False, False]
    assert list(read_written(str(tmp_path)).remove_all()) == []
    assert content(tmp_path, ENV.path) == ENV.text and (tmp_path / "usr/local/bin/calicoctl").is_symlink()
    assert list(read_written(str(tmp_path)).conflicts((CHANGED,))) == [ENV.path]


@pytest.mark.parametrize("theirs", [False, True])
def test_a_run_that_dies_anywhere_leaves_what_the_next_one_understands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, theirs: bool
) -> None:
    """Each effect on the files is the last one once."""
    real = {name: getattr(os, name) for name in ("rename", "replace", "unlink", "symlink")}
    for last in range(12):
        root = tmp_path / str(last)
        file = put(root, ENV.path, "THEIRS=1\n" if theirs else ENV.text)
        if not theirs:
            file.unlink()
            read_written(str(root)).write(ENV)
        left = [last]

        def dying(name: str, left: list[int] = left) -> Callable[..., None]:
            def effect(*arguments: str, **more: int) -> None:
                if not left[0]:
                    raise Killed
                left[0] -= 1
                real[name](*arguments, **more)

            return effect

        for name in real:
            monkeypatch.setattr(os, name, dying(name))
        try:
            read_written(str(root)).write(CHANGED)
        except Killed:
            pass
        monkeypatch.undo()
        if not theirs:
            assert list(read_written(str(root)).conflicts((CHANGED,))) == [], "ours, before and after"
        written = read_written(str(root))
        list(written.remove_all())
        names = [ENV.path + suffix for suffix in ("", KEPT, MOVED) if (root / (ENV.path + suffix).lstrip("/")).exists()]
        if theirs:
            assert names == [ENV.path] or names == written.kept, "it is in its place, or uninstall says where"
            assert content(root, names[0]) == "THEIRS=1\n"
        else:
            assert names == written.kept == []
    assert left[0], "the last run came to its end"


def test_a_packages_settings_as_it_installed_them_give_way(tmp_path: Path) -> None:
    put(tmp_path, ENV.path, "DEFAULT=1\n")
    digest = hashlib.md5(b"DEFAULT=1\n", usedforsecurity=False).hexdigest()
    put(tmp_path, "/var/lib/dpkg/status", f"Package: calico-node\nConffiles:\n {ENV.path} {digest}\nDescription: x\n")
    assert list(read_written(str(tmp_path)).conflicts((ENV,))) == []
    put(tmp_path, ENV.path, "DEFAULT=2\n")
    assert list(read_written(str(tmp_path)).conflicts((ENV,))) == [ENV.path]


def test_other_modes_are_mended(tmp_path: Path) -> None:
    put(tmp_path, ENV.path, ENV.text).chmod(0o644)
    written = read_written(str(tmp_path))
    assert written.compare(ENV) == "change" and written.write(ENV)
    assert (tmp_path / "etc/calico/calico-node.env").stat().st_mode & 0o777 == 0o600
    assert written.compare(ENV) == "keep"


def test_what_else_is_to_be_undone_is_noted(tmp_path: Path) -> None:
    written = read_written(str(tmp_path))
    written.note_extra("BGPPeers", "init.a.192.0.2.1")
    assert read_written(str(tmp_path)).extra == {"BGPPeers": ["init.a.192.0.2.1"]}
    written.forget_extra("BGPPeers", "init.a.192.0.2.1")
    assert read_written(str(tmp_path)).extra == {"BGPPeers": []}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": []}', '{"files": {"../x": "y"}}', "\0"])
def test_notes_that_cannot_be_read_are_an_error(tmp_path: Path, text: str) -> None:
    put(tmp_path, NOTES, text)
    with pytest.raises(InvalidConfig, match=re.escape(NOTES)):
        read_written(str(tmp_path))
