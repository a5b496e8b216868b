"""The members of sets that rules name."""

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
