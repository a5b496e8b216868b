"""Which policies above the budget stay in force: those whose chain is in the kernel when the agent starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.netfilter.tables import TableId
from cni_calico.nodeagent.policing.feed.spared import FILE, Spared, chains_over_budget
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.naming import policy_chain
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.policy.graph import Graph
from cni_calico.policy.wanted import PolicyId
from tests.unit.policy.cluster import graph_of
from tests.unit.policy.test_scenarios import ONE, policy


def begin(
    spared: Spared, graph: Graph, goal: Goal, there: Mapping[TableId, Mapping[str, int]] = MappingProxyType({})
) -> None:
    if spared.begin(graph, there):
        goal.update(graph.flush().changes)


@pytest.mark.parametrize(("there", "is_spared"), [(10, True), (9, False), (1, False), (0, False)])
def test_the_kernel_has_its_rules(tmp_path: Path, there: int, is_spared: bool) -> None:
    rules = [{"action": "Allow", "source": {"selector": f"a == '{i}'"}} for i in range(10)]
    graph = graph_of(ONE | policy("n", ingress=rules))
    graph.flush()
    (name,) = (one for one in graph.wanted().policies if one.kind != "Profile")
    graph.set_budget(5)
    graph.flush()
    (chain,) = chains_over_budget(graph) & {policy_chain(name, True)}
    goal = Goal(FilterSettings())
    begin(Spared(Files(), Log("none", stderr=False), str(tmp_path)), graph, goal, {FILTER[4]: {chain: there}})
    assert (graph.spared == {name: 31}) == is_spared and bool(graph.over_budget) != is_spared
    assert (name in goal.policies) == is_spared


def over_budget(count: int = 10) -> tuple[Graph, PolicyId, Goal]:
    """A graph whose only policy denies, as after a reboot: the kernel is empty."""
    rules = [{"action": "Allow", "source": {"selector": f"a == '{i}'"}} for i in range(count)]
    graph = graph_of(ONE | policy("n", ingress=rules))
    graph.set_budget(5)
    graph.flush()
    (name,) = graph.over_budget
    return graph, name, Goal(FilterSettings())


def test_the_file_says_what_was_spared(tmp_path: Path) -> None:
    graph, name, goal = over_budget()
    spared = Spared(Files(), Log("none", stderr=False), str(tmp_path))
    begin(spared, graph, goal)
    assert not graph.spared
    graph.spare({name: 31})
    graph.flush()
    spared.keep(graph)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    after, name, goal = over_budget()
    begin(Spared(Files(), Log("none", stderr=False), str(tmp_path)), after, goal)
    assert after.spared == {name: 31} and not after.over_budget and name in goal.policies
    grown, name, goal = over_budget(11)  # while no agent ran
    again = Spared(Files(), Log("none", stderr=False), str(tmp_path))
    begin(again, grown, goal)
    assert not grown.spared and name in grown.over_budget
    again.keep(grown)
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '[["a"]]', '{"a": 1}', "[[1,2,3,[]]]", "null", '[["a","b","c",1e999]]']
)
def test_a_damaged_file_spares_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    graph, _, goal = over_budget()
    spared = Spared(Files(), Log("none", stderr=False), str(tmp_path))
    begin(spared, graph, goal)
    assert not graph.spared
    spared.keep(graph)
    assert not (tmp_path / FILE).exists()
