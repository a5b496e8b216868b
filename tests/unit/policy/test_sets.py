"""The members of sets that rules name."""

from ipaddress import ip_address

import pytest

from tests.unit.policy.cluster import NODE, document, graph_of, put


def test_a_port_with_two_names_goes_with_its_endpoint():
    """It gets a second name, then the endpoint goes: the member goes, too."""
    rule = {"action": "Allow", "protocol": "TCP", "destination": {"selector": "app == 'b'", "ports": ["dns", "web"]}}
    graph = graph_of({("GlobalNetworkPolicy", "", "p"): document({"ingress": [rule], "types": ["Ingress"]})})
    put(graph, ("WorkloadEndpoint", "a", "l1"), endpoint("l1", NODE, []))

    def members(*names):
        ports = [{"name": name, "protocol": "TCP", "port": 80} for name in names]
        put(graph, ("WorkloadEndpoint", "a", "r1"), endpoint("r1", "there", ports) if names else None)
        graph.flush()
        assert graph.problems == {}
        return {member for one in graph.wanted().sets.values() for member in one.ports}

    one = {(bytes((10, 0, 0, 2)), 6, 80)}
    assert members("web") == members("dns", "web") == one
    assert members() == set()


def test_what_selects_nodes_and_what_selects_others_never_meet():
    """Both selectors match everything; a node's name is no address."""
    rules = [{"action": "Allow", "destination": {field: "all()"}} for field in ("nodeSelector", "selector")]
    graph = graph_of({("GlobalNetworkPolicy", "", "p"): document({"egress": rules, "types": ["Egress"]})})
    put(graph, ("WorkloadEndpoint", "a", "l1"), endpoint("l1", NODE, []))
    addresses = [
        ("InternalIP", "192.0.2.1"),
        ("ExternalIP", "fd00::1"),
        ("InternalIP", "n1"),
        ("Hostname", "192.0.2.9"),
    ]
    node = document({"addresses": [{"type": kind, "address": text} for kind, text in addresses]}, {"app": "b"})
    put(graph, ("Node", "", "n1"), node)
    facts = graph.flush().facts
    assert (facts.problems, facts.needs.nodes, facts.needs.endpoints, facts.selectors) == ({}, True, True, 1)
    found = {name: {str(ip_address(one)) for one in members.addresses} for name, members in graph.wanted().sets.items()}
    of_nodes = [name for name in found if name.startswith("s-nodes-")]
    assert [found.pop(name) for name in of_nodes] == [{"192.0.2.1", "fd00::1"}]
    assert list(found.values()) == [{"10.0.0.2"}]
    assert graph.sets_of(frozenset({"Node"})) == frozenset(of_nodes)
    put(graph, ("Node", "", "n1"), None)
    graph.flush()
    assert graph.wanted().sets[of_nodes[0]].addresses == frozenset()


@pytest.mark.parametrize(
    "peer", [{"nodeSelector": "x =="}, {"nodeSelector": 5}, {"nodeSelector": "all()", "ports": ["http"]}]
)
def test_nodes_that_cannot_be_selected_refuse_the_policy(peer):
    rule = {"action": "Deny", "protocol": "TCP", "destination": peer}
    graph = graph_of({("GlobalNetworkPolicy", "", "p"): document({"egress": [rule], "types": ["Egress"]})})
    assert [key.name for key in graph.flush().facts.problems] == ["p"]


def endpoint(name, node, ports):
    spec = {
        "orchestrator": "k8s",
        "node": node,
        "pod": name,
        "endpoint": "eth0",
        "interfaceName": f"cali{name}",
        "ipNetworks": ["10.0.0.2/32"],
        "ports": ports,
    }
    return document(spec, {"app": "b"} if node != NODE else {})
