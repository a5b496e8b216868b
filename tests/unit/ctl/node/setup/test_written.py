"""What init has written is known again, and nobody else's file is lost."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from cni_calico.ctl.node.setup.plan import PlannedFile
from cni_calico.ctl.node.setup.written import KEPT, NOTES, read_written
from cni_calico.errors import InvalidConfig

ENV = PlannedFile("/etc/calico/calico-node.env", "A=1\n", 0o600)
CHANGED = PlannedFile("/etc/calico/calico-node.env", "A=2\n", 0o600)
LINK = PlannedFile("/usr/local/bin/calicoctl", target="/opt/cni/bin/calicoctl")


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
    list(read_written(str(tmp_path)).remove_all())
    assert content(tmp_path, ENV.path) == "THEIRS=1\n" and not Path(f"{file}{KEPT}").exists()


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
