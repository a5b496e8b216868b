"""runit's words: with the real supervisor, and processes that stand for the agent's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.nodeagent.service_control import control
from tests.deadlines import until

PROGRAM = """
import os, sys
from cni_calico.log import Log
from cni_calico.daemon.supervisor import ChildService, Supervisor
from cni_calico.nodeagent.service_control import write_services
services = [ChildService(name, ["-c", "exec sleep 1000"]) for name in ("the agent", "the CNI server")]
publish = lambda running: write_services({run_dir!r}, running)
sys.exit(Supervisor(services, ["/bin/sh"], os.environ, Log("none", stderr=False), publish).run())
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM.format(run_dir=str(tmp_path))])
    try:
        until(lambda: (tmp_path / "services.json").exists() and "CNI" in (tmp_path / "services.json").read_text(), "up")
        yield tmp_path
    finally:
        process.terminate()
        process.wait()


def sv(run_dir: Path, *arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = control(arguments, {"CALICO_RUN_DIR": str(run_dir)})
    return code, capsys.readouterr().out


def pid_in(text: str) -> int:
    found = re.search(r"run: /etc/service/enabled/[\w-]+: \(pid (\d+)\) \d+s\n$", text)
    assert found, text
    return int(found[1])


def test_status_in_svs_words(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = sv(run_dir, "status", "/etc/service/enabled/felix", capsys=capsys)
    assert code == 0 and text.startswith("run: ")
    os.kill(pid_in(text), 0)
    assert pid_in(sv(run_dir, "s", "confd", capsys=capsys)[1]) == pid_in(text)
    assert pid_in(sv(run_dir, "status", "cni/", capsys=capsys)[1]) != pid_in(text)
    assert sv(run_dir, "status", "bird", capsys=capsys)[1].startswith("down: /etc/service/enabled/bird: ")


def test_restart_gives_another_process(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = pid_in(sv(run_dir, "status", "felix", capsys=capsys)[1])
    code, text = sv(run_dir, "restart", "/etc/service/enabled/confd", capsys=capsys)
    assert code == 0 and text.startswith("ok: run: ") and pid_in(text) != before


def test_what_fails(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = sv(run_dir, "restart", "nobody", "bird", capsys=capsys)
    assert code == 2 and text.count("fail: ") == 2
    assert control(["exit", "felix"], {}) == 100 and control([], {}) == 100
    assert sv(run_dir, "hup", "bird", capsys=capsys)[0] == 1  # it does not answer
