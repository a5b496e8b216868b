"""What rules have counted against what was reported and lost: what is said to be missing is missing."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from cni_calico.flows.accounts import RuleAccounts, RuleCount, RulePath
from cni_calico.flows.losses import ALLOWED, DENIED

SOURCES = {1: ALLOWED, 2: ALLOWED, 3: DENIED, 4: DENIED}


class Filter:
    """Rules of four numbers that count and report; what is reported arrives later, is lost, or goes missing."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.handles = iter(range(1000))
        self.rules: dict[RulePath, RuleCount] = {}
        self.on_the_way: list[int] = []
        self.reported, self.lost = Counter[int](), Counter[str]()
        self.missing = 0
        for number in SOURCES:
            self.add(number)

    def add(self, number: int) -> None:
        self.rules[self.random.choice(("ip", "ip6")), next(self.handles)] = RuleCount(SOURCES[number], number, 0)

    def change(self) -> None:
        """A rule goes, comes back with another handle, or is counted anew."""
        path = self.random.choice([*self.rules])
        one = self.rules[path]
        what = self.random.choice(("gone", "again", "reset", "more"))
        if what in ("gone", "again") and (what == "again" or len(self.rules) > 3):
            del self.rules[path]
        if what in ("again", "more"):
            self.add(one.number)
        if what == "reset":
            self.rules[path] = one._replace(packets=0)

    def pass_packets(self, faulty: bool) -> None:
        for _ in range(self.random.randrange(20)):
            path = self.random.choice([*self.rules])
            one = self.rules[path]
            self.rules[path] = one._replace(packets=one.packets + 1)
            chance = self.random.random()
            if faulty and chance < 0.05:
                self.missing += 1
            elif chance < 0.2:
                self.lost[one.source] += 1  # known with the next one that arrives
            else:
                self.on_the_way.append(one.number)

    def arrive(self) -> None:
        self.reported.update(self.on_the_way)
        self.on_the_way.clear()


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("changing", [False, True])
def test_what_is_missing_is_missing(seed: int, changing: bool) -> None:
    """Exactly so while no rule changes, and never more."""
    there, accounts = Filter(seed), RuleAccounts()
    before, grown = 0, 0
    for turn in range(30):
        reported, lost = there.reported.copy(), there.lost.copy()
        there.pass_packets(turn > 0 and seed % 2 == 1)  # while the rules are read
        if changing and there.random.random() < 0.4:
            there.change()
        first = sum(one.packets for one in there.rules.values()) if not turn else 0
        before += first
        accounts.receive(there.rules, reported, lost)
        there.pass_packets(turn > 0 and seed % 2 == 1)
        there.arrive()
        accounts.suspects(there.reported)
        accounts.settle(there.lost)
        assert accounts.missing <= there.missing
    grown = sum(one.packets for one in there.rules.values()) - before
    reported, lost = there.reported.copy(), there.lost.copy()
    accounts.receive(there.rules, reported, lost)
    suspects = accounts.suspects(there.reported)
    accounts.settle(there.lost)
    if not changing:
        # what was reported while the rules were read first may stand for as many later ones
        assert there.missing - 20 <= accounts.missing <= there.missing
        assert accounts.grown.total() == grown
        assert suspects or not there.lost


def test_a_loss_that_is_not_known_yet_is_not_missing() -> None:
    accounts, rule = RuleAccounts(), {("ip", 1): RuleCount(DENIED, 3, 10)}
    accounts.receive(rule, {3: 10}, {DENIED: 0})
    accounts.receive({("ip", 1): RuleCount(DENIED, 3, 30)}, {3: 10}, {DENIED: 0})
    assert accounts.suspects({3: 25}) == {DENIED}  # whoever asks waits for one more
    accounts.settle({DENIED: 5})
    assert accounts.missing == 0
    accounts.receive({}, {3: 26}, {DENIED: 5})  # the rule is gone: what it lacked is still known
    assert accounts.suspects({3: 26}) == {DENIED}
    accounts.settle({DENIED: 3})
    assert accounts.missing == 2, "two are in no count of losses"


def test_a_counter_that_somebody_sets_back_begins_again() -> None:
    accounts = RuleAccounts()
    accounts.receive({("ip", 1): RuleCount(ALLOWED, 1, 100)}, {}, {})
    accounts.receive({("ip", 1): RuleCount(ALLOWED, 1, 2)}, {1: 40}, {})
    assert not accounts.suspects({1: 40}) and accounts.grown[1] == 2
    accounts.receive({("ip", 1): RuleCount(ALLOWED, 1, 7)}, {1: 44}, {})
    assert accounts.suspects({1: 44}) == {ALLOWED}
    accounts.settle({})
    assert accounts.missing == 1


def test_what_is_lost_and_not_told_yet_is_as_much_as_is_missing_beyond_what_was_known() -> None:
    accounts = RuleAccounts()
    accounts.receive({("ip", 1): RuleCount(ALLOWED, 1, 0)}, {}, {ALLOWED: 7})
    accounts.receive({("ip", 1): RuleCount(ALLOWED, 1, 50)}, {}, {ALLOWED: 7})
    assert accounts.suspects({1: 30}) == {ALLOWED}
    assert [accounts.unexplained(ALLOWED, lost) for lost in (7, 12, 27, 30)] == [20, 15, 0, 0]
    assert accounts.unexplained(DENIED, 0) == 0
    accounts.settle({ALLOWED: 24})
    assert accounts.missing == 3 and accounts.unexplained(ALLOWED, 24) == 0, "missing for certain"
