"""What an earlier run had in force stays, rule for rule, while there is only a stand-in, and leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cni_calico.log import Log
from cni_calico.netfilter.rules import NftRule, Unrecognised
from cni_calico.netfilter.tables import AddElements, AddRules
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.naming import policy_chain
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.policy.budget import WAITS_FOR_MEMORY, denied, is_waiting
from cni_calico.policy.wanted import PolicyId, WantedChanges
from tests.deadlines import soon
from tests.fakes.nftables import FakePacketFilter
from tests.unit.policy.cluster import graph_of
from tests.unit.policy.test_scenarios import ONE, policy

NAME = PolicyId("GlobalNetworkPolicy", "large")
RULES = [{"action": "Pass"}, *({"action": "Allow", "source": {"selector": f"x == '{i}'"}} for i in range(600))]


def changes(rules: list[object]) -> WantedChanges:
    found = graph_of(ONE | policy("large", ingress=rules)).flush().changes
    assert isinstance(found, WantedChanges)
    return found


def with_stand_in(of: WantedChanges) -> WantedChanges:
    """Its sets are not wanted by anybody yet."""
    stand_in = denied(of.policies[NAME], WAITS_FOR_MEMORY)
    assert is_waiting(stand_in) and not is_waiting(of.policies[NAME])
    sets = {name: members for name, members in of.sets_made.items() if not name.startswith("s-")}
    return replace(of, policies={**of.policies, NAME: stand_in}, sets_made=sets)


def policing(policed_kernel: FakePacketFilter, wanted: WantedChanges, **settings: int) -> Enforcer:
    goal = Goal(replace(FilterSettings(), **settings))
    goal.update(wanted)
    return Enforcer(policed_kernel, goal, Log("none"))


@pytest.fixture
def policed_kernel() -> FakePacketFilter:
    """As an earlier run left it."""
    found = FakePacketFilter()
    policing(found, changes(RULES)).bring_about(soon())
    return found


def begin(policed_kernel: FakePacketFilter, **settings: int) -> Enforcer:
    found = policing(policed_kernel, with_stand_in(changes(RULES)), **settings)
    found.look(soon(), 0, [NAME])
    found.doubt()  # the first round compares everything
    return found


def its_own(of: WantedChanges) -> WantedChanges:
    return replace(of, classes={}, endpoints={})


def test_nothing_changes_until_its_turn_and_nothing_is_left_then(policed_kernel: FakePacketFilter) -> None:
    before = repr(policed_kernel.tables)
    enforcer = begin(policed_kernel)
    assert list(enforcer.goal.tables.kept) == [NAME]
    for _ in range(2):
        assert enforcer.bring_about(soon()) == 0 and repr(policed_kernel.tables) == before
        enforcer.doubt()
        enforcer.keep([NAME])
    enforcer.goal.update(its_own(changes(RULES[:300])))
    enforcer.keep([])
    assert enforcer.bring_about(soon()) and not enforcer.goal.tables.kept
    assert policed_kernel.tables == enforcer.goal.tables.of


def test_what_others_want_is_not_the_earlier_runs(policed_kernel: FakePacketFilter) -> None:
    """A set that is made meanwhile has its newest members, and one that nobody wants in the end goes."""
    enforcer = begin(policed_kernel)
    enforcer.bring_about(soon())
    made = changes(RULES).sets_made
    name = next(name for name in made if name.startswith("s-"))
    members = replace(made[name], addresses=frozenset({b"\x0a\x00\x00\x63"}))
    enforcer.goal.update(WantedChanges(sets_made={name: members}))
    enforcer.bring_about(soon())
    assert policed_kernel.tables[FILTER[4]].elements[name] == {b"\x0a\x00\x00\x63"}
    smaller = changes([{"action": "Deny"}])
    enforcer.goal.update(replace(its_own(smaller), sets_made={}, sets_removed=frozenset({name})))
    enforcer.keep([])
    enforcer.bring_about(soon())
    assert policed_kernel.tables == enforcer.goal.tables.of


def test_rules_that_are_not_wholly_known_are_not_kept(policed_kernel: FakePacketFilter) -> None:
    table, chain = FILTER[4], policy_chain(NAME, ingress=True)
    policed_kernel.apply([AddRules(table, chain, (NftRule((Unrecognised("later"),)),))], soon())
    assert FILTER[4] not in begin(policed_kernel).goal.tables.kept._of.get(NAME, {})


def test_with_other_bits_of_marks_nothing_is_kept(policed_kernel: FakePacketFilter) -> None:
    enforcer = begin(policed_kernel, pass_mark=1 << 20)
    assert not enforcer.goal.tables.kept
    enforcer.bring_about(soon())
    assert policed_kernel.tables == enforcer.goal.tables.of


def test_a_stand_in_of_an_earlier_run_is_nothing_to_keep() -> None:
    found = FakePacketFilter()
    policing(found, with_stand_in(changes(RULES))).bring_about(soon())
    assert not begin(found).goal.tables.kept


def test_foreign_elements_of_a_kept_set_go(policed_kernel: FakePacketFilter) -> None:
    """What another program does meanwhile is repaired."""
    enforcer = begin(policed_kernel)
    enforcer.bring_about(soon())
    before = repr(policed_kernel.tables)
    name, spec = next(
        (name, spec) for name, spec in policed_kernel.tables[FILTER[4]].sets.items() if name.startswith("s-")
    )
    policed_kernel.apply([AddElements(FILTER[4], spec, frozenset({b"\x0a\x00\x00\x63"}))], soon())
    enforcer.doubt("somebody")
    enforcer.bring_about(soon())
    assert repr(policed_kernel.tables) == before and name in policed_kernel.tables[FILTER[4]].sets
