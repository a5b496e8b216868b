"""Reading what a configuration names, whatever is there; writing all or failing; directories, each with its mode."""

from __future__ import annotations

import os
import resource
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.regular import append_whole, make_directories, read_regular, write_all
from tests.full_disk import largest_file


def make_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)


def make_zero(path: str) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, make_socket, make_zero])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, make) -> None:
    path = str(tmp_path / "named")
    make(path)
    with pytest.raises(OSError, match=r"."):
        read_regular(path)
    with pytest.raises(OSError, match=r"."):
        Files().read_bytes(path)


@pytest.mark.parametrize("path", ["/a\0b", "/a\ud800"])
def test_a_name_that_no_file_can_have_is_an_error_of_the_file_system(path: str) -> None:
    with pytest.raises(OSError, match="no file can have this name"):
        Files().read_bytes(path)


def test_a_link_to_a_file_is_read_and_size_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "link").symlink_to("file")
    assert read_regular(str(tmp_path / "link")) == b"x" * 100_000
    with pytest.raises(OSError, match="more than 99999 bytes"):
        read_regular(str(tmp_path / "file"), 99_999)


# A limit on the size of files makes the kernel take a part of a write and refuse the next, as a full disk does.


def limited(act) -> str:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        act()
    except OSError as e:
        return f"failed: {e.strerror}"
    return "done"


def in_child(function, *arguments) -> str:
    """What the function answers in a forked child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, function(*arguments).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as f:
        said = f.read()
    os.waitpid(pid, 0)
    return said


def test_a_disk_that_fills_up_is_noticed_and_nothing_is_left(tmp_path: Path) -> None:
    target = tmp_path / "intent"
    said = in_child(limited, lambda: Files().write_atomic(str(target), b"x" * 1500))
    assert said == "failed: File too large"
    assert list(tmp_path.iterdir()) == []
    target.write_bytes(b"old")
    assert in_child(limited, lambda: Files().write_atomic(str(target), b"x" * 1500)).startswith("failed")
    assert target.read_bytes() == b"old" and list(tmp_path.iterdir()) == [target]
    assert in_child(limited, lambda: Files().write_atomic(str(target), b"x" * 900)) == "done"
    assert target.read_bytes() == b"x" * 900


def test_a_part_that_was_taken_is_followed_by_the_rest() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    write_all(writing, b"a" * 5000)
    assert len(os.read(reading, 10_000)) == 5000
    os.close(reading)
    os.close(writing)


@pytest.fixture(params=[0, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("wanted", [0o700, 0o755])
def test_every_level_gets_its_mode(tmp_path: Path, umask: int, wanted: int) -> None:
    lowest = tmp_path / "a" / "b" / "c"
    make_directories(f"{lowest}/", wanted)
    assert [mode(each) for each in (lowest, lowest.parent, tmp_path / "a")] == [wanted] * 3
    make_directories(str(lowest), 0o711)
    assert mode(lowest) == wanted  # what exists is somebody else's choice


def test_hosts_files_and_logs_make_them_so(tmp_path: Path, umask: int) -> None:
    Files().make_directory(str(tmp_path / "state" / "cni" / "owed"))
    Log("info", str(tmp_path / "log" / "calico" / "x.log"), stderr=False).info("text")
    made = ("state", "state/cni", "state/cni/owed", "log", "log/calico")
    assert [mode(tmp_path / each) for each in made] == [0o700] * 3 + [0o755] * 2


def test_links_above_are_followed_and_files_are_no_directories(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    make_directories(str(tmp_path / "link" / "x"), 0o700)
    assert (tmp_path / "real" / "x").is_dir()
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to("missing")
    for wrong in ("file", "file/x", "nowhere", "nowhere/x"):
        with pytest.raises(NotADirectoryError):
            make_directories(str(tmp_path / wrong), 0o700)
    make_directories("", 0o700)


def test_a_log_is_not_written_through_a_link_but_into_a_linked_directory(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("before\n")
    (tmp_path / "x.log").symlink_to(target)
    failures = Log.failures
    Log("info", str(tmp_path / "x.log"), stderr=False).info("text")
    assert (target.read_text(), Log.failures) == ("before\n", failures + 1)
    (tmp_path / "real").mkdir()
    (tmp_path / "logs").symlink_to("real")
    Log("info", str(tmp_path / "logs" / "x.log"), stderr=False).info("text")
    assert (tmp_path / "real" / "x.log").read_text().endswith("text\n")


def test_what_is_appended_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "made" / "file"
    append_whole(str(path), b"one\n")
    with largest_file(6), pytest.raises(OSError, match="too large"):
        append_whole(str(path), b"two\n")
    assert path.read_bytes() == b"one\n" and mode(path) == 0o600 and mode(path.parent) == 0o700
    append_whole(str(path), b"three\n", durable=True)
    assert path.read_bytes() == b"one\nthree\n"


def test_nothing_is_appended_through_a_link_or_to_something_else(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo", "."):
        with pytest.raises(OSError):
            append_whole(str(tmp_path / name), b"text")
    assert not (tmp_path / "target").exists()


def test_a_link_is_read_only_where_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"text")
    (tmp_path / "link").symlink_to("target")
    assert read_regular(str(tmp_path / "link")) == b"text" == read_regular(str(tmp_path / "target"), follow=False)
    with pytest.raises(OSError):
        read_regular(str(tmp_path / "link"), follow=False)
