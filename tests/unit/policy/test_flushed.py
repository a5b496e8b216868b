"""What a flush says of the whole: a value that later records do not change."""

from __future__ import annotations

from cni_calico.policy.flushed import OtherNeeds
from cni_calico.policy.records import HTTP_WARNING
from cni_calico.policy.wanted import PolicyId
from tests.unit.policy.cluster import graph_of, put
from tests.unit.policy.test_scenarios import ONE, policy, tier

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


def test_policies_whose_tier_is_missing_are_named() -> None:
    both = policy("lost", tier="t1") | policy("found", tier="t2") | policy("usual")
    graph = graph_of(ONE | both | tier("t2", 1) | policy("nobodys", "nobody == 'x'", tier="t1"))
    lost = "GlobalNetworkPolicy lost: its tier t1 does not exist: it comes after all tiers that do, "
    named = {PolicyId("GlobalNetworkPolicy", name) for name in ("lost", "usual")}
    assert graph.flush().facts.warnings.keys() == named, "of tiers that exist none is default"
    put(graph, ("Tier", "", "default"), {"metadata": {}, "spec": {"order": 1000000, "defaultAction": "Deny"}})
    first = graph.flush()
    assert not first.changes.policies
    assert first.facts.told_warnings() == (f"{lost}and what it leaves undecided is denied",)
    # the tier is made: the class changes, the policy's rules do not
    put(graph, ("Tier", "", "t1"), {"metadata": {}, "spec": {"order": 5}})
    second = graph.flush()
    assert second.facts.told_warnings() == () and not second.changes.policies and second.changes.classes
    put(graph, ("Tier", "", "t1"), None)
    assert graph.flush().facts.told_warnings() == first.facts.told_warnings()
    put(graph, ("GlobalNetworkPolicy", "", "lost"), None)
    assert graph.flush().facts.told_warnings() == ()


def test_a_datastore_without_tiers_has_them_from_before_there_were_any() -> None:
    assert graph_of(ONE | policy("usual")).flush().facts.warnings == {}


def test_policies_without_types_are_named() -> None:
    """As the API server stores what kubectl wrote, where nothing completes it."""
    graph = graph_of(ONE | policy("both") | policy("one", egress=None) | policy("none", ingress=None, egress=None))
    put(graph, ("GlobalNetworkPolicy", "", "typed"), {
        "metadata": {}, "spec": {"selector": "all()", "types": ["Ingress"]}
    })  # fmt: skip
    said = "it has no types, so it governs ingress and egress: without rules for"
    assert graph.flush().facts.told_warnings() == (
        f"GlobalNetworkPolicy none: {said} ingress and egress",
        f"GlobalNetworkPolicy one: {said} egress",
    )


def test_profiles_that_look_at_http_are_named_while_an_endpoint_has_them() -> None:
    graph = graph_of(ONE)
    assert graph.flush().facts.told_warnings() == ()
    asking = {"ingress": [{"action": "Allow", "http": {"methods": ["GET"]}}]}
    put(graph, PROFILE, {"metadata": {}, "spec": asking})
    put(graph, ("Profile", "", "nobodys"), {"metadata": {}, "spec": asking})
    found = graph.flush().facts
    assert found.told_warnings() == (f"Profile p1: {HTTP_WARNING}",) and found.governing == 0
    put(graph, PROFILE, ONE[PROFILE])
    assert graph.flush().facts.told_warnings() == ()


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
