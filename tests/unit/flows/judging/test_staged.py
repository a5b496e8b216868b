"""What staged policies would do to a connection: what is known of it, and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cni_calico.flows.deciders import END, Decider
from cni_calico.flows.judging.allowance import Allowance
from cni_calico.flows.judging.encoding import AgentMessage, Messages, StagedName, render_staged, render_whole
from cni_calico.flows.judging.known import KnownRules
from cni_calico.flows.judging.staged import MOST_COUNTED, OTHERS, StagedFlows
from cni_calico.flows.names import EndName
from cni_calico.flows.records import DENIED, FlowRecord
from cni_calico.policy.judge.staged import StagedResult
from cni_calico.policy.wanted import PolicyId, Wanted, WantedPolicy, WantedRule, WantedSide
from tests.unit.flows.judging.test_agreement import ALLOW_80, RULE_0, key
from tests.unit.policy.judge.test_bounds import HERE, POLICY, THERE, ports, wanted_with

NAME = EndName("pod", "a", "pod")
LABEL = "StagedGlobalNetworkPolicy p"
ALLOW_81 = replace(ALLOW_80, destination=ports((81, 81)))


class Staged:
    def __init__(self, would: Wanted) -> None:
        self.enforced, self.worked, self.spend, self.moved = KnownRules(), 0.0, 0.0, False
        allowance = Allowance(lambda: 100.0, self.work)
        self.flows = StagedFlows(self.enforced, allowance, lambda address, name: self.moved)
        for data in render_whole(wanted_with(ALLOW_80)):
            message = read(data)
            self.enforced.receive(message.kind, message.changes, 0.0)
        for data in render_staged(render_whole(would), [StagedName(POLICY, "StagedGlobalNetworkPolicy", "p")]):
            self.flows.receive(read(data), 0.0)

    def work(self) -> float:
        """Seconds so far; each look costs ``spend``."""
        self.worked += self.spend
        return self.worked


def read(data: bytes) -> AgentMessage:
    messages = Messages()
    messages.put(data)
    found = messages.take()
    assert found is not None
    return found


def record(dport: int, sport: int = 1, **changed: int) -> FlowRecord:
    made = FlowRecord(0, 0, THERE.packed, HERE.packed, HERE.packed, sport, dport, dport, 6, 0, *([0] * 9), 0, 1)
    return made._replace(**{"ingress": 300, **changed})


@pytest.mark.parametrize("kind", ["network", "networkset"])
def test_many_addresses_in_one_sum_are_not_judged_as_one(kind: str) -> None:
    staged = Staged(wanted_with(ALLOW_81))
    told = staged.flows.describe(record(81), EndName(kind, "", "192.0.2.0/24"), NAME)
    assert told == {"verdict": "unknown", "decided": []}


def test_what_would_be_decided() -> None:
    staged = Staged(wanted_with(ALLOW_81))
    allowed = staged.flows.describe(record(81, flags=DENIED, denied_by=301, ingress=0), None, NAME)
    assert allowed is not None and (allowed["verdict"], allowed["changes"]) == ("allowed", True)
    assert [one["said"] for one in allowed["decided"]] == ["ingress: staged p rule 0"]
    assert allowed["policies"] == [{"policy": LABEL, "result": result} for result in ("allow", "changed")]
    denied = staged.flows.describe(record(80), None, NAME)
    assert denied is not None and (denied["verdict"], denied["changes"]) == ("denied", True)
    assert [one["said"] for one in denied["decided"]] == ["ingress: end of tier default (policies: staged p)"]
    same = staged.flows.describe(record(82), None, NAME)
    assert same is not None and (same["verdict"], same["changes"]) == ("denied", False)
    assert staged.flows.pending(record(81), True) == (
        Decider("StagedGlobalNetworkPolicy", "", "p", "default", True, 0, "Allow"),
        [],
    )
    pending = staged.flows.pending(record(82), True)
    assert pending is not None and (pending[0].index, pending[0].action, pending[0].name) == (END, "Deny", "p")


def without_policy() -> Wanted:
    """As ``stagedAction: Delete`` makes it: a profile decides."""
    profile = PolicyId("Profile", "kns.a")
    wanted = wanted_with()
    rules = WantedPolicy(profile, "", ingress=(WantedRule("Allow"),), egress=(WantedRule("Allow"),))
    group = replace(wanted.classes["c"], ingress=(), profiles=(profile,))
    return replace(wanted, policies={profile: rules}, classes={"c": group})


def test_what_removing_an_enforced_policy_would_do() -> None:
    """It is told, counted for the staged policy that deletes it, and exported as what would decide instead."""
    staged = Staged(without_policy())
    found = staged.flows.describe(record(81, flags=DENIED, denied_by=301, ingress=0), None, NAME)
    assert found is not None and (found["verdict"], found["changes"]) == ("allowed", True)
    assert [one["said"] for one in found["decided"]] == ["ingress: profile kns.a rule 0"]
    assert found["policies"] == [{"policy": LABEL, "result": "changed"}]
    same = staged.flows.describe(record(80), None, NAME)
    assert same is not None and (same["verdict"], same["changes"], same["policies"]) == ("allowed", False, [])
    end = Decider("GlobalNetworkPolicy", "", "p", "default", True, END, "Deny")
    for sport in range(3):
        staged.flows.count(key(sport, 81), end)
    staged.flows.count(key(1, 80), RULE_0)
    assert staged.flows.status()["staged"] == {LABEL: {"changed": 3}}
    assert staged.flows.pending(record(81), True) == (Decider("Profile", "", "kns.a", "", True, 0, "Allow"), [])


def test_what_is_not_known_is_unknown() -> None:
    """An address that is another pod's by now; a pod that is gone; a sum, where the source port decides."""
    staged = Staged(wanted_with(replace(ALLOW_81, source=WantedSide(ports=ports((1, 2)).ports))))
    assert staged.flows.describe(record(81, sport=0), None, NAME) == {"verdict": "unknown", "decided": []}
    assert staged.flows.pending(record(81), True) is None
    known = staged.flows.describe(record(81, sport=1), None, NAME)
    assert known is not None and known["verdict"] == "allowed"
    gone = record(80)._replace(destination=THERE.packed)
    assert staged.flows.describe(gone, None, NAME) == {"verdict": "unknown", "decided": []}
    staged.moved = True
    assert staged.flows.describe(record(80), None, NAME) == {"verdict": "unknown", "decided": []}


def test_what_no_policy_decided_is_nothing_of_theirs() -> None:
    staged = Staged(wanted_with(ALLOW_81))
    assert staged.flows.describe(record(80, flags=DENIED, denied_by=2, ingress=0), None, NAME) is None
    staged.flows.stop()
    assert staged.flows.describe(record(80), None, NAME) is None and staged.flows.pending(record(80), True) is None


def test_reports_are_counted_and_time_is_bounded() -> None:
    staged = Staged(wanted_with(ALLOW_81))
    for sport in range(3):
        staged.flows.count(key(sport, 81), RULE_0)
    staged.flows.count(key(1, 82), RULE_0)
    counts = staged.flows.counts
    assert counts == {(LABEL, StagedResult.ALLOW): 3, (LABEL, StagedResult.CHANGED): 3, (LABEL, StagedResult.DENY): 1}
    said = staged.flows.status()
    assert said["staged"] == {LABEL: {"allow": 3, "changed": 3, "deny": 1}} and said["staged_policies"] == 1
    staged.spend = 10.0
    staged.flows.count(key(1, 83), RULE_0)
    staged.flows.count(key(1, 81), RULE_0)  # it is remembered
    staged.flows.count(key(1, 84), RULE_0)
    assert (counts[LABEL, StagedResult.ALLOW], staged.flows.uncounted) == (4, 1)
    staged.enforced.version += 1
    staged.flows.count(key(1, 81), RULE_0)  # it may be another one now
    assert (counts[LABEL, StagedResult.ALLOW], staged.flows.uncounted) == (4, 2)


@pytest.mark.parametrize("known", [MOST_COUNTED - 1, MOST_COUNTED])
def test_more_policies_than_have_a_count_of_their_own(known: int) -> None:
    staged = Staged(wanted_with(ALLOW_81))
    for number in range(known):
        staged.flows.counts[f"StagedGlobalNetworkPolicy s{number}", StagedResult.DENY] = 1
    staged.flows.count(key(1, 82), RULE_0)
    assert staged.flows.counts[LABEL if known < MOST_COUNTED else OTHERS, StagedResult.DENY] == 1
    found = staged.flows.describe(record(82), None, NAME)  # that is about one connection, and names each
    assert found is not None and [one["policy"] for one in found["policies"]] == [LABEL]


def test_names_are_those_of_the_newest_whole() -> None:
    staged = Staged(wanted_with(ALLOW_81))
    other = PolicyId("GlobalNetworkPolicy", "q")
    for data in render_staged(
        render_whole(wanted_with(ALLOW_81)), [StagedName(other, "StagedGlobalNetworkPolicy", "q")]
    ):
        staged.flows.receive(read(data), 0.0)
    found = staged.flows.describe(record(81), None, NAME)
    assert found is not None and found["decided"][0]["staged"] is False
