"""Policies asked in groups decide as policies asked one by one, and a change of one touches one group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.netfilter.rules import DROP, HasMark, SetMark
from cni_calico.netfilter.tables import AddRules, NftTable
from cni_calico.nodeagent.policing.tables import groups
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.groups import ABOUT, MOST, plan_groups
from cni_calico.nodeagent.policing.tables.naming import class_chain, policy_chain
from cni_calico.nodeagent.policing.tables.parts import whole_name
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.nodeagent.policing.tables.without import do_without
from cni_calico.policy.wanted import (
    Action,
    EndAction,
    PolicyId,
    WantedChanges,
    WantedClass,
    WantedPolicy,
    WantedRule,
    WantedTier,
)

SETTINGS = FilterSettings(ipv6=False, drop_invalid=False)
ALL: tuple[Action, ...] = ("Allow", "Deny", "Pass")
ENDS: tuple[EndAction, ...] = ("Deny", "Pass")
actions = st.sampled_from(ALL)
names = st.lists(st.text("abcdefgh", min_size=1, max_size=3), unique=True, max_size=40)


def named(name: str) -> PolicyId:
    return PolicyId("NetworkPolicy", name, "ns")


def policy(name: str, *actions: Action) -> WantedPolicy:
    rules = tuple(WantedRule(action=action) for action in actions)
    return WantedPolicy(named(name), "default", rules, None)


def class_of(tiers: list[tuple[WantedTier, ...]], name: str = "c") -> WantedClass:
    (ingress,) = tiers
    return WantedClass(name, ingress, (), ())


def made(wanted: WantedClass, policies: list[WantedPolicy], settings: FilterSettings = SETTINGS) -> Goal:
    goal = Goal(settings)
    goal.update(WantedChanges(policies={one.id: one for one in policies}, classes={wanted.id: wanted}))
    return goal


class Walk:
    """A packet on its way; each policy does what ``outcomes`` says, "" for nothing."""

    def __init__(self, table: NftTable, outcomes: Mapping[str, str]) -> None:
        self.table, self.outcomes, self.mark, self.asked = table, outcomes, False, list[str]()

    def through(self, chain: str) -> str:
        if chain in self.outcomes:
            self.asked.append(chain)
            outcome = self.outcomes[chain]
            self.mark = self.mark or outcome == "Pass"
            return {"Allow": "accept", "Deny": "drop"}.get(outcome, "")
        for rule in self.table.chains[chain].rules:
            if any(one.negated == self.mark for one in rule.tests if isinstance(one, HasMark)):
                continue
            if any(isinstance(one, SetMark) for one in rule.actions):
                self.mark = False
            if rule.verdict is not None:
                verdict = self.through(rule.verdict.chain) if rule.verdict.chain else rule.verdict.kind
                if verdict == "return":
                    return ""
                if verdict:
                    return verdict
        return ""


@given(st.lists(st.tuples(names, st.sampled_from(ENDS)), min_size=1, max_size=3), st.data())
def test_groups_decide_as_each_policy_by_itself(tiers: list[tuple[list[str], EndAction]], data: st.DataObject) -> None:
    listed = [[f"{number}{name}" for name in its] for number, (its, _) in enumerate(tiers)]
    wanted = class_of(
        [
            tuple(
                WantedTier(str(number), tuple(map(named, its)), end)
                for number, (its, (_, end)) in enumerate(zip(listed, tiers, strict=True))
                if its
            )
        ]
    )
    able = {name: data.draw(actions) for its in listed for name in its}
    policies = [policy(name, action) for name, action in able.items()]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(groups, "GROUPED_FROM", 3)
        patched.setattr(groups, "ABOUT", 2)
        patched.setattr(groups, "MOST", 4)
        grouped = made(wanted, policies).tables.of[FILTER[4]]
    plain = made(wanted, policies).tables.of[FILTER[4]]
    for _ in range(5):
        outcomes = {
            policy_chain(named(name), True): data.draw(st.sampled_from(["", "", action]))
            for name, action in able.items()
        }
        walks = [Walk(table, outcomes) for table in (grouped, plain)]
        verdicts = [walk.through(class_chain("c", True)) for walk in walks]
        assert verdicts[0] == verdicts[1] != "" and walks[0].asked == walks[1].asked


@given(names)
def test_groups_are_all_of_them_in_their_order(listed: list[str]) -> None:
    found = plan_groups([named(name) for name in listed])
    assert [one.name for group in found for one in group] == listed
    assert all(0 < len(group) <= MOST for group in found)


POLICIES = [f"p{number:04}" for number in range(2000)]


def test_one_policy_more_makes_one_other_group_and_one_other_chain() -> None:
    policies = [policy(name, "Allow") for name in POLICIES]
    everything = {one.id: one for one in policies}
    goal = Goal(SETTINGS)
    before = class_of([(WantedTier("default", tuple(map(named, POLICIES)), "Deny"),)], "c1")
    goal.update(WantedChanges(policies=dict(everything), classes={"c1": before}))
    table = goal.tables.of[FILTER[4]]
    parts = {name for name in table.chains if whole_name(name) != name}
    assert len(POLICIES) / ABOUT / 2 < len(parts) < len(POLICIES) / ABOUT * 2
    assert len(table.chains[class_chain("c1", True)].rules) < len(parts) + 3
    goal.tables.take_touched()
    for place in (0, 700, 2000):
        more = [*POLICIES[:place], "added", *POLICIES[place:]]
        after = class_of([(WantedTier("default", tuple(map(named, more)), "Deny"),)], "c2")
        goal.update(
            WantedChanges(policies={named("added"): policy("added", "Allow")}, classes={"c1": None, "c2": after})
        )
        touched = goal.tables.take_touched()[FILTER[4]].chains
        rewritten = {name for name in touched if name in table.chains}
        assert len(rewritten) <= 4 + 2  # two chains of the policy, two of the class, at most two groups
        assert sum(len(table.chains[name].rules) for name in rewritten) < len(parts) + 2 * MOST
        assert goal.tables.of == made(after, [*policies, policy("added", "Allow")]).tables.of
        goal.update(WantedChanges(policies={named("added"): None}, classes={"c1": before, "c2": None}))
        goal.tables.take_touched()
        assert goal.tables.of == made(before, policies).tables.of


def test_classes_share_their_groups_until_none_of_them_needs_one() -> None:
    policies = [policy(name, "Allow") for name in POLICIES]
    listed = tuple(map(named, POLICIES))
    goal = made(class_of([(WantedTier("default", listed, "Deny"),)], "c1"), policies)
    before = set(goal.tables.of[FILTER[4]].chains)
    goal.update(WantedChanges(classes={"c2": class_of([(WantedTier("default", listed, "Pass"),)], "c2")}))
    both = set(goal.tables.of[FILTER[4]].chains)
    assert both - before == {class_chain("c2", True), class_chain("c2", False)}
    goal.update(WantedChanges(classes={"c1": None}))
    assert len(goal.tables.of[FILTER[4]].chains) == len(before)
    goal.update(WantedChanges(classes={"c2": None}))
    assert not [name for name in goal.tables.of[FILTER[4]].chains if whole_name(name) != name]


def test_a_refused_group_denies_every_class_that_asks_it() -> None:
    policies = [policy(name, "Allow") for name in POLICIES]
    listed = tuple(map(named, POLICIES))
    goal = made(class_of([(WantedTier("default", listed, "Deny"),)], "c1"), policies)
    goal.update(WantedChanges(classes={"c2": class_of([(WantedTier("default", listed, "Pass"),)], "c2")}))
    chains = goal.tables.of[FILTER[4]].chains
    part = next(name for name in chains if whole_name(name) != name)
    assert do_without(goal, AddRules(FILTER[4], part, chains[part].rules), "no")
    assert set(goal.refused.classes) == {("c1", True), ("c2", True)} and part not in chains
    for name in ("c1", "c2"):
        (rule,) = chains[class_chain(name, True)].rules
        assert rule.actions == (DROP,)


def test_legacy_iptables_asks_each_policy() -> None:
    policies = [policy(name, "Allow") for name in POLICIES]
    wanted = class_of([(WantedTier("default", tuple(map(named, POLICIES)), "Deny"),)])
    goal = made(wanted, policies, replace(SETTINGS, by_iptables=True))
    assert not [name for name in goal.tables.of[FILTER[4]].chains if whole_name(name) != name]
