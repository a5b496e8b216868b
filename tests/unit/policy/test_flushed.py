"""What a flush says of the whole: a value that later records do not change."""

from __future__ import annotations

from cni_calico.policy.flushed import OtherNeeds
from tests.unit.policy.cluster import graph_of, put
from tests.unit.policy.test_scenarios import ONE, policy

POLICY, PROFILE = ("GlobalNetworkPolicy", "", "n"), ("Profile", "", "p1")


def test_facts_are_of_their_flush() -> None:
    graph = graph_of(ONE | policy("n", ingress=[{"action": "Allow", "source": {"selector": "a == 'b'"}}]))
    first = graph.flush()
    assert first.changes.policies and first.facts.needs == OtherNeeds(endpoints=True)
    assert (first.facts.selectors, first.facts.governing, first.facts.problems) == (1, 1, {})
    put(graph, POLICY, {"metadata": {}, "spec": {"selector": "x =="}})
    assert not first.facts.problems
    second = graph.flush()
    assert [key.name for key in second.facts.problems] == [key.name for key in second.facts.last_valid] == ["n"]
    assert not second.changes and second.facts.governing == 1
    put(graph, POLICY, None)
    third = graph.flush().facts
    assert (third.problems, third.last_valid, third.governing, third.needs) == ({}, {}, 0, OtherNeeds())
    assert second.facts.problems and second.facts.governing == 1


def test_missing_profiles() -> None:
    graph = graph_of(ONE)
    assert graph.flush().facts.missing_profiles == ()
    for document, missing in ((None, ("p1",)), (ONE[PROFILE], ())):
        put(graph, PROFILE, document)
        assert graph.flush().facts.missing_profiles == missing
    put(graph, PROFILE, None)
    for key in ONE:
        put(graph, key, None)
    assert graph.flush().facts.missing_profiles == ()
