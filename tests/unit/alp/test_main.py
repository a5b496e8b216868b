"""calico-alp as a program: what it serves until a signal, what its client says, and how it refuses its arguments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cni_calico.alp.main import run
from cni_calico.nodeagent.sync import serving
from tests.deadlines import soon, until
from tests.unit.nodeagent.sync.test_serving import Served


def test_a_sidecar_from_its_start_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = Served(tmp_path, serving.CUT_S)
    path, socket = tmp_path / "alp.sock", tmp_path / "nodeagent/mount/csi-1/socket"
    command = [sys.executable, "-m", "cni_calico.alp.main", "server", "-l", str(path), "-d", str(socket), "--debug"]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    ready, client = ["ready", "-d", str(path)], ["client", "shop", "cart", "-d", str(path)]
    try:
        until(path.is_socket, "it listens")
        assert run(ready, os.environ) == 1 and run(client, os.environ) == 1
        agent.add()
        until(lambda: run(ready, os.environ) == 0, "it has been told everything")
        assert run([*client, "--from", "10.1.0.0"], os.environ) == 0
        assert run([*client, "--from", "10.9.0.0", "--method", "POST", "--path", "/x"], os.environ) == 1
        program.send_signal(signal.SIGTERM)
        _, said = program.communicate(timeout=soon().remaining_s())
    finally:
        program.kill()
        program.wait()
        agent.stop()
    assert program.returncode == 0 and not path.exists()
    assert capsys.readouterr().out.split() == ["UNAVAILABLE", "OK", "PERMISSION_DENIED"]
    assert "'GET /' from 10.1.0.0: allowed by rule 0 of NetworkPolicy/shop/web" in said
    assert "'POST /x' from 10.9.0.0: refused by the end of tier default" in said


def test_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ready", "-d", str(tmp_path / "none")], os.environ) == 2
    assert f"cannot ask at {tmp_path}/none" in capsys.readouterr().err
    assert run(["server", "-l", str(tmp_path / "no" / "where")], os.environ) == 2
    assert "no such" in capsys.readouterr().err.lower()


@pytest.mark.parametrize(
    "arguments",
    [["serve"], ["server", "--hold", "0"], ["server", "--hold", "inf"], ["client", "shop"], ["server", "--lis", "x"]],
)
def test_wrong_arguments(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(arguments, os.environ)
    assert ended.value.code == 2
