"""The judge of runs under faults can find what it is there to find."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.host import Node, added, addresses
from tests.faults.clock import Clock
from tests.faults.history import Operation, find_double, judge, ownerships, read_history
from tests.faults.records import read_file
from tests.netns.namespaces import Namespace

A, B = "c1/eth0", "c2/eth0"


def call(at: float, command: str, container: str, rc: int | None = 0, *held: str, code: int = 0) -> Operation:
    return Operation(at, at + 0.5, command, container, rc, held, code, "why")


@pytest.mark.parametrize(
    ("history", "doubles"),
    [
        ([call(1, "ADD", A, 0, "10.0.0.1"), call(2, "ADD", B, 0, "10.0.0.1")], 1),
        ([call(1, "ADD", A, 0, "10.0.0.1"), call(2, "DEL", A), call(3, "ADD", B, 0, "10.0.0.1")], 0),
        ([call(1, "ADD", A, 0, "10.0.0.1"), call(2, "DEL", A, 1), call(3, "ADD", B, 0, "10.0.0.1")], 0),
        ([call(1, "ADD", A, 0, "10.0.0.1"), call(2, "GC", A), call(3, "ADD", B, 0, "10.0.0.1")], 0),
        ([call(1, "ADD", A, 0, "10.0.0.1"), call(2, "CHECK", A), call(3, "ADD", B, 0, "10.0.0.1")], 1),
        ([call(1, "ADD", A, None), call(2, "ADD", B, 0, "10.0.0.1")], 0),
        ([call(1, "ADD", A, 0, "10.0.0.1"), call(2, "DEL", A), call(3, "ADD", A, 0, "10.0.0.1")], 0),
        (
            [
                *(call(1, "ADD", A, 0, "10.0.0.1"), call(2, "DEL", A), call(3, "ADD", A, 0, "10.0.0.2")),
                *(call(4, "ADD", B, 0, "10.0.0.1"), call(5, "ADD", "c3/eth0", 0, "10.0.0.2")),
            ],
            1,
        ),
    ],
)
def test_an_address_of_two(history: list[Operation], doubles: int) -> None:
    assert len(find_double(ownerships(history))) == doubles
    assert len(judge(history).violations) == doubles


def test_a_defect_is_a_violation_and_a_gc_is_one_operation() -> None:
    verdict = judge([call(1, "GC", A), call(1, "GC", B), call(2, "DEL", A, 1, code=199)])
    assert verdict.operations == {"GC": 1, "DEL": 1} and len(verdict.violations) == 1
    assert "why" in verdict.violations[0]


def test_what_has_begun_and_not_ended(tmp_path: Path) -> None:
    path = tmp_path / "history"
    entries = [{"begins": [A]}, {"begins": [B]}, {**call(1, "ADD", A, 0, "10.0.0.1").__dict__}]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    ended, open_now = read_history(path)
    assert ended == [call(1, "ADD", A, 0, "10.0.0.1")] and open_now == {B}


@pytest.mark.netns
def test_what_is_stored_is_read_past_the_product(plain_node: Node, pod_ns: Namespace) -> None:
    given = addresses(added(plain_node, "c1", pod_ns))[0].partition("/")[0]
    stored = read_file(Path(plain_node.datastore.path))
    assert stored.taken == {given: "calnet.c1"} and stored.handles == {"calnet.c1"}
    assert list(stored.endpoints.values()) == ["c1"]
    assert set(stored.of_containers()) == {"addresses", "handles", "endpoints"}
    assert plain_node.call("DEL", "c1").ok
    assert read_file(Path(plain_node.datastore.path)).of_containers() == {}


def test_the_time_of_day_of_one_process(tmp_path: Path) -> None:
    """It jumps while the process runs; what counts from the boot goes on."""
    clock = Clock(tmp_path)
    program = "import time\nwhile input(): print(time.time(), time.monotonic(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", program], env=clock.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for ahead in (0, 3600, -86400, 0):
            clock.jump(ahead)
            process.stdin.write("now\n")
            process.stdin.flush()
            told, monotonic = map(float, process.stdout.readline().split())
            assert abs(told - time.time() - ahead) < 60 and abs(monotonic - time.monotonic()) < 60
        process.stdin.close()
        process.wait()
