"""Several processes on one store: no lost update, and nothing half-written when one is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.model.keys import HandleList
from tests.contract.backends import KEYS, Backend, Space, number

ROOT = Path(__file__).parents[2]
COUNTER, OTHER = KEYS[:2]


@contextmanager
def worker(space: Space, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.contract.worker", space.address, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_counters_lose_no_update(backend: Backend, space: Space, soon: Deadline) -> None:
    if not backend.processes:
        pytest.skip("backend: one process only")
    with worker(space, "count", "60") as a, worker(space, "count", "60") as b, worker(space, "count", "60") as c:
        assert [p.wait(60) for p in (a, b, c)] == [0, 0, 0]
    assert number(COUNTER, space.first.get(COUNTER, soon).value) == 180


def test_killed_writers_leave_whole_commits(backend: Backend, space: Space, soon: Deadline) -> None:
    if not backend.processes or space.first.max_commit < 3:
        pytest.skip("backend: one process only, or no transactions")
    acknowledged = 0
    for commits in (1, 7, 40, 3):
        with worker(space, "pair") as process:
            assert process.stdout is not None
            for _ in range(commits):
                acknowledged = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split()
            acknowledged = int(rest[-1]) if rest else acknowledged
        first, second = (number(k, space.first.get(k, soon).value) for k in (COUNTER, OTHER))
        assert first == second and acknowledged <= first <= acknowledged + 1
        log = [v for v in space.first.list(HandleList(), soon).items if v.key.handle_id.startswith("log.")]
        assert [number(v.key, v.value) for v in log] == list(range(1, first + 1))
