"""Chains of classes have names made of their content: the same from one version to the next, and each its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.selectors import parse_selector
from cni_calico.policy.order import select_class
from cni_calico.policy.records import PolicyRecord
from cni_calico.policy.sources import digest
from cni_calico.policy.wanted import PolicyId, WantedPolicy

NAMES = st.text("ab'\"\\\n,() é", max_size=4)
IDS = st.builds(PolicyId, st.sampled_from(("NetworkPolicy", "GlobalNetworkPolicy")), NAMES, NAMES)
PROFILES = st.lists(NAMES.map(lambda name: PolicyId("Profile", name)), max_size=2)
TIERS = st.sampled_from(("default", "te'am", 'b"'))


@given(st.lists(st.tuples(IDS, TIERS), max_size=5, unique_by=lambda one: one[0]), PROFILES)
def test_a_classs_name_is_a_digest_of_what_repr_shows_of_it(
    policies: list[tuple[PolicyId, str]], profiles: list[PolicyId]
) -> None:
    """Otherwise an update would write every chain anew. The text itself is made by hand, because that is faster."""
    records = [
        PolicyRecord(WantedPolicy(one, tier, (), () if len(one.name) % 2 else None), 1.0, parse_selector("all()"), {})
        for one, tier in policies
    ]
    found = select_class(records, {}, profiles)
    assert found.id == f"c-{digest(repr(found.ingress), repr(found.egress), repr(found.profiles))}"
