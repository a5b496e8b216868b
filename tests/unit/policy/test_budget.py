"""The budget of rules: what it has room for, who denies above it, and who is spared."""

import json

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.budget import DEFAULT, count_rules
from cni_calico.policy.kubernetes import read_network_policy
from cni_calico.policy.kubernetes import record_of as policy_record
from cni_calico.policy.records import parse_policy
from tests.unit.policy.cluster import document, graph_of, record_of
from tests.unit.policy.test_scenarios import ONE, policy

NAME, RAW = ResourceKey("GlobalNetworkPolicy", "n"), ("GlobalNetworkPolicy", "", "n")
MB = 1 << 20
ONE_EACH = ("all()", "x=='{:05}'")  # the same one in each rule, or one of its own
PORTS: tuple[list[object], ...] = ([], [1], ["a"], [1, "a"], [1, "{:05}"])


def parsed(rules):
    spec = {"selector": "all()", "types": ["Ingress"], "ingress": rules}
    return parse_policy(NAME, record_of(RAW, document(spec)))


def converted(ports, peers, number=1000):
    """A policy of Kubernetes of so many peers."""
    listed = [{peers: {"matchLabels": {"a": f"{i:05}"}}} for i in range(number)]
    spec = {"podSelector": {}, "ingress": [{"from": listed, **({"ports": ports} if ports else {})}]}
    found = read_network_policy({"metadata": {"name": "n", "namespace": "n"}, "spec": spec})
    return count_rules(parse_policy(found.key, policy_record(found.key, found.document)).wanted), size(spec)


def size(document):
    return len(json.dumps(document, separators=(",", ":")))


@pytest.mark.parametrize("rule", [{}, {"source": {"nets": ["10.0.0.0/8"]}}, {"protocol": 6, "source": {"ports": [1]}}])
def test_the_default_has_room_for_a_megabyte(rule):
    rule = {"action": "Deny", **rule}
    assert count_rules(parsed([rule]).wanted) * MB // (size(rule) + 1) <= DEFAULT


@pytest.mark.parametrize("ports", PORTS)
@pytest.mark.parametrize("source", (None, *ONE_EACH))
@pytest.mark.parametrize("destination", (None, *ONE_EACH))
def test_the_default_has_room_for_a_megabyte_of_selectors_and_ports(ports, source, destination):
    def rule(i):
        found = {"action": "Deny", **({"protocol": 6} if ports else {})}
        for name, selector in (("source", source), ("destination", destination)):
            side = {"selector": selector.format(2 * i + (name == "source"))} if selector else {}
            side |= {"ports": [one if one == 1 else one.format(i) for one in ports]} if ports else {}
            found |= {name: side} if side else {}
        return found

    rules = [rule(i) for i in range(300)]
    assert count_rules(parsed(rules).wanted) * MB // size(rules) <= DEFAULT


TCP, UDP, NAMED = {"port": 1}, {"protocol": "UDP", "port": 1}, {"port": "a"}


@pytest.mark.parametrize("peers", ["podSelector", "namespaceSelector"])
@pytest.mark.parametrize("ports", [[], [TCP], [NAMED], [TCP, UDP], [TCP, NAMED], [TCP, UDP, NAMED]])
def test_the_default_has_room_for_a_megabyte_of_kubernetes_peers(peers, ports):
    count, text = converted(ports, peers)
    assert count >= 1000 and count * MB // text <= DEFAULT


def test_what_a_megabyte_of_kubernetes_peers_has_no_room_for():
    """As docs/policy.md says: from the fourth kind of port on."""
    count, text = converted([TCP, NAMED, UDP, {**NAMED, "protocol": "UDP"}], "podSelector")
    assert DEFAULT < count * MB // text < 1.3 * DEFAULT


def test_names_beside_numbers_and_sets_that_may_have_networks():
    side = {"selector": "all()", "ports": [1, "a", "b"]}
    rule = {"action": "Allow", "protocol": "TCP", "source": side, "destination": side}
    assert count_rules(parsed([rule]).wanted) == 16 + 2 and count_rules(parsed([rule, rule]).wanted) == 32 + 2
    assert count_rules(parsed([{**rule, "ipVersion": 4}, {**rule, "ipVersion": 6}]).wanted) == 16 + 2


def test_above_the_budget_a_policy_denies_until_it_is_smaller_or_the_budget_larger():
    rules = [{"action": "Allow", "source": {"selector": f"a == '{i}'"}} for i in range(10)]
    graph = graph_of(ONE | policy("n", ingress=rules))
    graph.flush()
    before = graph.wanted()
    (name,) = (one for one in before.policies if one.kind != "Profile")
    graph.set_budget(30)
    changes = graph.flush().changes
    assert graph.over_budget == {name: 31} and len(changes.sets_removed) == 10
    (deny,) = changes.policies[name].ingress
    assert deny.action == "Deny" and not deny.set_ids()
    graph.set_budget(31)
    graph.flush()
    assert graph.wanted() == before and not graph.over_budget


def test_a_policy_that_is_spared_may_not_grow():
    def rules(count):
        return [{"action": "Allow", "source": {"selector": f"a == '{i}'"}} for i in range(count)]

    graph = graph_of(ONE | policy("n", ingress=rules(10)))
    graph.flush()
    (name,) = (one for one in graph.wanted().policies if one.kind != "Profile")
    graph.set_budget(5)
    graph.flush()
    graph.spare({name: 31})
    graph.flush()
    assert not graph.over_budget and len(graph.wanted().policies[name].ingress) == 10
    for count, over in ((9, {}), (11, {name: 33}), (10, {})):
        graph.put(NAME, record_of(RAW, document({"selector": "all()", "ingress": rules(count)})))
        graph.flush()
        assert graph.over_budget == over
    graph.put(NAME, None)
    graph.flush()
    assert not graph.spared
