"""A server whose threads do not start: nobody finds a socket at which nobody answers."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cni_calico.log import SILENT
from cni_calico.server.run import CniServer
from tests.conftest import ROOT
from tests.deadlines import until
from tests.faults.servers import answers_at

HANGS = """
import os, sys, threading
from cni_calico.server import run
run.START_S = 0.5
start = threading.Thread.start
def hang(thread):
    if thread.name == "{name}":
        threading.Event().wait()
    start(thread)
threading.Thread.start = hang
sys.exit(run.run_server(os.environ))
"""


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@pytest.mark.parametrize("name", ["cni-accept", "cni-close-idle", "cni-0"])
def test_a_thread_that_never_starts_ends_the_server(tmp_path: Path, name: str) -> None:
    """Without memory for its first step it leaves whoever waits for its start waiting."""
    environ = {"CALICO_RUN_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    argv = [sys.executable, "-c", HANGS.format(name=name)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=50)
    assert done.returncode == 1 and "a thread does not start" in done.stderr and "Traceback" not in done.stderr
    assert not connects(tmp_path / "cni.sock")


def test_a_late_worker_that_never_starts_leaves_the_others_serving(tmp_path: Path) -> None:
    environ = {"CALICO_RUN_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen([sys.executable, "-c", HANGS.format(name="cni-7")], env=environ) as server:
        try:
            until(lambda: answers_at(tmp_path / "cni.sock"), "it serves", 50)
        finally:
            server.kill()


def test_a_server_that_cannot_end_is_ended(tmp_path: Path) -> None:
    environ = {"CALICO_RUN_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    program = HANGS.format(name="cni-close").replace("run.START_S", "run.END_S")
    with subprocess.Popen([sys.executable, "-c", program], env=environ) as server:
        try:
            until(lambda: answers_at(tmp_path / "cni.sock"), "it serves", 50)
            server.send_signal(signal.SIGTERM)
            assert server.wait(50) == -signal.SIGALRM
        finally:
            server.kill()


@pytest.mark.parametrize("failing", ["cni-accept", "cni-close-idle", "cni-0"])
def test_without_a_thread_that_is_needed_there_is_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    refuse(monkeypatch, lambda name: name == failing)
    path = tmp_path / "cni.sock"
    server = CniServer(str(path), SILENT, workers=4)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        server.start()
    assert not path.exists()


@pytest.mark.parametrize("possible", [1, 2, 3, 9])
def test_some_workers_are_enough_and_a_call_finds_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, possible: int
) -> None:
    names = [f"cni-{number}" for number in range(possible)]
    refuse(monkeypatch, lambda name: name.removeprefix("cni-").isdecimal() and name not in names)
    path = tmp_path / "cni.sock"
    server = CniServer(str(path), SILENT, workers=16)
    server.start()
    try:
        assert answers_at(path) and answers_at(path)
    finally:
        server.stop()


def refuse(monkeypatch: pytest.MonkeyPatch, refused: Callable[[str], bool]) -> None:
    start = threading.Thread.start

    def begin(thread: threading.Thread) -> None:
        if refused(thread.name):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", begin)
