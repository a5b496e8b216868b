"""Any pod can connect to the agent's ports: more idle connections than it may have descriptors keep nobody out."""

from __future__ import annotations

import os
import resource
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.nodes import Node

pytestmark = pytest.mark.netns

LIMIT, IDLE = 1024, 1100
PAGES = {9091: "/metrics", 9099: "/liveness"}
MAY_GROW_KB = 8 * 1024


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_kb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


def besiege(pid: int) -> tuple[int, list[int]]:
    """Inside the node's namespace: (the most descriptors that the agent had, what others were answered meanwhile)."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    idle: list[socket.socket] = []
    most, statuses = 0, []
    for number in range(IDLE):
        idle += [socket.create_connection(("127.0.0.1", port), timeout=20) for port in PAGES]
        if number % 100 == 99:
            most = max(most, descriptors(pid))
            for port, path in PAGES.items():
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
                    statuses.append(answer.status)
    for connection in idle:
        connection.close()
    return most, statuses


def test_more_idle_connections_than_descriptors(agent_node: Node) -> None:
    agent_node.run().until_ready()
    pid = int(agent_node.status()["pid"])
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    for port, path in PAGES.items():  # what the first answer needs once
        agent_node.ns.run(
            "python3", "-c", f"import urllib.request as r; r.urlopen('http://127.0.0.1:{port}{path}').read()"
        )
    before, before_kb = descriptors(pid), resident_kb(pid)
    most, statuses = agent_node.ns.call(besiege, pid, timeout_s=120)
    assert statuses == [200] * (IDLE // 100 * len(PAGES))
    assert before < most < LIMIT // 2
    until(lambda: descriptors(pid) <= before + 2, "the connections are given up", 30)
    assert resident_kb(pid) - before_kb < MAY_GROW_KB
    assert agent_node.status()["pid"] == pid and agent_node.calico_node("-felix-live", "-felix-ready").returncode == 0
    assert "Traceback" not in agent_node.log() and agent_node.log().count("9091") + agent_node.log().count("9099") < 10
