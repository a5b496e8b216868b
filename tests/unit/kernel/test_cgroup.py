"""Limits and use of memory as the files of control groups say, of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.kernel.cgroup import read_limited_groups

NO_LIMIT = "9223372036854771712\n"
FIRST, SECOND = "memory.limit_in_bytes", "memory.max"


def write(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize("place", ["/pods/one", "/elsewhere"])
def test_version_1(tmp_path: Path, place: str) -> None:
    """In a container the group itself is mounted as the top, and the place that the kernel names is not there."""
    stat = "cache 70\ntotal_inactive_file 30\ntotal_active_file 20\n"
    top = tmp_path / "memory"
    write(top, memory__limit_in_bytes="2000\n", memory__usage_in_bytes="900\n", memory__stat=stat)
    write(top / "pods", memory__limit_in_bytes=NO_LIMIT)
    write(top / "pods/one", memory__limit_in_bytes="1000\n", memory__usage_in_bytes="500\n", memory__stat=stat)
    membership = tmp_path / "membership"
    membership.write_text(f"9:name=systemd:/\n4:memory:{place}\n1:cpu,cpuacct:/\n0::/\n")
    found = {one.limit_bytes: one.read_used_bytes() for one in read_limited_groups(str(tmp_path), str(membership))}
    assert found == ({1000: 450, 2000: 850} if place == "/pods/one" else {2000: 850})


def test_version_2(tmp_path: Path) -> None:
    stat = "anon 70\ninactive_file 30\nactive_file 20\n"
    write(tmp_path / "a/b", memory__max="1000\n", memory__current="500\n", memory__stat=stat)
    write(tmp_path / "a", memory__max="max\n", memory__current="500\n", memory__stat=stat)
    membership = tmp_path / "membership"
    membership.write_text("0::/a/b\n")
    (found,) = read_limited_groups(str(tmp_path), str(membership))
    assert (found.limit_bytes, found.read_used_bytes()) == (1000, 450)
    Path(found.path, "memory.current").unlink()
    assert found.read_used_bytes() == 0


@pytest.mark.parametrize("text", [None, "", "4:memory:/x\n", "0::/x\n"])
def test_where_nothing_is_limited(tmp_path: Path, text: str | None) -> None:
    membership = tmp_path / "membership"
    if text is not None:
        membership.write_text(text)
    assert read_limited_groups(str(tmp_path), str(membership)) == ()
