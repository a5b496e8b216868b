"""``calico-node run`` before its children are started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cni_calico.daemon.supervisor import Supervisor
from cni_calico.nodeagent.main import main
from cni_calico.nodeagent.status.file import read_status, since_boot, why_not_ready, write_status


def test_the_status_of_the_former_agent_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a pod is ready, and a rolling update goes on, before its own agent has done anything."""
    run_dir = str(tmp_path)
    write_status(run_dir, {"synced": True})
    assert why_not_ready(read_status(run_dir), since_boot()) == ""
    seen: list[str] = []

    def run(_: Supervisor) -> int:
        seen.append(why_not_ready(read_status(run_dir), since_boot()))
        return 0

    monkeypatch.setattr(Supervisor, "run", run)
    monkeypatch.setenv("CALICO_RUN_DIR", run_dir)
    monkeypatch.setattr(sys, "argv", ["calico-node", "run"])
    assert main() == 0
    assert seen == ["the agent has not started: it has written no status"]


def test_a_status_that_cannot_be_removed_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent-status.json").mkdir()
    monkeypatch.setattr(Supervisor, "run", lambda _: 0)
    monkeypatch.setenv("CALICO_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["calico-node", "run"])
    assert main() == 0
    assert "cannot remove the status of the agent that ran before: Is a directory" in capfd.readouterr().err


@pytest.mark.parametrize("number", ["0", "-", "many", "", "1.5", "٣"])
def test_flows_needs_a_number(number: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["calico-node", f"-flows={number}"])
    assert main() == 2
    assert f"-flows needs a number of flows, negative to go on for ever, not {number!r}" in capfd.readouterr().err


def test_flows_says_why_it_cannot_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flows").write_text("not a directory")
    monkeypatch.setenv("CALICO_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["calico-node", "-flows", "1"])
    assert main() == 1
    assert f"calico-node: cannot listen on {tmp_path}/flows/flows.sock: " in capfd.readouterr().err
