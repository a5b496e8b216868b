"""How many rules of the packet filter a policy becomes: at most sixteen for a rule in a family, whatever it lists."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.kernel.filter.legacy.matches import Marks
from cni_calico.kernel.filter.legacy.rules import Compiled, compile_rule
from cni_calico.model.documents.codec import decode_resource
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.policies import read_network_policy
from cni_calico.netfilter.rules import NftRule
from cni_calico.netfilter.tables import NftSet, NftTable
from cni_calico.nodeagent.policing.tables.chains import render_policy
from cni_calico.nodeagent.policing.tables.matches import MOST, ListSet
from cni_calico.nodeagent.policing.tables.members import ADDRESS_BYTES
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.policy.kubernetes import record_of
from cni_calico.policy.records import PolicyRecord, parse_policy

NAMES = [f"port-{i}" for i in range(40)]
KEY = ResourceKey("NetworkPolicy", "p", "tenant")
RANGES = st.tuples(st.integers(1, 60000), st.integers(0, 9)).map(lambda r: f"{r[0]}:{r[0] + r[1]}" if r[1] else r[0])
PORTS = st.lists(st.one_of(st.sampled_from(NAMES), RANGES), max_size=60)
SELECTORS = st.sampled_from(("all()", "a == 'b'", "has(c)"))
NETS = st.lists(st.sampled_from(("10.0.0.0/8", "192.0.2.0/24", "198.51.100.7/32", "172.16.0.0/12")), max_size=4)
SIDE = st.fixed_dictionaries(
    {},
    optional={
        "ports": PORTS,
        "notPorts": PORTS,
        "nets": NETS,
        "notNets": NETS,
        "selector": SELECTORS,
        "notSelector": SELECTORS,
        "namespaceSelector": SELECTORS,
        "serviceAccounts": st.just({"names": ["sa"]}),
    },
)
RULE = st.builds(
    lambda action, protocol, source, destination: {
        "action": action,
        "protocol": protocol,
        "source": source,
        "destination": destination,
    },
    st.sampled_from(("Allow", "Deny", "Pass", "Log")),
    st.sampled_from(("TCP", "UDP", "SCTP")),
    SIDE,
    SIDE,
)
MARKS = Marks(0x40000, 0x80000)


def parsed(rules: list[Any]) -> PolicyRecord:
    spec = {"selector": "all()", "types": ["Ingress"], "ingress": rules}
    document = {"apiVersion": "projectcalico.org/v3", "kind": KEY.kind, "metadata": {"name": KEY.name}, "spec": spec}
    return parse_policy(KEY, decode_resource(KEY, document))


def rendered(record: PolicyRecord, family: int, *, by_iptables: bool) -> tuple[tuple[NftRule, ...], dict[str, ListSet]]:
    chain, lists = render_policy(
        record.wanted, True, family, FilterSettings(by_iptables=by_iptables), lambda name: True
    )
    return chain.rules, lists


def compiled(record: PolicyRecord, family: int) -> tuple[int, int]:
    """The rules of legacy iptables in the policy's chain, and in the chains of ports that it leads to."""
    rules, lists = rendered(record, family, by_iptables=True)
    table = NftTable("ip" if family == 4 else "ip6", "calico-policy")
    kind = "ipv4_addr" if ADDRESS_BYTES[family] == 4 else "ipv6_addr"
    for name in record.sources:
        table.sets[name] = NftSet(name, (kind, "inet_proto", "inet_service") if name.startswith("p-") else (kind,))
        table.sets[f"{name}/n"] = NftSet(f"{name}/n", (kind,), interval=True)
    for name, listed in lists.items():
        table.sets[name], table.elements[name] = listed.spec, set(listed.elements)
    done = Compiled()
    for rule in rules:
        compile_rule(rule, table, MARKS, base=False, done=done)
    chains = {one.name: len(one.rules()) for one in done.actions if one.name.startswith("cali-p-of-")}
    return len(done.rules), sum(chains.values())


@settings(max_examples=150)
@given(st.lists(RULE, min_size=1, max_size=4))
def test_rules_are_linear_in_the_text(rules: list[Any]) -> None:
    record, size = parsed(rules), len(json.dumps(rules))
    for family in (4, 6):
        assert len(rendered(record, family, by_iptables=False)[0]) <= MOST * len(rules)
        in_chain, in_lists = compiled(record, family)
        assert in_chain <= MOST * len(rules)
        assert in_lists <= size / 2
    assert len(record.sources) <= 6 * len(rules)


@pytest.mark.parametrize("with_numbers", [False, True])
def test_names_on_both_sides_are_not_multiplied(with_numbers: bool) -> None:
    """Seven hundred names on each side made 490,000 rules of 11 KB."""
    numbers = [80, *range(1000, 3000, 2)] if with_numbers else []
    sides = [[f"{side}{i:04}" for i in range(700)] + numbers for side in ("s", "d")]
    nets = {"nets": ["10.0.0.0/8"], "notNets": ["10.1.0.0/16"]}
    source, destination = ({"ports": ports, "selector": "all()", **nets} for ports in sides)
    record = parsed([{"action": "Allow", "protocol": "TCP", "source": source, "destination": destination}])
    count = len(rendered(record, 4, by_iptables=False)[0])
    in_chain, in_lists = compiled(record, 4)
    assert (count, in_chain) == ((16, 9) if with_numbers else (1, 4))
    assert in_lists == (2 * (67 + 2) if with_numbers else 0)
    assert len(record.sources) == (3 if with_numbers else 2)


def test_ports_and_peers_of_kubernetes_are_not_multiplied() -> None:
    """All peers have the list of their policy, as the same object, and what is made of it."""
    peers = [{"podSelector": {"matchLabels": {"app": f"a{i}"}}} for i in range(3000)]
    ports = [{"protocol": "TCP", "port": f"name-{i}"} for i in range(3000)] + [{"protocol": "TCP", "port": 7}]
    ports += [{"protocol": "TCP", "port": port} for port in range(10, 6000, 2)]
    spec = {"podSelector": {}, "ingress": [{"from": peers, "ports": ports}]}
    converted = read_network_policy({"metadata": {"name": "p", "namespace": "tenant"}, "spec": spec})
    record = parse_policy(converted.key, record_of(converted.key, converted.document))
    wanted = record.wanted.ingress or ()
    assert len(wanted) == 3000 and len({id(rule.destination.ports) for rule in wanted}) == 1
    of_ports = [source for source in record.sources.values() if source.id.startswith("p-")]
    assert len(of_ports) == 1  # the peers are on the other side
    assert len(rendered(record, 4, by_iptables=False)[0]) == 4 * 3000
