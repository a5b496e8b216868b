"""A file whose writer lives: the kernel says so, whoever asks and however the writer ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from fcntl import F_OFD_SETLK, F_RDLCK, LOCK_EX, fcntl, flock
from pathlib import Path
from struct import pack

import pytest

from cni_calico.kernel.held_file import hold_lock, is_held
from cni_calico.nodeagent.status.file import (
    ENDED,
    forget_status,
    path_in,
    read_status,
    since_boot,
    why_not_live,
    write_status,
)

WRITER = """
import sys
from cni_calico.nodeagent.status.file import write_status
for number in range(int(sys.argv[2])):
    write_status(sys.argv[1], {"node": "n1", "number": number})
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def writer(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), "200"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_status_ends_with_its_writer(tmp_path: Path, writer: subprocess.Popen[str], number: int) -> None:
    """At once: nothing here waits for it to become stale."""
    assert writer.stdout is not None and writer.stdout.readline() == "written\n"
    assert why_not_live(read_status(str(tmp_path)), since_boot()) == ""
    writer.send_signal(number)
    writer.wait(30)
    fields = read_status(str(tmp_path))
    assert fields[ENDED] and "the agent has ended" in why_not_live(fields, since_boot())
    write_status(str(tmp_path), {"node": "n1"})
    assert why_not_live(read_status(str(tmp_path)), since_boot()) == ""
    forget_status(str(tmp_path))
    assert read_status(str(tmp_path)) == {}


def test_a_reader_never_meets_a_status_between_two(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    """While the file is replaced again and again, its writer lives."""
    seen = []
    while not os.path.exists(path_in(str(tmp_path))):
        assert writer.poll() is None
    while not seen or seen[-1]["number"] < 199:
        seen.append(read_status(str(tmp_path)))
    assert not [fields for fields in seen if ENDED in fields]


def test_who_may_only_read_neither_feigns_a_writer_nor_stops_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with open(path, "rb") as reader, open(path, "rb") as other:
        flock(reader, LOCK_EX)
        fcntl(reader, F_OFD_SETLK, pack("hhqqi4x", F_RDLCK, os.SEEK_SET, 0, 0, 0))
        assert not is_held(other.fileno())
    write_status(str(tmp_path), {"node": "n1"})
    with open(path_in(str(tmp_path)), "rb") as reader:
        flock(reader, LOCK_EX)
        write_status(str(tmp_path), {"node": "n2"})
    assert read_status(str(tmp_path))["node"] == "n2" and ENDED not in read_status(str(tmp_path))
    forget_status(str(tmp_path))


def test_the_lock_is_as_long_as_the_descriptor(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        held = hold_lock(file.fileno())
    with open(tmp_path / "file", "rb") as reader:
        assert is_held(reader.fileno())
        os.close(held)
        assert not is_held(reader.fileno())
