"""A run under faults ends, and being halted from outside is neither a hang nor a power cut that shows two moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.faults import calls, run
from tests.faults.calls import Patience
from tests.faults.crew import Crew, Stalled
from tests.faults.power import PowerCuts
from tests.faults.processes import is_still
from tests.faults.run import Asked

WRITES = """
import json, os, sys
n = 0
while True:
    n += 1
    entry = {"began": n, "ended": n, "command": "STATUS", "container": "", "rc": 0, "addresses": []}
    with open(sys.argv[1], "a") as f:
        f.write(json.dumps(entry) + "\\n")
"""


@contextmanager
def idle_child() -> Iterator[int]:
    pid = os.fork()
    if not pid:
        while True:
            signal.pause()
    try:
        yield pid
    finally:
        assert not Path(f"/proc/{pid}").exists(), "nobody is left"


def test_a_run_in_which_no_call_ends_is_stopped_and_described(tmp_path: Path) -> None:
    with idle_child() as pid, Crew([pid], tmp_path / "history", lambda: False, stall_s=0.3) as crew:
        with pytest.raises(Stalled, match="before they are done") as caught:
            crew.wait(lambda: False, "they are done")
        assert f"{pid}: " in str(caught.value) and " S " in str(caught.value)


def test_calls_that_end_are_progress_and_so_is_a_run_that_is_held(tmp_path: Path) -> None:
    history, looks = tmp_path / "history", iter(range(12))

    def grows() -> bool:
        with history.open("a") as f:
            f.write("x")
        return next(looks) == 10

    with idle_child() as pid, Crew([pid], history, lambda: False, stall_s=0.3) as crew:
        crew.wait(grows, "they are done")
    held = iter([*[True] * 10, False])
    with (
        idle_child() as pid,
        Crew([pid], history, lambda: next(held), stall_s=0.3) as crew,
        pytest.raises(StopIteration),
    ):
        crew.wait(lambda: False, "they are done")


def test_a_run_that_breaks_is_a_violation_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("no disk")

    monkeypatch.setattr(run, "lab", breaks)
    verdict, about = run.run(Asked(seed=12, operations=1, bundle=Path("/nowhere")))
    assert verdict.violations == ["the run broke: RuntimeError: no disk"] == about["violations"]
    assert about["seed"] == 12


def test_a_halt_is_not_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine minutes between two looks at the clock, and then some seconds."""
    now = iter([0.0, 540.0, *[540.0 + n / 2 for n in range(100)]])
    monkeypatch.setattr(calls, "monotonic", lambda: next(now))
    monkeypatch.setattr(calls, "SLICE_S", 0.001)
    reading, writing = os.pipe()
    patience = Patience(0.05)
    assert not patience.readable(reading)
    assert next(now) > 540.0 + 10, "the halt counted as one slice"
    os.write(writing, b"x")
    assert patience.readable(reading)
    os.close(reading)
    os.close(writing)


def test_a_power_cut_is_one_moment_although_somebody_continues_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, image = tmp_path / "history", tmp_path / "image"
    image.write_bytes(b"disk")
    copies: list[int] = []
    with ended(subprocess.Popen([sys.executable, "-c", WRITES, str(history)])) as worker:
        until(lambda: history.exists() and history.stat().st_size, "it has begun")

        def copied(source: Path, target: Path) -> None:
            copies.append(history.stat().st_size)
            target.write_bytes(source.read_bytes())
            if len(copies) <= 2:
                worker.send_signal(signal.SIGCONT)
                until(lambda: history.stat().st_size > copies[-1], "it runs on")

        monkeypatch.setattr("tests.faults.power.shutil.copyfile", copied)
        cuts = PowerCuts.__new__(PowerCuts)
        cuts.host, cuts.image, cuts.workers, cuts.history = _Host(), image, [worker.pid], history
        cuts.random = random.Random(1)
        monkeypatch.setattr(cuts, "_written", lambda: "nothing")
        taken = cuts._take(tmp_path / "copy")
        assert taken is not None and len(copies) > 2
        assert len(taken[0]) == len(history.read_bytes()[: copies[-1]].splitlines())
        until(lambda: not is_still(worker.pid), "it runs on afterwards")


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class _Host:
    server = None
