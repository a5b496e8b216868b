"""Long chains in parts: how much of one the kernel gets at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.netfilter.rules import ACCEPT, AddressInSet, IsProtocol, NftRule
from cni_calico.nodeagent.policing.feed import ahead
from cni_calico.nodeagent.policing.feed.ahead import FEWEST_SETS, MadeAhead
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.parts import PART_RULES, RenderedRules, split
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.policy.records import PolicyRecord
from tests.unit.policy.cluster import document, graph_of, record_of
from tests.unit.policy.test_scenarios import ONE

RULES = 1000


def looking_up(each: int) -> Iterator[RenderedRules]:
    for i in range(RULES):
        tests = tuple(AddressInSet(True, f"s-{i}-{j}") for j in range(each))
        yield RenderedRules([NftRule((IsProtocol(6), *tests), (ACCEPT,))])


@pytest.mark.parametrize(
    ("each", "sets", "rules"),
    [(0, 0, 200), (1, 1000, 200), (4, 1000, 200), (1, 10_000, 100), (4, 10_000, 25), (2, 10**6, 25)],
)
def test_the_more_sets_there_are_the_fewer_look_ups_a_part_has(each: int, sets: int, rules: int) -> None:
    found = list(split("pi-np/n", looking_up(each), sets))
    assert {len(part.chain.rules) for part in found} == {rules} and rules <= PART_RULES
    assert [rule for part in found for rule in part.chain.rules] == [
        rule for one in looking_up(each) for rule in one.rules
    ]


@pytest.mark.parametrize(("searched", "rounds"), [(1_000_000, 1), (1000, 46), (1, 600 // FEWEST_SETS)])
def test_a_round_makes_fewer_sets_the_more_there_are(
    monkeypatch: pytest.MonkeyPatch, searched: int, rounds: int
) -> None:
    monkeypatch.setattr(ahead, "SEARCHED", searched)
    graph, goal = graph_of(ONE), Goal(FilterSettings())
    goal.update(graph.flush().changes)
    name = ResourceKey("GlobalNetworkPolicy", "n")
    rules = [{"action": "Allow", "source": {"selector": f"a == '{i}'"}} for i in range(600)]
    record = record_of((name.kind, "", name.name), document({"selector": "all()", "ingress": rules}))
    graph.put(name, record)
    made = graph.last_valid(name)
    graph.put(name, None)
    assert isinstance(made, PolicyRecord)
    table = goal.tables.of[FILTER[4]]
    first, used = len(table.sets), 0
    for after_round in MadeAhead(graph, goal).steps(name, made):
        before = len(table.sets)
        if after_round and before < first + 600:
            goal.update(graph.flush().changes)
            used += 1
            assert 0 < len(table.sets) - before <= max(FEWEST_SETS, searched // before)
    assert len([one for one in table.sets if "/" not in one]) >= 600 and abs(used - rounds) <= 2
