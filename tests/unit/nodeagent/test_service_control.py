"""runit's words: with the real supervisor, and processes that stand for the agent's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.errors import KernelError
from cni_calico.nodeagent import main
from cni_calico.nodeagent.flags import UsageError
from cni_calico.nodeagent.service_control import control, write_services
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


def sv(run_dir: Path, *arguments: str) -> tuple[int, str]:
    lines: list[str] = []
    return control(arguments, {"CALICO_RUN_DIR": str(run_dir)}, lines.append), "".join(lines)


def pid_in(text: str) -> int:
    found = re.search(r"run: /etc/service/enabled/[\w-]+: \(pid (\d+)\) \d+s\n$", text)
    assert found, text
    return int(found[1])


def test_status_in_svs_words(run_dir: Path) -> None:
    code, text = sv(run_dir, "status", "/etc/service/enabled/felix")
    assert code == 0 and text.startswith("run: ")
    os.kill(pid_in(text), 0)
    assert pid_in(sv(run_dir, "s", "confd")[1]) == pid_in(text)
    assert pid_in(sv(run_dir, "status", "cni/")[1]) != pid_in(text)
    assert sv(run_dir, "status", "bird")[1].startswith("down: /etc/service/enabled/bird: ")


def test_restart_gives_another_process(run_dir: Path) -> None:
    before = pid_in(sv(run_dir, "status", "felix")[1])
    code, text = sv(run_dir, "restart", "/etc/service/enabled/confd")
    assert code == 0 and text.startswith("ok: run: ") and pid_in(text) != before


def test_what_fails(run_dir: Path) -> None:
    code, text = sv(run_dir, "restart", "nobody", "bird")
    assert code == 2 and text.count("fail: ") == 2
    for wrong in (["exit", "felix"], ["status"], []):
        with pytest.raises(UsageError, match="usage: sv status"):
            control(wrong, {}, str)
    assert sv(run_dir, "hup", "bird")[0] == 1  # it does not answer


def test_the_usage_has_the_status_of_runits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["calico-node", "sv", "exit", "felix"])
    assert main.main() == 100
    assert capsys.readouterr().err.startswith("usage: sv status|restart|")


def test_services_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelError, match=r"^cannot write .*/services\.json: Not a directory"):
        write_services(str(tmp_path / "file" / "run"), [])


def test_a_number_that_is_another_processes_now(tmp_path: Path) -> None:
    """After a crash the files stay, and this test's process may have got the numbers."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME) - 100_000
    (tmp_path / "services.json").write_text(json.dumps({"the agent": {"pid": os.getpid(), "since": before}}))
    (tmp_path / "bird.pid").write_text(f"{os.getpid()}\n")
    for service in ("felix", "bird"):
        assert sv(tmp_path, "status", service) == (
            0,
            f"down: /etc/service/enabled/{service}: 0s, normally up, want up\n",
        )
