"""The server's memory does not grow with the calls it has served."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.host import Node
from tests.e2e.served import descriptors, resident_kb, socket_of

pytestmark = pytest.mark.netns
CALLERS = 8
BUDGET_KB = 70_000
# what fills up first: what has just been deleted (4096 names), SQLite's statements and pages, pieces in glibc's arenas.
# Over 6000 pairs it measured 600 to 1900 kB, over the next 20,000 as much again; a kilobyte a pair would be 6000.
NOISE_KB = 3000


def run_pairs(node: Node, pods: list[str], first: int, pairs: int) -> None:
    """So many pairs in all, by as many callers as there are pods."""
    task = {
        "path": socket_of(node),
        "environ": node.env("", "", "", "eth0", ""),
        "conf": node.conf(log_level="error"),
        "netns": pods,
        "pairs": pairs // len(pods),
        "first": first,
    }
    argv = ["nsenter", f"--net={node.host.path}", sys.executable, "-m", "tests.e2e.pairs"]
    done = subprocess.run(argv, input=json.dumps(task), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [0, []]


def measure(node: Node, make_pod_ns: Any, warm: int, rounds: int, pairs: int) -> list[int]:
    """Resident kilobytes of the server after each round."""
    pods = [make_pod_ns().path for _ in range(CALLERS)]
    found = []
    with node.server() as process:
        run_pairs(node, pods, 0, warm)
        files = descriptors(process.pid)
        found.append(resident_kb(process.pid))
        for i in range(rounds):
            run_pairs(node, pods, warm + i * pairs, pairs)
            found.append(resident_kb(process.pid))
        assert descriptors(process.pid) <= files + CALLERS
    assert not node.leftovers()
    return found


def test_a_few_hundred_pairs(plain_node: Node, make_pod_ns: Any):
    found = measure(plain_node, make_pod_ns, 160, 1, 320)
    assert found[-1] < BUDGET_KB and found[-1] - found[0] < 2 * NOISE_KB, found


@pytest.mark.slow
@pytest.mark.parametrize("datastore", ["local", pytest.param("etcd", marks=pytest.mark.etcd)])
def test_ten_thousand_pairs(request: pytest.FixtureRequest, make_pod_ns: Any, datastore: str):
    node = request.getfixturevalue("plain_node" if datastore == "local" else "etcd_node")
    found = measure(node, make_pod_ns, 2000, 4, 2000)
    print(f"{datastore}: {found} kB")
    assert max(found) < BUDGET_KB and found[-1] - found[1] < NOISE_KB, found
