"""A stand-in denies exactly what its policy governs, in every kind of policy."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.feed.standins import decode_stand_in, stand_in_of
from cni_calico.policy.decode import decode_record, reduce_record
from cni_calico.policy.records import PolicyRecord

META = {"name": "p", "uid": "u"}
CALICO = {
    "tier": "t",
    "order": 7,
    "selector": "app == 'a'",
    "ingress": [{"action": "Allow", "source": {"selector": "x == 'y'"}}],
    "egress": [{"action": "Allow"}],
}
KUBERNETES: dict[str, Any] = {
    "podSelector": {"matchLabels": {"app": "a"}},
    "ingress": [{"from": [{"podSelector": {}}]}],
}
CLUSTER: dict[str, Any] = {
    "tier": "Admin",
    "priority": 3,
    "subject": {"namespaces": {"matchLabels": {"app": "a"}}},
    "egress": [{"action": "Accept", "to": [{"networks": ["10.0.0.0/8"]}]}],
}
CASES = [
    ("NetworkPolicy", CALICO),
    ("NetworkPolicy", {**CALICO, "types": ["Egress"]}),
    ("GlobalNetworkPolicy", {**CALICO, "types": ["Ingress"], "egress": [], "preDNAT": True, "applyOnForward": True}),
    ("KubernetesNetworkPolicy", KUBERNETES),
    ("KubernetesNetworkPolicy", {**KUBERNETES, "policyTypes": ["Ingress", "Egress"]}),
    ("KubernetesClusterNetworkPolicy", CLUSTER),
]


@pytest.mark.parametrize(("kind", "spec"), CASES)
def test_it_denies_what_the_policy_governs(kind: str, spec: dict[str, Any]) -> None:
    is_global = kind in ("GlobalNetworkPolicy", "KubernetesClusterNetworkPolicy")
    key = ResourceKey(kind, "p", "" if is_global else "n")
    metadata = {**META, **({} if is_global else {"namespace": "n"})}
    document = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}
    record, _ = decode_record(key, document)
    assert record is not None
    policy = reduce_record(key, record)
    assert isinstance(policy, PolicyRecord)
    stand_in = decode_stand_in(key, document)
    assert stand_in is not None and stand_in == stand_in_of(policy)
    assert stand_in.selector.text == policy.selector.text and stand_in.rank == policy.rank and not stand_in.sources
    for mine, its in ((stand_in.wanted.ingress, policy.wanted.ingress), (stand_in.wanted.egress, policy.wanted.egress)):
        assert (mine is None) == (its is None)
        assert mine is None or ([rule.action for rule in mine] == ["Deny"] and mine[0].families == (4, 6))


def test_what_does_not_take_part_has_none() -> None:
    key = ResourceKey("KubernetesClusterNetworkPolicy", "p")
    assert decode_stand_in(key, {"metadata": META, "spec": {**CLUSTER, "tier": "Else"}}) is None
    assert decode_stand_in(key, {"metadata": META, "spec": {**CLUSTER, "egress": []}}) is None
