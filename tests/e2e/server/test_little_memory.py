"""A server that is started with too little memory says so in a line, however far it came."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.faults.servers import LAUNCHER, OURS

MB = 1024 * 1024


@pytest.mark.netns
def test_no_amount_of_memory_shows_a_trace_of_ours(tmp_path: Path) -> None:
    """From less than the interpreter needs to almost enough."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CALICO_RUN_DIR": str(tmp_path / "run")}
    told = 0
    for megabytes in range(20, 120, 4):
        argv = ["timeout", "--signal=TERM", "1.5", "prlimit", f"--as={megabytes * MB}:unlimited"]
        done = subprocess.run(
            [*argv, sys.executable, str(LAUNCHER), "-cni-server"], env=environ, capture_output=True, text=True
        )
        traces = [trace for trace in done.stderr.split("Traceback (most recent call last)")[1:] if OURS in trace]
        assert not traces, f"{megabytes} MB: {traces[0]}"
        told += "short of memory" in done.stderr or "cannot serve on" in done.stderr
    assert told > 5
