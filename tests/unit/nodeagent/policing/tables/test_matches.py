"""How many rules of the packet filter a policy becomes: at most sixteen for a rule in a family, whatever it lists."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, target
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
from cni_calico.policy.budget import count_rules
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
SERVICE = st.fixed_dictionaries({}, optional={"services": st.sampled_from(({"name": "a"}, {"name": "b"}))})
ICMP = st.fixed_dictionaries({"type": st.integers(0, 254)}, optional={"code": st.integers(0, 255)})
ACTION = st.sampled_from(("Allow", "Deny", "Pass", "Log"))
OPTIONAL = {"ipVersion": st.sampled_from((4, 6)), "notProtocol": st.sampled_from(("TCP", 47))}
WITHOUT_PORTS = SIDE.map(lambda side: {name: value for name, value in side.items() if "orts" not in name})
OF_SERVICE = st.one_of(WITHOUT_PORTS, SERVICE)
RULE = st.one_of(
    st.fixed_dictionaries(
        {"action": ACTION, "protocol": st.sampled_from(("TCP", "UDP", "SCTP")), "source": SIDE, "destination": SIDE},
        optional=OPTIONAL,
    ),
    st.fixed_dictionaries(
        {"action": ACTION, "protocol": st.just("ICMP"), "source": WITHOUT_PORTS, "destination": WITHOUT_PORTS},
        optional={"icmp": ICMP, "notICMP": ICMP, "ipVersion": st.just(4)},
    ),
    st.fixed_dictionaries({"action": ACTION, "source": OF_SERVICE, "destination": OF_SERVICE}),
)
LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"), max_size=2).map(lambda m: {"matchLabels": m})
PEER = st.one_of(
    st.fixed_dictionaries({"podSelector": LABELS}, optional={"namespaceSelector": LABELS}),
    st.fixed_dictionaries({"namespaceSelector": LABELS}),
    st.builds(
        lambda net, out: {"ipBlock": {"cidr": net, "except": out}}, st.sampled_from(("10.0.0.0/8", "fd00::/8")), NETS
    ),
)
KUBERNETES_PORT = st.one_of(
    st.fixed_dictionaries({"protocol": st.sampled_from(("TCP", "UDP", "SCTP"))}),
    st.builds(
        lambda protocol, port: {"protocol": protocol, "port": port},
        st.sampled_from(("TCP", "UDP", "SCTP")),
        st.one_of(st.sampled_from(NAMES), st.integers(1, 65535)),
    ),
)
KUBERNETES_RULE = st.fixed_dictionaries(
    {}, optional={"from": st.lists(PEER, max_size=6), "ports": st.lists(KUBERNETES_PORT, max_size=20)}
)
MARKS = Marks(0x40000, 0x80000)


def parsed(rules: list[Any]) -> PolicyRecord:
    spec = {"selector": "all()", "types": ["Ingress"], "ingress": rules}
    document = {"apiVersion": "projectcalico.org/v3", "kind": KEY.kind, "metadata": {"name": KEY.name}, "spec": spec}
    return parse_policy(KEY, decode_resource(KEY, document))


def rendered(record: PolicyRecord, family: int, *, by_iptables: bool) -> tuple[tuple[NftRule, ...], dict[str, ListSet]]:
    """As if every set that may have networks had some; those of services never do."""

    def has_networks(name: str) -> bool:
        return not name.startswith("s-service-")

    chain, lists = render_policy(record.wanted, True, family, FilterSettings(by_iptables=by_iptables), has_networks)
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


class Ratios:
    """The most rules of the packet filter for one rule of a policy, and for 1,000 characters of its text."""

    def __init__(self) -> None:
        self.of_a_rule, self.of_text, self.lists = 0.0, 0.0, 0.0

    def judge(self, record: PolicyRecord, rules: int, text: Any) -> None:
        size = len(json.dumps(text, separators=(",", ":")))
        found = [len(rendered(record, family, by_iptables=False)[0]) for family in (4, 6)]
        by_iptables, in_lists = zip(*(compiled(record, family) for family in (4, 6)), strict=True)
        most = max(*found, *by_iptables)
        target(most / rules, label="rules")
        assert most <= MOST * rules
        assert max(in_lists) <= size / 2
        assert max(found) <= count_rules(record.wanted)  # the budget has counted them all
        self.of_a_rule = max(self.of_a_rule, most / rules)
        self.of_text = max(self.of_text, 1000 * most / size)
        self.lists = max(self.lists, 1000 * max(in_lists) / size)

    def __str__(self) -> str:
        return (
            f"at most {self.of_a_rule:.1f} rules for one of a policy, {self.of_text:.0f} for 1,000 characters; in "
            f"chains of ports {self.lists:.0f} for 1,000 characters"
        )


def test_rules_are_linear_in_the_text() -> None:
    """It prints the worst ratios that it met (pytest -s)."""
    worst = Ratios()

    @settings(max_examples=150)
    @given(st.lists(RULE, min_size=1, max_size=4))
    def one(rules: list[Any]) -> None:
        record = parsed(rules)
        worst.judge(record, len(rules), rules)
        assert len(record.sources) <= 6 * len(rules)

    one()
    print(f"Calico's policies: {worst}")
    assert worst.of_a_rule > 1  # something was counted


def test_rules_of_kubernetes_policies_are_linear_in_the_text() -> None:
    """As above: a rule with three protocols is three rules of Calico's for each peer, whatever ports it lists."""
    worst = Ratios()

    @settings(max_examples=150)
    @given(st.lists(KUBERNETES_RULE, min_size=1, max_size=4))
    def one(rules: list[Any]) -> None:
        document = {"metadata": {"name": "p", "namespace": "tenant"}, "spec": {"podSelector": {}, "ingress": rules}}
        converted = read_network_policy(document)
        record = parse_policy(converted.key, record_of(converted.key, converted.document))
        listed = len(record.wanted.ingress or ())
        assert listed <= sum(3 * max(1, len(rule.get("from", ()))) for rule in rules)
        if listed:
            worst.judge(record, listed, rules)

    one()
    print(f"Kubernetes' policies: {worst}")
    assert worst.of_a_rule > 1


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
