"""Processes: exactly what they are given, nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded, KernelError
from cni_calico.kernel.process import OUTPUT_LIMIT_BYTES, clean_environment, run


def sh(script: str, *, stdin: bytes = b"", timeout_s: float = 20, **env: str) -> tuple[int, bytes, bytes]:
    done = run(("/bin/sh", "-c", script), stdin=stdin, env=env, deadline=Deadline.after(timeout_s))
    return done.rc, done.stdout, done.stderr


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_output_and_status() -> None:
    assert sh("cat; echo err >&2; exit 3", stdin=b"in") == (3, b"in", b"err\n")


def test_a_signal_is_a_negative_status() -> None:
    assert sh("kill -9 $$")[0] == -9


def test_environment_is_what_was_given() -> None:
    assert sh('echo "$A-$HOME"', A="x") == (0, b"x-\n", b"")


def test_large_input_and_output_do_not_deadlock() -> None:
    data = os.urandom(OUTPUT_LIMIT_BYTES)
    assert sh("cat", stdin=data) == (0, data, b"")


def test_input_need_not_be_read() -> None:
    assert sh("exit 0", stdin=bytes(1_000_000)) == (0, b"", b"")


def test_too_much_output_ends_it() -> None:
    with pytest.raises(KernelError, match="wrote more than 1048576 bytes"):
        sh("yes")


def test_the_deadline_kills_children_too(tmp_path: Path) -> None:
    before = descriptors()
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="cannot wait for /bin/sh"):
        sh(f"sleep 600 & echo $! > {tmp_path}/pid; wait", timeout_s=0.5)
    assert time.monotonic() - started < 5
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 5
    while is_running(pid):
        assert time.monotonic() < end
    assert descriptors() == before


def test_a_daemon_that_keeps_the_pipes_does_not_hold_us_up(tmp_path: Path) -> None:
    started = time.monotonic()
    assert sh(f"sleep 600 & echo $! > {tmp_path}/pid; echo done") == (0, b"done\n", b"")
    assert time.monotonic() - started < 10
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_signals_are_as_a_new_program_expects_them() -> None:
    """Python ignores SIGPIPE; a child that inherits that would write into closed pipes for ever."""
    ignored = int(sh("grep SigIgn /proc/self/status")[1].split()[1], 16)
    assert ignored & ~(0b11 << 31) == 0  # the C library keeps signals 32 and 33 for itself


@pytest.mark.parametrize(("name", "reason"), [("nosuch", "No such file"), ("text", "Permission denied")])
def test_what_cannot_be_started(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "text").write_text("no program")
    before = descriptors()
    with pytest.raises(KernelError, match=f"cannot run {tmp_path}/{name}: {reason}"):
        run((f"{tmp_path}/{name}",), env={}, deadline=Deadline.after(5))
    assert descriptors() == before


def test_a_zero_byte_in_an_argument() -> None:
    with pytest.raises(KernelError, match="null byte"):
        run(("/bin/true", "a\0b"), env={}, deadline=Deadline.after(5))


def children() -> set[str]:
    """This process's children, zombies too; servers of other suites are among them."""
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


@pytest.mark.parametrize("when", ["before", "after"])
def test_injected_faults_leave_nothing(when: str) -> None:
    before, children_before = descriptors(), children()
    faults.install(faults.FaultPlan(f"process.start:{when}:1:fail"))
    try:
        with pytest.raises(KernelError, match="injected"):
            sh("sleep 600")
    finally:
        faults.install(None)
    assert descriptors() == before
    assert children() == children_before  # no zombie either


def test_the_bundles_library_path_stays_in_the_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"LD_LIBRARY_PATH": "/bundle", "_PYI_ARCHIVE_FILE": "x", "_MEIPASS2": "y", "A": "b"}
    assert clean_environment({**env, "LD_LIBRARY_PATH_ORIG": "/users"}) == {"LD_LIBRARY_PATH": "/users", "A": "b"}
    assert clean_environment(env) == {"LD_LIBRARY_PATH": "/bundle", "A": "b"}
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert clean_environment(env) == {"A": "b"}
