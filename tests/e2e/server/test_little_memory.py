"""A server that is started with too little memory says so in a line, however far it came."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.deadlines import until
from tests.faults.servers import LAUNCHERS, OURS, answers_at

MB = 1024 * 1024


def said_with(megabytes: int, directory: Path) -> str:
    """What a server with so much address space writes until it ends, or until it answers; one of them it must do."""
    run_dir, said = directory / "run", directory / "said"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CALICO_RUN_DIR": str(run_dir)}
    argv = [
        "prlimit",
        f"--as={megabytes * MB}:unlimited",
        sys.executable,
        str(LAUNCHERS / "calico-node.py"),
        "-cni-server",
    ]
    directory.mkdir()
    with said.open("wb") as log:
        process = subprocess.Popen(argv, env=environ, stdout=log, stderr=log)

    def is_over() -> bool:
        return process.poll() is not None or answers_at(run_dir / "cni.sock")

    try:
        until(is_over, f"a server with {megabytes} MB ends or answers", 120, pause_s=0.05)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return said.read_text()


@pytest.mark.netns
def test_no_amount_of_memory_shows_a_trace_of_ours(tmp_path: Path) -> None:
    """From less than the interpreter needs to almost enough."""
    told = 0
    for megabytes in range(20, 120, 4):
        said = said_with(megabytes, tmp_path / str(megabytes))
        traces = [trace for trace in said.split("Traceback (most recent call last)")[1:] if OURS in trace]
        assert not traces, f"{megabytes} MB: {traces[0]}"
        told += "short of memory" in said or "cannot serve on" in said
    assert told > 5


@pytest.mark.netns
@pytest.mark.parametrize("megabytes", [150, 200, 260, 320, 400, 500, 600, 800])
def test_whoever_finds_a_socket_gets_an_answer(tmp_path: Path, megabytes: int) -> None:
    """Also where there is room for some of the threads: each takes 8 MB of addresses, and a heap."""
    said = said_with(megabytes, tmp_path / "server")
    assert OURS not in "".join(said.split("Traceback (most recent call last)")[1:]), said
