"""Reports that are counted together count as if each had been judged by itself."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.flows.judging.agreement import SETTLED_S, Agreement
from cni_calico.flows.judging.alike import AlikeReports
from cni_calico.policy.wanted import WantedSide
from tests.unit.flows.judging.test_agreement import ALLOW_80, RULE_0, THE_END, key
from tests.unit.flows.judging.test_staged import Staged
from tests.unit.policy.judge.test_bounds import ports, wanted_with

NUMBERS = {300: RULE_0, 301: THE_END, 302: replace(RULE_0, index=1)}
BY_SOURCE = replace(ALLOW_80, destination=ports((81, 81)), source=WantedSide(ports=ports((1, 2)).ports))
REPORTS = st.tuples(st.integers(1, 4), st.integers(80, 82), st.sampled_from((2, 300, 301, 302, 303)), st.booleans())


class Counting:
    def __init__(self, *, together: bool) -> None:
        self.together, self.now = together, 1000.0
        self.staged = Staged(wanted_with(BY_SOURCE))
        self.agreement = Agreement(self.staged.enforced, lambda: self.now, lambda: 0.0)
        self.alike = AlikeReports(self.agreement, self.staged.flows, NUMBERS.get)

    def check(self, sport: int, dport: int, number: int, with_another: bool) -> None:
        for one in (number, 301 if with_another else 0) if not self.together else (number,):
            if one:
                self.alike.check(key(sport, dport), one, 301 if with_another and self.together else 0)
                if not self.together:
                    self.alike.forget()

    def counts(self) -> tuple[object, ...]:
        self.alike.settle()
        self.now += SETTLED_S
        list(self.agreement.settle())
        one = self.agreement
        counted = one.agreed, one.disagreed, one.unsettled, one.skipped
        return *counted, dict(self.staged.flows.counts), self.staged.flows.uncounted


@given(st.lists(st.one_of(REPORTS, st.none()), max_size=60))
@settings(max_examples=60, deadline=None)
def test_they_count_as_each_by_itself(reports: list[tuple[int, int, int, bool] | None]) -> None:
    """None: the rules change, or are said to."""
    found = []
    for together in (True, False):
        counting = Counting(together=together)
        for report in reports:
            if report is None:
                counting.alike.forget()
                counting.staged.enforced.version += 1
            else:
                counting.check(*report)
        found.append(counting.counts())
    assert found[0] == found[1]


def test_most_are_not_judged_again() -> None:
    counting = Counting(together=True)
    for sport in range(1, 100):
        counting.check(sport, 80, 300, False)
    counting.staged.enforced.ready = False  # nothing could be judged now
    counting.check(100, 80, 300, False)
    counting.alike.settle()
    assert counting.agreement.agreed == 100 and not counting.agreement.skipped
