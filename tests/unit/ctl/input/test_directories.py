"""Directories of resources: nothing in them is passed over without a word, and no file counts twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.ctl.input.directories import find_files
from cni_calico.errors import InvalidConfig

_NOBODY = 65534


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    top = tmp_path / "policies"
    (top / "b.yaml" / "deep").mkdir(parents=True)
    for name in ("c.yaml", "a.json", "notes.txt", "b.yaml/deep/x.yml"):
        (top / name).write_text("")
    return top


def found(top: Path, *, recursive: bool = True) -> list[str]:
    return [os.path.relpath(one, top) for one in find_files(str(top), recursive=recursive)]


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[None]:
    """Root may read everything."""
    for one in (tmp_path, *tmp_path.parents):
        if one.stat().st_uid == os.geteuid() and one.stat().st_mode & 0o777 == 0o700:
            os.chmod(one, 0o711)
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_files_below(policies: Path) -> None:
    assert found(policies) == ["a.json", "b.yaml/deep/x.yml", "c.yaml"]
    assert found(policies, recursive=False) == ["a.json", "c.yaml"]
    assert find_files(str(policies / "notes.txt"), recursive=True) == [str(policies / "notes.txt")]


def test_links_are_followed_and_each_file_counts_once(policies: Path, tmp_path: Path) -> None:
    """Also as a ConfigMap is mounted, and where a link leads back."""
    (tmp_path / "others" / "in").mkdir(parents=True)
    (tmp_path / "others" / "in" / "y.yaml").write_text("")
    for name, target in (("z", tmp_path / "others"), ("b.yaml/up", policies), ("d.yaml", policies / "c.yaml")):
        (policies / name).symlink_to(target)
    assert found(policies) == ["a.json", "b.yaml/deep/x.yml", "c.yaml", "z/in/y.yaml"]


def test_a_link_to_nothing_is_named(policies: Path) -> None:
    (policies / "gone.yaml").symlink_to(policies / "nowhere.yaml")
    for recursive in (False, True):
        with pytest.raises(InvalidConfig, match=r"cannot read .*/gone\.yaml: No such file or directory"):
            find_files(str(policies), recursive=recursive)


def test_what_may_not_be_read_is_named(policies: Path, as_nobody: None) -> None:
    os.seteuid(0)
    os.chmod(policies / "b.yaml" / "deep", 0o700)
    os.seteuid(_NOBODY)
    with pytest.raises(InvalidConfig, match=r"cannot read .*/deep: Permission denied"):
        find_files(str(policies), recursive=True)
    assert found(policies, recursive=False) == ["a.json", "c.yaml"]
    with pytest.raises(InvalidConfig, match=r"cannot read .*/x\.yml: Permission denied"):
        find_files(str(policies / "b.yaml" / "deep" / "x.yml"), recursive=True)
