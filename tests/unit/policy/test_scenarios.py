"""States of a small cluster, as upstream tests its calculation with, rewritten: what is wanted in each of them, and
that it does not matter how it was reached: forwards, backwards, in between emptied, in one step, in many.
"""

from ipaddress import ip_address, ip_network
from itertools import pairwise

import pytest

from cni_calico.policy.graph import Graph
from cni_calico.policy.wanted import Members, PolicyId, Wanted
from tests.unit.policy.cluster import NODE, document, graph_of, put
from tests.unit.policy.merging import with_changes

ALLOW = [{"action": "Allow"}]


def workload(name, *addresses, labels=None, profiles=("p1",), ports=(), node=NODE):
    spec = {
        "orchestrator": "k8s",
        "node": node,
        "pod": name,
        "endpoint": "eth0",
        "interfaceName": f"cali{name}",
        "ipNetworks": [f"{address}/{128 if ':' in address else 32}" for address in addresses],
        "profiles": list(profiles),
        "ports": [{"name": n, "protocol": protocol, "port": port} for n, protocol, port in ports],
    }
    return {("WorkloadEndpoint", "ns", name): document(spec, {"id": name, "all": "yes"} if labels is None else labels)}


def policy(name, selector="all == 'yes'", *, order=None, tier=None, ingress=ALLOW, egress=ALLOW, types=None, **more):
    spec = {"order": order, "tier": tier, "selector": selector, "ingress": ingress, "egress": egress, "types": types}
    return {("GlobalNetworkPolicy", "", name): document({**spec, **more})}


def tier(name, order=None):
    return {("Tier", "", name): document({"order": order, "defaultAction": "Deny"})}


def profile(name, **labels):
    return {("Profile", "", name): document({"ingress": ALLOW, "labelsToApply": labels})}


def source(**peer):
    return [{"action": "Allow", "protocol": "TCP", "source": peer}]


def to_port(*ports, protocol="TCP", field="ports", **peer):
    return [{"action": "Allow", "protocol": protocol, "destination": {**peer, field: list(ports)}}]


ONE = workload("l1", "10.0.0.1", "fd00::1") | profile("p1")
TWO = ONE | workload("l2", "10.0.0.2")
WEB = [("web", "TCP", 8080), ("dns", "UDP", 53)]
NETS = {("GlobalNetworkSet", "", "n"): document({"nets": ["12.0.0.0/24", "12.1.0.0/24"]}, {"net": "yes"})}
OVERLAP = {("GlobalNetworkSet", "", "o"): document({"nets": ["12.0.0.0/16", "10.0.0.1"]}, {"net": "yes"})}
FROM_ALL = policy("s", ingress=source(selector="all == 'yes' || net == 'yes'"))
INHERITED = policy("i", "", ingress=source(selector="team == 'x'"))
SERVICE = policy(
    "v",
    ingress=source(services={"name": "svc", "namespace": "a"}),
    egress=[{"action": "Allow", "destination": {"services": {"name": "svc", "namespace": "a"}}}],
)


def part(name, addresses, ports):
    return {("EndpointSlice", "a", name): document({"service": "svc", "addresses": addresses, "ports": ports})}


STATES = {
    "empty": {},
    "one endpoint, no policy": ONE,
    "two endpoints": TWO,
    "endpoint without its profile": workload("l1", "10.0.0.1"),
    "second of its profiles missing": workload("l1", "10.0.0.1", profiles=("p1", "p2")) | profile("p1"),
    "order 1 2 3": TWO | policy("a", order=1) | policy("b", order=2) | policy("c", order=3),
    "order 3 2 1": TWO | policy("a", order=3) | policy("b", order=2) | policy("c", order=1),
    "order with ties and absent": TWO | policy("a") | policy("b", order=2) | policy("c", order=2),
    "a policy of one endpoint": TWO | policy("a", "id == 'l1'"),
    "a policy of nobody": TWO | policy("a", "id == 'l9'"),
    "kept everywhere": TWO | policy("a", "id == 'l9'", performanceHints=["AssumeNeededOnEveryNode"]),
    "ingress only": ONE | policy("a", types=["Ingress"]),
    "egress only": ONE | policy("a", types=["Egress"]),
    "tiers 1 2": ONE | tier("t1", 1) | tier("t2", 2) | policy("a", tier="t1") | policy("b", tier="t2"),
    "tiers 2 1": ONE | tier("t1", 2) | tier("t2", 1) | policy("a", tier="t1") | policy("b", tier="t2"),
    "tiers tie": ONE | tier("t1", 1) | tier("t2", 1) | policy("a", tier="t1") | policy("b", tier="t2"),
    "tier changed": ONE | tier("t1", 1) | tier("t2", 2) | policy("a", tier="t2") | policy("b", tier="t2"),
    "tier missing": ONE | tier("t2", 1) | policy("a", tier="t1") | policy("b", tier="t2"),
    "staged": ONE | {("StagedGlobalNetworkPolicy", "", "a"): document({"selector": "all()", "ingress": []})},
    "pre-DNAT": ONE | policy("a", preDNAT=True, applyOnForward=True, egress=[], types=["Ingress"]),
    "untracked": ONE | policy("a", doNotTrack=True, applyOnForward=True),
    "selector set": TWO | FROM_ALL,
    "selector set, remote": TWO | FROM_ALL | workload("r", "10.0.1.1", node="there"),
    "network sets": TWO | FROM_ALL | NETS,
    "network sets that overlap": TWO | FROM_ALL | NETS | OVERLAP,
    "address shared": TWO | FROM_ALL | workload("r", "10.0.0.2", "10.0.1.1", node="there"),
    "label inherited": TWO | INHERITED | profile("p1", team="x"),
    "label inherited no more": TWO | INHERITED | profile("p1", team="y"),
    "label overridden": workload("l1", "10.0.0.1", labels={"team": "z"}) | profile("p1", team="x") | INHERITED,
    "host endpoint": TWO
    | FROM_ALL
    | {("HostEndpoint", "", "h"): document({"node": "there", "expectedIPs": ["192.0.2.9"]}, {"all": "yes"})},
    "named port": TWO | workload("r", "10.0.1.1", ports=WEB, node="there") | policy("n", egress=to_port("web")),
    "named port, UDP": TWO
    | workload("r", "10.0.1.1", ports=WEB, node="there")
    | policy("n", egress=to_port("dns", protocol="UDP")),
    "named port, selected": TWO
    | workload("r", "10.0.1.1", ports=WEB, node="there")
    | workload("q", "10.0.1.2", ports=WEB, labels={}, node="there")
    | policy("n", egress=to_port("web", selector="all == 'yes'")),
    "named port, negated, and a number": TWO
    | workload("r", "10.0.1.1", ports=WEB, node="there")
    | policy("n", egress=to_port("web", 80, field="notPorts")),
    "named port, twice": TWO
    | workload("r", "10.0.1.1", ports=[*WEB, ("web", "TCP", 8081)], node="there")
    | policy("n", egress=to_port("web")),
    "service": TWO | SERVICE | part("s1", ["10.9.0.1"], [(6, 80)]),
    "service, two slices": TWO
    | SERVICE
    | part("s1", ["10.9.0.1"], [(6, 80)])
    | part("s2", ["10.9.0.1", "10.9.0.2"], [(6, 80)]),
}


def wanted_of(documents):
    graph = graph_of(documents)
    graph.flush()
    return graph.wanted()


def steps(before, after):
    """The changes from one state to another."""
    changes = {key: None for key in before if key not in after}
    return changes | {key: value for key, value in after.items() if before.get(key) != value}


def walk(states, *, split):
    """Through the states, told of differences only; what was told must be what is wanted in each of them."""
    graph, told = Graph(lambda record: record.node == NODE), Wanted()
    for before, after in pairwise([{}, *states]):
        for key, value in steps(before, after).items():
            put(graph, key, value)
            if split:
                told = with_changes(told, graph.flush().changes)
        told = with_changes(told, graph.flush().changes)
        assert told == graph.wanted() == wanted_of(after)


FORWARDS = list(STATES.values())
EMPTIED = [state for one in FORWARDS for state in (one, {})]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("way", [FORWARDS, FORWARDS[::-1], EMPTIED, FORWARDS[::3] + FORWARDS[1::3]])
def test_it_does_not_matter_how_a_state_is_reached(way, split):
    walk(way, split=split)


def test_states_passed_by_leave_nothing_behind():
    graph = Graph(lambda record: record.node == NODE)
    for before, after in pairwise([{}, *FORWARDS, {}]):
        for key, value in steps(before, after).items():
            put(graph, key, value)
    assert not graph.flush().changes
    assert graph.wanted() == Wanted()


# -- what is wanted in them -------------------------------------------------------------------------------------------


def class_of(state, name="l1"):
    wanted = wanted_of(STATES[state])
    key = next(key for key in wanted.endpoints if key.name == name)
    return wanted.classes[wanted.endpoints[key].class_id]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("one endpoint, no policy", []),
        ("order 1 2 3", [("default", "a b c")]),
        ("order 3 2 1", [("default", "c b a")]),
        ("order with ties and absent", [("default", "b c a")]),
        ("tiers 1 2", [("t1", "a"), ("t2", "b")]),
        ("tiers 2 1", [("t2", "b"), ("t1", "a")]),
        ("tiers tie", [("t1", "a"), ("t2", "b")]),
        ("tier changed", [("t2", "a b")]),
        ("tier missing", [("t2", "b"), ("t1", "a")]),
        ("egress only", []),
        ("staged", []),
        ("pre-DNAT", []),
        ("untracked", []),
    ],
)
def test_order(state, expected):
    ingress = class_of(state).ingress
    assert [(one.name, " ".join(policy.name for policy in one.policies)) for one in ingress] == expected
    assert all(one.end == "Deny" for one in ingress)


def test_profiles_end_before_the_first_that_is_missing():
    assert class_of("endpoint without its profile").profiles == ()
    assert class_of("second of its profiles missing").profiles == (PolicyId("Profile", "p1"),)


def test_a_policy_of_nobody_is_not_there_unless_it_is_kept():
    assert PolicyId("GlobalNetworkPolicy", "a") not in wanted_of(STATES["a policy of nobody"]).policies
    assert PolicyId("GlobalNetworkPolicy", "a") in wanted_of(STATES["kept everywhere"]).policies


def test_endpoints_with_the_same_policies_share_a_class():
    assert len(wanted_of(STATES["order 1 2 3"]).classes) == 1
    assert len(wanted_of(STATES["a policy of one endpoint"]).classes) == 2


def addresses(*texts):
    return frozenset(ip_address(text).packed for text in texts)


def nets(*texts):
    found = map(ip_network, texts)
    return frozenset((net.network_address.packed, net.prefixlen) for net in found)


def triples(*items):
    return frozenset((ip_address(text).packed, protocol, port) for text, protocol, port in items)


BOTH = ("10.0.0.1", "fd00::1", "10.0.0.2")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("selector set", [Members(addresses(*BOTH))]),
        ("selector set, remote", [Members(addresses(*BOTH, "10.0.1.1"))]),
        ("network sets", [Members(addresses(*BOTH), nets("12.0.0.0/24", "12.1.0.0/24"))]),
        ("network sets that overlap", [Members(addresses(*BOTH), nets("12.0.0.0/16", "12.1.0.0/24"))]),
        ("address shared", [Members(addresses(*BOTH, "10.0.1.1"))]),
        ("label inherited", [Members(addresses(*BOTH))]),
        ("label inherited no more", [Members()]),
        ("label overridden", [Members()]),
        ("host endpoint", [Members(addresses(*BOTH, "192.0.2.9"))]),
        ("named port", [Members(ports=triples(("10.0.1.1", 6, 8080)))]),
        ("named port, UDP", [Members(ports=triples(("10.0.1.1", 17, 53)))]),
        ("named port, selected", [Members(ports=triples(("10.0.1.1", 6, 8080)))]),
        ("named port, negated, and a number", [Members(ports=triples(("10.0.1.1", 6, 8080)))]),
        ("named port, twice", [Members(ports=triples(("10.0.1.1", 6, 8080), ("10.0.1.1", 6, 8081)))]),
        ("service", [Members(addresses("10.9.0.1")), Members(ports=triples(("10.9.0.1", 6, 80)))]),
        (
            "service, two slices",
            [
                Members(addresses("10.9.0.1", "10.9.0.2")),
                Members(ports=triples(("10.9.0.1", 6, 80), ("10.9.0.2", 6, 80))),
            ],
        ),
    ],
)
def test_members(state, expected):
    found = sorted(wanted_of(STATES[state]).sets.values(), key=lambda members: bool(members.ports))
    assert found == expected


def test_an_excluded_network_set_takes_nothing_away_from_another():
    """Both hold the address; one is selected, the other is not."""
    sets = {("GlobalNetworkSet", "", name): document({"nets": ["10.9.0.1"]}, {"net": name}) for name in ("a", "b")}
    rules = source(selector="has(net)", notSelector="net == 'b'")
    wanted = wanted_of(ONE | sets | policy("n", ingress=rules))
    (side,) = (rule.source for rule in wanted.policies[PolicyId("GlobalNetworkPolicy", "n")].ingress)
    assert not side.not_sets
    assert wanted.sets[side.sets[0]] == Members(frozenset({ip_address("10.9.0.1").packed}))


def test_a_rule_that_contradicts_itself_exists_in_no_family():
    rules = [{"action": "Deny", "protocol": "TCP", "notProtocol": 6}]
    wanted = wanted_of(ONE | policy("n", ingress=rules))
    assert wanted.policies[PolicyId("GlobalNetworkPolicy", "n")].ingress[0].families == ()
