"""What counts as a difference between the packet filter and the rules in force, and what does not."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest

from cni_calico.flows.deciders import END, REFUSED, Decider
from cni_calico.flows.judging.agreement import SETTLED_S, Agreement
from cni_calico.flows.judging.encoding import BEGIN, DONE, STANDS_IN
from cni_calico.flows.judging.known import KnownRules
from cni_calico.policy.wanted import Wanted, WantedChanges, WantedRule
from tests.unit.policy.judge.test_bounds import HERE, POLICY, THERE, ports, wanted_with

RULE_0 = Decider("GlobalNetworkPolicy", "", "p", "default", True, 0, "Allow")
THE_END = replace(RULE_0, index=END, action="Deny")
ALLOW_80 = WantedRule("Allow", protocol=6, destination=ports((80, 80)))


def whole(wanted: Wanted) -> WantedChanges:
    return WantedChanges(
        sets_made=wanted.sets, policies=wanted.policies, classes=wanted.classes, endpoints=wanted.endpoints
    )


def key(sport: int, dport: int, destination: object = HERE) -> bytes:
    ends = THERE.packed + ip_address(str(destination)).packed
    return ends + bytes((6,)) + sport.to_bytes(2, "big") + dport.to_bytes(2, "big")


class Watched:
    """At a time that is set; ``costs``: what the processor works between two looks, ``waits``: how long that takes."""

    def __init__(self, *rules: WantedRule) -> None:
        self.time, self.costs, self.waits, self.spent = 100.0, 0.0, 0.0, 0.0
        self.known = KnownRules()
        self.agreement = Agreement(self.known, self.clock, self.worked)
        self.tell(*rules)
        self.time = 1000.0

    def clock(self) -> float:
        self.time += self.waits
        return self.time

    def worked(self) -> float:
        self.spent += self.costs
        return self.spent

    def tell(self, *rules: WantedRule) -> None:
        self.known.receive(DONE, whole(wanted_with(*rules)), self.time)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        one = self.agreement
        return one.agreed, one.disagreed, one.unsettled, one.skipped

    def settle(self, after_s: float = SETTLED_S) -> None:
        self.time += after_s
        list(self.agreement.settle())


def test_the_same_rule_and_the_same_end_agree() -> None:
    watched = Watched(ALLOW_80)
    watched.agreement.check(key(1, 80), 300, RULE_0)
    watched.agreement.check(key(1, 81), 301, THE_END)
    for sport in range(10):  # looked up only once
        watched.agreement.check(key(sport, 80), 300, RULE_0)
    watched.settle()
    assert watched.counts == (12, 0, 0, 0)


@pytest.mark.parametrize(
    ("dport", "said"),
    [
        (81, RULE_0),
        (80, THE_END),
        (80, replace(RULE_0, index=1)),
        (80, replace(RULE_0, name="q")),
        (80, replace(RULE_0, action="Deny")),
        (80, replace(RULE_0, tier="other")),
        (81, replace(THE_END, tier="other")),
    ],
)
def test_anything_else_differs_once_it_is_certain(dport: int, said: Decider) -> None:
    watched = Watched(ALLOW_80)
    watched.agreement.check(key(1, dport), 300, said)
    watched.settle(SETTLED_S / 2)
    assert watched.counts == (0, 0, 0, 0)
    watched.settle()
    assert watched.counts == (0, 1, 0, 0)
    assert watched.agreement.last is not None and watched.agreement.last.said == said


def test_a_report_from_before_or_after_a_change_does_not_count() -> None:
    watched = Watched(ALLOW_80)
    watched.agreement.check(key(1, 81), 300, RULE_0)  # the kernel is ahead: its rule allows 81 by now
    watched.time += 0.5
    watched.tell(replace(ALLOW_80, destination=ports((81, 81))))
    watched.agreement.check(key(1, 80), 300, RULE_0)  # reported by the earlier rule
    watched.settle()
    assert watched.counts == (1, 0, 1, 0)
    watched.time += 1000
    watched.agreement.check(key(1, 80), 300, RULE_0)
    watched.settle()
    assert watched.counts == (1, 1, 1, 0)


def test_what_is_known_to_agree_is_forgotten_with_a_change() -> None:
    watched = Watched(ALLOW_80)
    watched.agreement.check(key(1, 80), 300, RULE_0)
    watched.tell(replace(ALLOW_80, destination=ports((81, 81))))
    watched.time += 1000
    watched.agreement.check(key(1, 80), 300, RULE_0)
    watched.settle()
    assert watched.counts == (1, 1, 0, 0)


def test_where_the_source_port_counts_each_is_judged() -> None:
    watched = Watched(replace(ALLOW_80, source=ports((1, 9))))
    watched.agreement.check(key(1, 80), 300, RULE_0)
    watched.agreement.check(key(10, 80), 300, RULE_0)
    watched.settle()
    assert watched.counts == (1, 1, 0, 0)


def test_what_cannot_be_judged_is_counted() -> None:
    watched = Watched(ALLOW_80)
    watched.agreement.check(key(1, 80), 300, None)
    watched.agreement.check(key(1, 80), 301, replace(RULE_0, index=REFUSED))
    watched.agreement.check(key(1, 80, "10.0.0.77"), 302, RULE_0)  # nobody's address
    watched.known.receive(BEGIN, WantedChanges(), watched.time)
    watched.agreement.check(key(1, 80), 300, RULE_0)
    watched.settle()
    assert watched.counts == (0, 0, 0, 4)


def test_a_policy_that_waits_may_decide_as_its_earlier_version() -> None:
    watched = Watched(WantedRule("Deny", annotations=((STANDS_IN, ""),)))
    assert watched.known.stands_in((POLICY.kind, "", "p"))
    watched.agreement.check(key(1, 80), 300, RULE_0)
    watched.settle()
    assert watched.counts == (0, 0, 1, 0)


def test_judging_has_a_share_of_the_time() -> None:
    """A judgement takes a millisecond here, one of a second's ten."""
    watched = Watched(ALLOW_80)
    watched.costs = 0.001
    for dport in range(100, 400):
        watched.agreement.check(key(1, dport), 301, THE_END)
    agreed, _, _, skipped = watched.counts
    assert 5 < agreed < 20 and agreed + skipped == 300
    watched.time += 1
    watched.agreement.check(key(1, 99), 301, THE_END)
    assert watched.counts[0] == agreed + 1


def test_waiting_for_a_processor_is_no_judging() -> None:
    watched = Watched(ALLOW_80)
    watched.costs, watched.waits = 0.00001, 0.05
    for dport in range(100, 400):
        watched.agreement.check(key(1, dport), 301, THE_END)
    assert watched.counts == (300, 0, 0, 0)


def test_a_report_that_was_read_late_may_be_from_before_the_last_change() -> None:
    """As where the recorder gets hardly any of a busy machine's processors."""
    watched = Watched(ALLOW_80)
    watched.time += 5.0  # the rules last changed at 100, here again at 1005
    watched.tell(ALLOW_80)
    watched.time += 10.0
    for watched.agreement.late_s in (12.0, 1.0):
        watched.agreement.check(key(1, 80), 300, replace(RULE_0, index=1))
    watched.settle()
    assert watched.counts == (0, 1, 1, 0)
