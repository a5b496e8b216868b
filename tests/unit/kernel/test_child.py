"""Long-running children: what they get, how they end, and who may take them over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico import faults
from cni_calico.errors import KernelError
from cni_calico.kernel.child import Child
from tests.deadlines import until


@pytest.fixture
def output(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "output", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    yield fd
    os.close(fd)


def script(text: str) -> list[str]:
    return ["/bin/sh", "-c", text]


def read(fd: int) -> str:
    return os.pread(fd, 65536, 0).decode()


def test_runs_and_ends_by_itself(output: int) -> None:
    child = Child.start(script("echo out; echo err >&2; read x; echo input: $x; exit 3"), env={}, output_fd=output)
    assert child.ended(10.0)
    assert child.rc == 3
    assert read(output) == "out\nerr\ninput:\n"
    assert child.stop(0.0) == 3
    child.send(signal.SIGTERM)
    child.close()


def test_gets_its_environment_and_nothing_of_the_bundle(output: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    env = {"A": "1", "LD_LIBRARY_PATH": "/bundle", "_PYI_X": "1", "_MEIPASS2": "/bundle"}
    child = Child.start(["/usr/bin/env"], env=env, output_fd=output)
    assert child.ended(10.0)
    child.close()
    assert read(output) == "A=1\n"


def test_is_stopped_kindly_then_not(output: int) -> None:
    kind = Child.start(
        script("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"), env={}, output_fd=output
    )
    deaf = Child.start(script("trap '' TERM; echo up; while :; do sleep 0.05; done"), env={}, output_fd=output)
    end = time.monotonic() + 10
    while read(output).count("up") < 2:
        assert time.monotonic() < end
    assert not kind.ended(0.0)
    assert kind.stop(10.0) == 0
    assert "bye" in read(output)
    assert deaf.stop(0.1) == -signal.SIGKILL
    for child in (kind, deaf):
        assert not Path(f"/proc/{child.pid}").exists()
        child.close()


def test_what_cannot_be_started(output: int) -> None:
    for argv in (["/nonexistent"], ["/bin/sh", "a\0b"]):
        with pytest.raises(KernelError, match="cannot start"):
            Child.start(argv, env={}, output_fd=output)


def test_a_lost_answer_leaves_no_process(output: int) -> None:
    faults.install(faults.FaultPlan("child.start:after:1:fail"))
    try:
        with pytest.raises(KernelError, match="injected"):
            Child.start(script("echo $$; exec sleep 60"), env={}, output_fd=output)
    finally:
        faults.install(None)
    pids = read(output).split()
    assert not pids or not Path(f"/proc/{pids[0]}").exists()


def test_adoption(output: int) -> None:
    """One that somebody else started is taken over by what is on its command line, watched and ended."""
    somebody = subprocess.Popen(["/bin/sh", "-c", "echo up; exec sleep 60 # ", "/run/a.ctl"], stdout=output)
    other = subprocess.Popen(["/bin/sleep", "60"])
    try:
        # the kernel closes what an exec closes, which Popen waits for, before it shows the new name and arguments
        until(lambda: Path(f"/proc/{other.pid}/cmdline").read_bytes() == b"/bin/sleep\x0060\0", "sleep runs")
        assert Child.adopt("x", other.pid, argument="/run/a.ctl") is None
        assert Child.adopt("x", 2**22 - 1, argument="/run/a.ctl") is None
        found = Child.adopt("sleep", other.pid, argument="60")
        assert found is not None
        assert not found.ended(0.0)
        other.terminate()
        other.wait()
        assert found.ended(10.0)
        assert found.stop(0.0) == 0
        found.close()
    finally:
        for process in (somebody, other):
            process.kill()
            process.wait()


def test_without_pidfds(output: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels before 5.3."""

    def missing(pid: int, flags: int = 0) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    child = Child.start(script("exec sleep 60"), env={}, output_fd=output)
    assert not child.ended(0.1)
    assert child.stop(10.0) == -signal.SIGTERM
    child.close()
