"""What policies had is gone when they are: nothing in the process keeps their selectors, sets and long lists."""

from __future__ import annotations

import gc
from collections import Counter

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.model.selectors import Selector, parse_selector
from cni_calico.nodeagent.policing.tables.matches import ListSet, network_list
from cni_calico.policy.graph import Graph
from cni_calico.policy.rules import parse_nets, parse_rules, side_of_selector
from cni_calico.policy.sources import NodeSource, PortSource, SelectorSource
from cni_calico.policy.wanted import WantedSide

OURS = Selector, SelectorSource, PortSource, NodeSource, WantedSide, ListSet
POLICIES = 40


def alive() -> Counter[str]:
    """How many there are of each kind, but for the texts that a bounded number of is remembered."""
    parse_selector.cache_clear()
    side_of_selector.cache_clear()
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, OURS))


def policy(number: int) -> Resource:
    own = f"pod == 'p{number}'"
    rules = [
        {"action": "Allow", "source": {"selector": own}},
        {"action": "Allow", "protocol": "TCP", "destination": {"selector": own, "ports": [f"web{number}"]}},
        {"action": "Allow", "source": {"selector": "x == 'y'", "notSelector": own}},
    ]
    spec = {"selector": own, "types": ["Ingress"], "ingress": rules}
    return Resource("GlobalNetworkPolicy", Metadata(f"p{number}"), spec)


def change(graph: Graph, first: int) -> None:
    """Policies of these numbers come and go."""
    keys = {number: ResourceKey("GlobalNetworkPolicy", f"p{number}") for number in range(first, first + POLICIES)}
    for number, key in keys.items():
        graph.put(key, policy(number))
    graph.flush()
    for key in keys.values():
        graph.put(key, None)
    graph.flush()


def test_policies_that_are_gone_leave_no_selector_behind() -> None:
    graph = Graph(lambda record: True)
    change(graph, 0)
    before = alive()
    change(graph, POLICIES)
    graph.put(ResourceKey("GlobalNetworkPolicy", "p0"), policy(0))
    graph.flush()
    assert alive()["Selector"] > before["Selector"], "what is there is not counted"
    graph.put(ResourceKey("GlobalNetworkPolicy", "p0"), None)
    graph.flush()
    assert alive() == before


def test_equal_selectors_are_one_while_a_rule_has_them() -> None:
    sources: list[dict[str, object]] = [{}, {}]
    for found in sources:
        parse_rules([{"action": "Allow", "source": {"selector": "a == 'b'"}}], "x", "", "ingress", found)
        side_of_selector.cache_clear()
    ((first,), (second,)) = (found.values() for found in sources)
    assert first is second


def test_long_lists_of_networks_are_not_kept() -> None:
    before = alive()
    for number in range(5):
        nets = [f"10.{number}.{third}.0/24" for third in range(0, 200, 2)]
        rules = parse_rules([{"action": "Allow", "source": {"nets": nets}}], "x", "", "ingress", {})
        assert network_list(parse_nets(nets, "x")).elements and rules
    del rules
    assert alive() == before
