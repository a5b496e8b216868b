"""A server that runs short of descriptors while it works: whatever their number, no call is lost because of that.

The limit is lowered after the start, to several numbers of free ones, so that the shortage is met at several places.
"""

from __future__ import annotations

import os
import subprocess
from itertools import count, islice
from pathlib import Path

import pytest

from tests.e2e.host import Node
from tests.e2e.served import call
from tests.netns.namespaces import Namespace

MANY = 16384
FREE = (1, 4, 6, 8, 10, 12, 24)


def limit_with_free(pid: int, free: int) -> int:
    """The limit below which so many numbers are free: what is open already stays open."""
    used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    return next(islice((number for number in count() if number not in used), free, None))


@pytest.fixture(
    params=[
        pytest.param("plain_node", id="local"),
        pytest.param("etcd_node", marks=[pytest.mark.etcd, pytest.mark.slow], id="etcd"),
        pytest.param("pods_node", marks=[pytest.mark.kubernetes, pytest.mark.slow], id="kubernetes"),
    ]
)
def some_node(request: pytest.FixtureRequest) -> Node:
    made: Node = request.getfixturevalue(request.param)
    return made


@pytest.mark.netns
@pytest.mark.takes(15)
@pytest.mark.parametrize("command", ["ADD", "CHECK", "DEL", "STATUS", "GC"])
def test_before_any_effect_a_call_is_left_to_its_caller(some_node: Node, pod_ns: Namespace, command: str) -> None:
    """And the caller, which has enough, carries it out."""
    node = some_node
    with node.server() as process:
        result = call(node, "ADD", "c1", pod_ns.path)
        assert result.ok, result
        for free in FREE:
            prepared = call(node, "DEL" if command == "ADD" else "ADD", "c1", pod_ns.path)
            assert prepared.ok, prepared
            limit(process.pid, limit_with_free(process.pid, free))
            given = {"prevResult": result.document} if command in ("CHECK", "DEL") else {}
            valid = {"cni.dev/valid-attachments": []} if command == "GC" else {}
            reply = call(
                node, command, "c1", pod_ns.path if command in ("ADD", "DEL", "CHECK") else "", **given, **valid
            )
            limit(process.pid, MANY)
            assert reply.ok, (free, reply)
            result = reply if command == "ADD" else result
        assert call(node, "DEL", "c1", pod_ns.path).ok
        log = Path(node.root / "server.log").read_text()
    assert "Traceback" not in log, log
    assert not node.leftovers()


def limit(pid: int, descriptors: int) -> None:
    subprocess.run(["prlimit", f"--pid={pid}", f"--nofile={descriptors}:{MANY}"], check=True)
