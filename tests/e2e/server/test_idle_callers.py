"""Connections to the server's own socket that ask nothing: they take turns, not the server."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

import pytest

from tests.deadlines import until
from tests.e2e.host import Node
from tests.e2e.served import call
from tests.netns.namespaces import Namespace

WORKERS, QUEUE = 32, 512


def open_idle(node: Node, stack: ExitStack, number: int) -> None:
    for _ in range(number):
        idle = stack.enter_context(socket.socket(socket.AF_UNIX))
        idle.settimeout(60)
        idle.connect(str(node.root / "run/cni.sock"))


@pytest.mark.netns
@pytest.mark.takes(8)
def test_they_hold_up_a_call_for_some_seconds(plain_node: Node, pod_ns: Namespace) -> None:
    """As many as there are workers, which give each of them five seconds for a request."""
    with plain_node.server(), ExitStack() as stack:
        open_idle(plain_node, stack, WORKERS + 1)
        assert call(plain_node, "ADD", "c1", pod_ns.path).ok
        assert call(plain_node, "DEL", "c1", pod_ns.path).ok
    assert not plain_node.leftovers()


@pytest.mark.netns
def test_more_than_can_wait_leave_nothing_behind(plain_node: Node, pod_ns: Namespace) -> None:
    with plain_node.server() as process:
        assert call(plain_node, "ADD", "c1", pod_ns.path).ok
        before = len(os.listdir(f"/proc/{process.pid}/fd"))
        with ExitStack() as stack:
            open_idle(plain_node, stack, WORKERS + QUEUE + 100)
        until(lambda: len(os.listdir(f"/proc/{process.pid}/fd")) <= before + 2, "what they took is given back", 60)
        assert call(plain_node, "DEL", "c1", pod_ns.path).ok
    assert not plain_node.leftovers()
