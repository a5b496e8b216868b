"""The tiers on the way to a verdict: what hands a packet on, what decides, and what is not asked any more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cni_calico.model.keys import ResourceKey, etcd_path
from tests.unit.ctl.conftest import Calicoctl, stored


def policy(tier: str, *ingress: dict[str, Any]) -> dict[str, Any]:
    spec = {"tier": tier, "selector": "all()", "types": ["Ingress"], "ingress": list(ingress)}
    return stored("GlobalNetworkPolicy", f"{tier}.p", spec)


@pytest.fixture
def four_tiers(calicoctl: Calicoctl) -> Calicoctl:
    """The first hands port 80 on by a rule, the second everything by its end; the third allows, the last is behind."""
    records: dict[str, Any] = {}
    for order, (name, end) in enumerate((("first", "Deny"), ("second", "Pass"), ("third", "Pass"), ("last", "Deny"))):
        records |= stored("Tier", name, {"order": order, "defaultAction": end})
    port = {"destination": {"ports": [80]}, "protocol": "TCP"}
    records |= policy("first", {"action": "Deny", "protocol": "UDP"}, {"action": "Pass", **port})
    records |= policy("second", {"action": "Deny", "protocol": "UDP"}) | policy("third", {"action": "Allow", **port})
    records |= policy("last", {"action": "Deny"})
    endpoint = {"orchestrator": "k8s", "node": "n1", "endpoint": "eth0", "pod": "a", "containerID": "c"}
    endpoint |= {"interfaceName": "cali1", "ipNetworks": ["10.0.0.1/32"], "profiles": []}
    calicoctl.write(records | stored("WorkloadEndpoint", "n1-k8s-a-eth0", endpoint, namespace="default"))
    return calicoctl


def steps(calicoctl: Calicoctl, *words: str) -> list[tuple[str, str, str]]:
    out = calicoctl("policy", "explain", "--from", "192.0.2.1", "--to", "a", *words, "-o", "json").out
    outside, workload = json.loads(out)["ends"]
    assert outside["steps"] == []
    return [(one["tier"], one["action"], one["by"]) for one in workload["steps"]]


def test_handed_on_by_a_rule_and_by_an_end(four_tiers: Calicoctl) -> None:
    assert steps(four_tiers, "--port", "80") == [
        ("first", "Pass", "rule 2 of GlobalNetworkPolicy first.p"),
        ("second", "Pass", "the end of the tier"),
        ("third", "Allow", "rule 1 of GlobalNetworkPolicy third.p"),
        ("last", "", "not asked"),
    ]
    lines = four_tiers("policy", "explain", "--from", "192.0.2.1", "--to", "a", "--port", "80").out.splitlines()
    at = next(
        number for number, line in enumerate(lines) if line.startswith("  ingress of default/a: allowed by rule 1")
    )
    assert lines[at + 1 : at + 3] == [
        "    tier first passes it on: rule 2 of GlobalNetworkPolicy first.p",
        "    tier second passes it on: the end of the tier",
    ]


def test_the_end_of_a_tier_decides(four_tiers: Calicoctl) -> None:
    not_asked = [(tier, "", "not asked") for tier in ("second", "third", "last")]
    assert steps(four_tiers, "--port", "81") == [("first", "Deny", "the end of the tier"), *not_asked]
    by = "rule 1 of GlobalNetworkPolicy first.p"
    assert steps(four_tiers, "--port", "80", "--protocol", "udp") == [("first", "Deny", by), *not_asked]


def test_no_tier_decides(four_tiers: Calicoctl) -> None:
    for name in ("first", "last"):
        four_tiers.write({etcd_path(ResourceKey("GlobalNetworkPolicy", f"{name}.p", "")): None})
    assert steps(four_tiers, "--port", "81") == [
        ("second", "Pass", "the end of the tier"),
        ("third", "Pass", "the end of the tier"),
        ("", "Deny", "no policy and no profile allows it"),
    ]
