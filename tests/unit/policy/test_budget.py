"""The budget of rules: what it has room for, who denies above it, and who is spared."""

import json

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.budget import DEFAULT, count_rules
from cni_calico.policy.records import parse_policy
from tests.unit.policy.cluster import document, graph_of, record_of
from tests.unit.policy.test_scenarios import ONE, policy

NAME, RAW = ResourceKey("GlobalNetworkPolicy", "n"), ("GlobalNetworkPolicy", "", "n")
MB = 1 << 20
PLAIN = (
    {"action": "Deny"},
    {"action": "Log", "source": {"nets": ["10.0.0.0/8"]}},
    {"action": "Deny", "protocol": 6, "source": {"ports": [1]}},
    {"action": "Deny", "source": {"ports": ["a"]}},
    {"action": "Deny", "source": {"selector": "all()"}},
    {"action": "Deny", "source": {"selector": "all()"}, "destination": {"selector": "all()"}},
    {"action": "Deny", "source": {"selector": "x=='12345'"}},
)


def parsed(rules):
    spec = {"selector": "all()", "types": ["Ingress"], "ingress": rules}
    return parse_policy(NAME, record_of(RAW, document(spec)))


@pytest.mark.parametrize("rule", PLAIN)
def test_the_default_has_room_for_a_megabyte(rule):
    of_one = count_rules(parsed([rule]).wanted)
    assert of_one * MB // (len(json.dumps(rule, separators=(",", ":"))) + 1) <= DEFAULT


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
