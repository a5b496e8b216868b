"""What is held of a record can be written and read: everything that the graph computes from it stays the same."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import EndpointPort, Metadata, Resource, WorkloadEndpoint
from cni_calico.policy.decode import KINDS, KUBERNETES_KINDS, decode_record, reduce_record
from cni_calico.policy.graph import Graph
from cni_calico.policy.nodes import GraphRecord
from cni_calico.policy.preserved import KNOWN, BadPreserved, parse_value, render_value
from cni_calico.policy.records import ServiceMembers, parse_policy
from cni_calico.policy.sources import port_source
from cni_calico.policy.wanted import ANY_SIDE
from tests.unit.nodeagent.fabric import workload

RULE = {
    "action": "Allow",
    "protocol": "TCP",
    "metadata": {"annotations": {"who": 'a "b"'}},
    "http": {"methods": ["GET"], "paths": [{"exact": "/a"}, {"prefix": "/b"}]},
    "source": {"selector": "role == 'x' || has(y)", "namespaceSelector": "all()", "notNets": ["10.0.0.0/8"]},
    "destination": {"ports": [80, "90:99", "web"]},
}
TO_SERVICE = {"action": "Deny", "destination": {"services": {"name": "s", "namespace": "default"}}}
ICMP = {"action": "Deny", "ipVersion": 6, "protocol": "ICMPv6", "icmp": {"type": 1, "code": 2}}
POLICY = {"order": 3.5, "selector": "all()", "types": ["Ingress", "Egress"], "ingress": [RULE, ICMP]}
SPECS: dict[str, dict[str, Any]] = {
    "Tier": {"order": 7, "defaultAction": "Pass"},
    "GlobalNetworkPolicy": {**POLICY, "tier": "t", "namespaceSelector": "has(a)", "egress": [TO_SERVICE]},
    "NetworkPolicy": {**POLICY, "serviceAccountSelector": "x in {'a', 'b'}", "performanceHints": []},
    "Profile": {"ingress": [RULE], "labelsToApply": {"a": "b"}},
    "GlobalNetworkSet": {"nets": ["10.0.0.0/8", "10.1.2.3/32", "fd00::/8"]},
    "NetworkSet": {"nets": ["192.0.2.0/24"]},
    "HostEndpoint": {
        "node": "n1",
        "interfaceName": "eth0",
        "expectedIPs": ["192.0.2.1"],
        "ports": [{"name": "web", "protocol": "TCP", "port": 80}],
    },
}


def valid(kind: str) -> tuple[ResourceKey, GraphRecord]:
    """One valid record of a kind, as the graph gets it."""
    if kind == "WorkloadEndpoint":
        record = workload("a", "calia", "10.0.0.1/32", "fd00::1/128")
        port = EndpointPort("web", 8080)
        return ResourceKey(kind, record.metadata.name, "default"), replace(record, ports=(port,), profiles=("p",))
    if kind == "EndpointSlice":
        return ResourceKey(kind, "s-1", "default"), ServiceMembers(
            "default", "s", frozenset({b"\x0a\0\0\5"}), frozenset({(b"\x0a\0\0\5", 6, 80)})
        )
    namespace = "default" if kind in ("NetworkPolicy", "NetworkSet", "KubernetesNetworkPolicy") else ""
    metadata = Metadata("p", namespace, labels={"role": "x"})
    key = ResourceKey(kind, "p", namespace)
    record = Resource(kind, metadata, SPECS.get(kind, POLICY))
    return key, reduce_record(key, record)


ALL_KINDS = (*KINDS, *KUBERNETES_KINDS)


def graph_of(*records: tuple[ResourceKey, GraphRecord]) -> Graph:
    graph = Graph(lambda endpoint: True, lambda host: True)
    for key, record in records:
        graph.put(key, record)
    assert not graph.problems
    graph.flush()
    return graph


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_what_is_held_of_a_record_does_the_same_in_a_later_run(kind: str) -> None:
    """Through JSON; every kind that takes part has a form."""
    records = {one: valid(one) for one in ALL_KINDS}
    graph = graph_of(*records.values())
    key, _ = records[kind]
    held = graph.last_valid(key)
    assert held is not None
    again = parse_value(json.loads(json.dumps(render_value(held))))
    assert again == held
    later = graph_of(*(one for one in records.values() if one[0] != key), (key, again))
    assert later.wanted() == graph.wanted()
    later.refuse(key, "no")
    assert later.last_valid(key) is not None and later.wanted() == graph.wanted()


def test_a_record_that_is_gone_is_not_held() -> None:
    graph = Graph(lambda endpoint: True, lambda host: True)
    for kind in ALL_KINDS:
        key, record = valid(kind)
        assert graph.last_valid(key) is None
        graph.put(key, record)
        graph.put(key, None)
        assert graph.last_valid(key) is None


@pytest.mark.parametrize(
    "raw",
    [
        [],
        {},
        ["record", "PolicyId", {"kind": "Tier"}],
        ["record", "Popen", {}],
        ["record"],
        ["bytes", 3],
        ["bytes", "xx"],
        ["net", "10.0.0.1/8"],
        ["selector", "a =="],
        ["map", 3],
        ["nothing"],
        [["tuple"]],
    ],
)
def test_what_was_not_written_here_is_refused(raw: Any) -> None:
    with pytest.raises(BadPreserved):
        parse_value(raw)


def test_random_damage_is_an_error_or_a_value() -> None:
    """Never anything else, whatever a text says."""
    rng = random.Random(5)
    text = json.dumps(render_value(valid("GlobalNetworkPolicy")[1]))
    for _ in range(500):
        at = rng.randrange(len(text))
        damaged = text[:at] + rng.choice('[]{}",:09ax') + text[at + rng.randrange(3) :]
        try:
            parse_value(json.loads(damaged))
        except ValueError:
            continue


def test_only_values_are_known() -> None:
    assert all(cls.__match_args__ and cls.__module__.startswith("cni_calico.") for cls in KNOWN.values())
    with pytest.raises(TypeError):
        render_value(object())


def test_a_stored_document_as_the_graph_holds_it() -> None:
    """From the document to the held value and back, by the agent's way."""
    key, record = valid("GlobalNetworkPolicy")
    document = {"kind": key.kind, "metadata": {"name": "p", "labels": {"role": "x"}}, "spec": SPECS[key.kind]}
    decoded, _ = decode_record(key, document)
    assert decoded is not None and reduce_record(key, decoded) == record
    assert isinstance(valid("WorkloadEndpoint")[1], WorkloadEndpoint)


def test_a_set_of_one_port_of_an_older_version():
    """It had a set for each name."""
    now = port_source(None, frozenset(("web",)), 6)
    kind, name, fields = render_value(now)
    older = [kind, name, {key: one for key, one in fields.items() if key != "ports"} | {"port": "web"}]
    found = parse_value(older)
    assert (found.id, found.ports, found.protocol) == (now.id, now.ports, now.protocol)


def test_rules_of_an_older_version():
    """It did not keep what only http asks for, and where sets come from; a rule with http has to be read again."""
    key, rule = ResourceKey("GlobalNetworkPolicy", "p"), {"action": "Allow", "source": {"selector": "has(a)"}}
    policy = parse_policy(key, Resource(key.kind, Metadata("p"), {"ingress": [rule]}))
    assert policy.wanted.ingress is not None
    now = policy.wanted.ingress[0]

    def as_older(http: bool) -> list[Any]:
        kind, name, fields = render_value(now)
        side = fields["source"]
        older = [*side[:2], {key: one for key, one in side[2].items() if key != "texts"}]
        return [kind, name, {**fields, "source": older, "destination": render_value(ANY_SIDE), "http": http}]

    assert parse_value(as_older(False)) == replace(now, source=replace(now.source, texts=None))
    with pytest.raises(BadPreserved):
        parse_value(as_older(True))
