"""The first policy of a node without Kubernetes, and what the whole agent says of it."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.policing.agents import ROOT, agent, agent_log, status
from tests.netns.policing.lab import DENY_B, NODE, Lab

pytestmark = [pytest.mark.netns]

TIMES = 3
WRONG = "NOBODY ENFORCES"


@pytest.fixture
def lone_node(two_workloads: Lab) -> Lab:
    two_workloads.put("Node", NODE, {"bgp": {"ipv4Address": "192.0.2.1/24"}})
    return two_workloads


def wait(lone_node: Lab, *, in_force: bool) -> None:
    until(lambda: status(lone_node)["policing"]["in_force"] is in_force, f"in force: {in_force}", 60)


def test_it_is_never_called_unenforced(lone_node: Lab) -> None:
    """However often it comes and goes."""
    with agent(lone_node, ROOT, "there is no policy"):
        for _ in range(TIMES):
            lone_node.put("GlobalNetworkPolicy", "deny", DENY_B)
            wait(lone_node, in_force=True)
            assert not lone_node.passes("a", "b", 80)
            assert WRONG not in str(status(lone_node)["warnings"])
            lone_node.remove("GlobalNetworkPolicy", "deny")
            wait(lone_node, in_force=False)
            assert lone_node.passes("a", "b", 80)
        assert WRONG not in agent_log(lone_node, ROOT).read_text()


def test_nor_while_the_engine_is_at_work_on_it(lone_node: Lab, tmp_path: Path) -> None:
    """The rest of the agent counts it meanwhile, and goes on: here iptables' program waits as for another's lock."""
    programs, waiting = tmp_path / "bin", tmp_path / "waiting"
    programs.mkdir()
    for name in ("iptables-legacy-restore", "ip6tables-legacy-restore"):
        real = shutil.which(name)
        wrapper = programs / name
        wrapper.write_text(f'#!/bin/sh\nwhile [ -e {waiting} ]; do sleep 0.05; done\nexec {real} "$@"\n')
        wrapper.chmod(0o755)
    lone_node.always = {"FELIX_NFTABLESMODE": "Disabled", "PATH": f"{programs}:{os.environ['PATH']}"}
    with ExitStack() as stack:
        stack.enter_context(agent(lone_node, ROOT, "there is no policy"))
        stack.callback(waiting.unlink, missing_ok=True)  # the program would wait for ever
        waiting.touch()
        lone_node.put("GlobalNetworkPolicy", "deny", DENY_B)
        lone_node.put("FelixConfiguration", "default", {"bogus": "1"})
        until(lambda: "bogus" in str(status(lone_node)["warnings"]), "it has seen what came after the policy", 60)
        assert lone_node.passes("a", "b", 80)
        assert WRONG not in str(status(lone_node)["warnings"]) and WRONG not in agent_log(lone_node, ROOT).read_text()
        waiting.unlink()
        wait(lone_node, in_force=True)
        assert not lone_node.passes("a", "b", 80)
        assert WRONG not in agent_log(lone_node, ROOT).read_text()


def test_one_that_nobody_enforces_is(lone_node: Lab) -> None:
    """So the tests above can fail."""
    lone_node.always = {"FELIX_POLICYENFORCEMENT": "Disabled"}
    with agent(lone_node, ROOT, "POLICYENFORCEMENT"):
        lone_node.put("GlobalNetworkPolicy", "deny", DENY_B)
        until(lambda: WRONG in str(status(lone_node)["warnings"]), "the status says so", 60)
        assert WRONG in agent_log(lone_node, ROOT).read_text()
        assert lone_node.passes("a", "b", 80)
