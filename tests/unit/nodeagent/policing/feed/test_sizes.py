"""What a policy needs, estimated from its document, is about what is estimated from its rules, and not less."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.feed.sizes import count_selectors, estimate_document, estimate_record
from cni_calico.policy.decode import decode_record, reduce_record
from cni_calico.policy.records import PolicyRecord


def calico(*rules: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "NetworkPolicy", {"selector": "all()", "ingress": [{"action": "Allow", **rule} for rule in rules]}


def kubernetes(peers: list[dict[str, Any]], ports: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    return "KubernetesNetworkPolicy", {"podSelector": {}, "ingress": [{"from": peers, "ports": ports}]}


NETS = [f"10.0.{i >> 8}.{i & 255}/32" for i in range(3000)]
SIDE = {"selector": "a == 'b'", "ports": [1, "name"]}
CASES = {
    "rules": calico(*({"source": {"nets": [net]}} for net in NETS)),
    "nets": calico({"source": {"nets": NETS}}),
    "selectors": calico(*({"source": {"selector": f"a == 'b{i}'"}} for i in range(500))),
    "alternatives": calico(*({"protocol": "TCP", "source": SIDE, "destination": SIDE} for _ in range(500))),
    "names": calico({"protocol": "TCP", "source": {"ports": [f"n{i}" for i in range(700)]}}),
    "blocks": kubernetes([{"ipBlock": {"cidr": net}} for net in NETS], [{"port": f"n{i}"} for i in range(3000)]),
    "pods": kubernetes(
        [{"podSelector": {"matchLabels": {"app": f"a{i}"}}} for i in range(500)],
        [{"port": 1}, {"port": "n"}, {"port": 1, "protocol": "UDP"}],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_documents_estimate_is_that_of_its_rules(name: str) -> None:
    kind, spec = CASES[name]
    key = ResourceKey(kind, "p", "n")
    metadata = {"name": "p", "namespace": "n", "uid": "u"}
    document = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}
    record, _ = decode_record(key, document)
    assert record is not None
    policy = reduce_record(key, record)
    assert isinstance(policy, PolicyRecord)
    exact = estimate_record(policy)
    assert 0.8 * exact <= estimate_document(kind, spec) <= 4 * exact


@pytest.mark.parametrize("spec", [{}, {"ingress": 1}, {"ingress": [1, {}, {"source": 1, "from": [1], "ports": {}}]}])
@pytest.mark.parametrize("kind", ["NetworkPolicy", "KubernetesNetworkPolicy"])
def test_what_is_no_rule_costs_little(kind: str, spec: dict[str, Any]) -> None:
    assert 0 < estimate_document(kind, spec) < 50_000


def test_selectors_are_counted_in_both_kinds_of_documents() -> None:
    assert count_selectors(CASES["selectors"][1]) == 500
    assert count_selectors(CASES["pods"][1]) == 500
    assert count_selectors(CASES["rules"][1]) == count_selectors(CASES["blocks"][1]) == 0
    assert count_selectors({"ingress": [{"source": 1, "from": [1]}]}) == 1
