"""The recorder hears what is in force from a socket, which may end or say nonsense: that ends judging, nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_calico.flows.deciders import Decider
from cni_calico.flows.judging.agreement import SETTLED_S
from cni_calico.flows.judging.encoding import render_whole
from cni_calico.flows.judging.judged import JudgedFlows
from cni_calico.log import Log
from tests.unit.flows.judging.test_agreement import ALLOW_80, RULE_0, key
from tests.unit.policy.judge.test_bounds import wanted_with

NUMBERS: dict[int, Decider] = {300: RULE_0}


class Hearing:
    def __init__(self, root: Path) -> None:
        self.agent, self.ours = socket.socketpair()
        self.log, self.time = root / "log", 100.0
        log = Log("info", str(self.log), stderr=False)
        self.judged = JudgedFlows(self.ours.fileno(), NUMBERS.get, log, lambda: self.time)

    def hear(self, data: bytes) -> dict[str, Any]:
        self.agent.sendall(data)
        self.judged.receive()
        return self.judged.status()


@pytest.fixture
def hearing(tmp_path: Path) -> Iterator[Hearing]:
    one = Hearing(tmp_path)
    with one.agent, one.ours:
        yield one


def test_it_judges_by_what_it_was_told(hearing: Hearing) -> None:
    sent = b"".join(render_whole(wanted_with(ALLOW_80)))
    assert hearing.hear(sent[:50])["judges"] is False
    assert hearing.hear(sent[50:])["judges"] is True
    hearing.time += 1000
    for dport in (80, 81, 82):
        hearing.judged.check(key(1, dport), 300)
    hearing.judged.check(key(1, 80), 2)  # a reason that is no rule's
    hearing.time += SETTLED_S
    hearing.judged.settle()
    assert hearing.judged.status() == {"judges": True, "agreed": 1, "disagreed": 2, "unjudged": 0}
    (line,) = hearing.log.read_text().splitlines()  # one of the two, not both at once
    assert "10.9.0.1 to 10.0.0.1, protocol 6, 1 to 81" in line
    assert "ingress: p rule 0 (Allow), and not the end of tier default" in line


@pytest.mark.parametrize("data", [b"\0\0\0\3abc", b"\0\0\0\7[1,2,3]", b""])
def test_without_an_agent_nothing_is_judged(hearing: Hearing, data: bytes) -> None:
    hearing.hear(b"".join(render_whole(wanted_with(ALLOW_80))))
    if data:
        hearing.hear(data)
    else:
        hearing.agent.close()
        hearing.judged.receive()
    assert "not judged any more" in hearing.log.read_text()
    hearing.judged.check(key(1, 80), 300)
    hearing.judged.receive()
    assert hearing.judged.status() == {"judges": False, "agreed": 0, "disagreed": 0, "unjudged": 1}
