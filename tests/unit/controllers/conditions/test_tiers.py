"""Which tiers may go, and what the others wait for."""

from cni_calico.controllers.conditions.tiers import desired_tiers, tier_of
from cni_calico.model.keys import ResourceKey


def tier(going=False):
    return {"metadata": {"deletionTimestamp": "2026-08-02T00:00:00Z"} if going else {}, "spec": {}}


KEY = ResourceKey("Tier", "sec")


def test_every_tier_is_held_and_says_nothing():
    [wish] = desired_tiers({KEY: tier()}, [(ResourceKey("NetworkPolicy", "a", "ns"), "sec")]).values()
    assert (wish.holds, wish.condition) == (True, None)


def test_a_tier_that_is_going_counts_what_it_waits_for():
    policies = [(ResourceKey("GlobalNetworkPolicy", name), "sec") for name in "abc"]
    policies += [(ResourceKey("NetworkPolicy", "a", "ns"), "sec"), (ResourceKey("NetworkPolicy", "b", "ns"), "default")]
    [wish] = desired_tiers({KEY: tier(going=True)}, policies).values()
    assert wish.holds and wish.condition.status == "False" and wish.condition.reason == "Terminating"
    said = "Waiting for policies to be removed: 3 GlobalNetworkPolicies, 1 NetworkPolicy"
    assert wish.condition.message == said
    [wish] = desired_tiers({KEY: tier(going=True)}, policies[-1:]).values()
    assert not wish.holds


def test_a_policy_without_a_tier_is_in_the_default_one():
    assert tier_of({"spec": {"tier": "sec"}}) == "sec"
    assert {tier_of(each) for each in ({}, {"spec": None}, {"spec": {}}, {"spec": {"tier": ""}})} == {"default"}
