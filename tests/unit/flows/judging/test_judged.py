"""The recorder hears what is in force from a socket, which may end or say nonsense: that ends judging, nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cni_calico.flows.deciders import Decider
from cni_calico.flows.judging.agreement import SETTLED_S
from cni_calico.flows.judging.encoding import render_whole
from cni_calico.flows.judging.judged import JudgedFlows
from cni_calico.flows.records import FlowRecord
from cni_calico.log import Log
from cni_calico.policy.wanted import PolicyId, WantedPolicy, WantedRule, WantedTier
from tests.unit.flows.judging.test_agreement import ALLOW_80, RULE_0, THE_END, key
from tests.unit.policy.judge.test_bounds import HERE, THERE, ports, wanted_with

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
        hearing.judged.reports.check(key(1, dport), 300)
    hearing.judged.reports.check(key(1, 80), 2)  # a reason that is no rule's
    hearing.time += SETTLED_S
    hearing.judged.settle()
    assert hearing.judged.status() == {"judges": True, "agreed": 1, "disagreed": 2, "unjudged": 0}
    (line,) = hearing.log.read_text().splitlines()  # one of the two, not both at once
    assert "10.9.0.1 to 10.0.0.1, protocol 6, 1 to 81" in line
    assert "ingress: p rule 0 (Allow), and not the end of tier default" in line


def test_the_tiers_that_passed_on_before(hearing: Hearing) -> None:
    """As the rules in force say it; nothing if they decide otherwise by now."""
    wanted = wanted_with(ALLOW_80)
    first = PolicyId("NetworkPolicy", "q", "shop")
    passing = WantedPolicy(first, "first", (WantedRule("Pass", protocol=6, destination=ports((80, 80))),), None)
    tiers = WantedTier("first", (first,), "Pass"), *wanted.classes["c"].ingress
    group = replace(wanted.classes["c"], ingress=tiers)
    wanted = replace(wanted, policies={**wanted.policies, first: passing}, classes={"c": group})
    record = FlowRecord(0, 0, THERE.packed, HERE.packed, HERE.packed, 1, 80, 80, 6, *([0] * 12))
    assert hearing.judged.passed_by(record, RULE_0) is None
    hearing.hear(b"".join(render_whole(wanted)))
    (step,) = hearing.judged.passed_by(record, RULE_0) or ()
    named = {"kind": "NetworkPolicy", "namespace": "shop", "name": "q", "rule": 0}
    assert step == {"tier": "first", **named, "said": "shop/q rule 0 passes on"}
    assert hearing.judged.passed_by(record, THE_END) is None
    record = record._replace(dport=81)
    (step,) = hearing.judged.passed_by(record, THE_END) or ()
    assert step == {"tier": "first", "endOfTier": True, "said": "end of tier first passes on"}


@pytest.mark.parametrize("data", [b"\0\0\0\3abc", b"\0\0\0\7[1,2,3]", b""])
def test_without_an_agent_nothing_is_judged(hearing: Hearing, data: bytes) -> None:
    hearing.hear(b"".join(render_whole(wanted_with(ALLOW_80))))
    if data:
        hearing.hear(data)
    else:
        hearing.agent.close()
        hearing.judged.receive()
    assert "not judged any more" in hearing.log.read_text()
    hearing.judged.reports.check(key(1, 80), 300)
    hearing.judged.receive()
    assert hearing.judged.status() == {"judges": False, "agreed": 0, "disagreed": 0, "unjudged": 1}
