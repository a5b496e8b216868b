"""Records of any content: understood, or refused by name; and what is made of them is safe to hand on."""

import re
from dataclasses import replace
from ipaddress import ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.model.documents.fields import Wrong
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource, WorkloadEndpoint
from cni_calico.policy.graph import Graph
from cni_calico.policy.ports import parse_port
from cni_calico.policy.records import parse_policy
from cni_calico.policy.wanted import PeerTexts, WantedHttp

KEY = ResourceKey("GlobalNetworkPolicy", "p")
SAFE = re.compile(r"[a-z][A-Za-z0-9_.-]{0,62}")
SELECTORS = st.sampled_from(["", "all()", "has(a)", "a == 'x'", "a ==", "global()"])
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), SELECTORS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)


def mostly(strategy):
    return st.one_of(strategy, anything)


def fields(**parts):
    return st.fixed_dictionaries({}, optional={name: mostly(part) for name, part in parts.items()})


peer = fields(
    nets=st.lists(mostly(st.sampled_from(["10.0.0.0/8", "fd00::/8", "1.2.3.4", "10.0.0.0/33"])), max_size=2),
    notNets=st.lists(mostly(st.sampled_from(["0.0.0.0/0", "10.1.0.0/16"])), max_size=2),
    ports=st.lists(mostly(st.sampled_from([80, "80:90", "http", "9:8", 70000])), max_size=2),
    notPorts=st.lists(mostly(st.just(1)), max_size=2),
    selector=SELECTORS,
    notSelector=SELECTORS,
    namespaceSelector=SELECTORS,
    serviceAccounts=fields(names=st.lists(mostly(st.text(max_size=5)), max_size=2), selector=SELECTORS),
    services=fields(name=st.text(max_size=5), namespace=st.text(max_size=5)),
)
rule = fields(
    action=st.sampled_from(["Allow", "Deny", "Pass", "Log", "allow"]),
    protocol=st.sampled_from(["TCP", "icmp", 6, "17", 0, 256, "x"]),
    notProtocol=st.sampled_from(["UDP", 300]),
    ipVersion=st.sampled_from([4, 6, 5]),
    icmp=fields(type=st.integers(-1, 300), code=st.integers(-1, 300)),
    notICMP=fields(type=st.integers(-1, 300)),
    source=peer,
    destination=peer,
    http=fields(
        methods=st.lists(mostly(st.just("GET")), max_size=2),
        paths=st.lists(mostly(fields(exact=st.just("/a"), prefix=st.just("/b"))), max_size=2),
    ),
    metadata=fields(annotations=st.dictionaries(st.text(max_size=5), mostly(st.text(max_size=5)), max_size=2)),
)
spec = fields(
    tier=st.text(max_size=5),
    order=st.sampled_from([1, 1.5, 10**400, float("nan")]),
    selector=SELECTORS,
    namespaceSelector=SELECTORS,
    serviceAccountSelector=SELECTORS,
    types=st.lists(mostly(st.sampled_from(["Ingress", "Egress", "Both"])), max_size=2),
    ingress=st.lists(mostly(rule), max_size=2),
    egress=st.lists(mostly(rule), max_size=2),
    performanceHints=st.lists(mostly(st.just("AssumeNeededOnEveryNode")), max_size=1),
)


@settings(max_examples=500, deadline=None)
@given(mostly(spec))
def test_any_policy_is_understood_or_refused(raw):
    try:
        policy = parse_policy(KEY, Resource(KEY.kind, Metadata("p"), raw if isinstance(raw, dict) else {}))
    except Wrong as e:
        assert e.at.startswith("spec")
        return
    named = {name for one in policy.wanted.rules() for name in one.set_ids()}
    assert named == set(policy.sources)
    for name in named:
        assert SAFE.fullmatch(name), name


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200), st.text(max_size=20), st.text(max_size=20))
def test_names_of_sets_cannot_break_out(account, port, service):
    """Whatever texts of users they are made of."""
    rules = [
        {"action": "Allow", "source": {"serviceAccounts": {"names": [account]}}},
        {"action": "Allow", "destination": {"services": {"name": service or "x", "namespace": account or "x"}}},
    ]
    policy = parse_policy(KEY, Resource(KEY.kind, Metadata("p"), {"egress": rules}))
    assert len(policy.sources) == 2
    assert all(SAFE.fullmatch(name) for name in policy.sources)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (80, (80, 80)),
        ("80", (80, 80)),
        ("80:90", (80, 90)),
        ("http", "http"),
        ("8080-tcp", "8080-tcp"),
        (0, (0, 0)),
    ],
)
def test_ports(raw, expected):
    assert parse_port(raw, "at") == expected


@pytest.mark.parametrize(
    "raw", [70000, "70000", "9:8", "1:2:3", "", ":", "80:", "a b", "12345678901", -1, 1.5, None, True, "8٣"]
)
def test_no_ports(raw):
    with pytest.raises(Wrong):
        parse_port(raw, "at")


def graph_with(*versions):
    graph = Graph(lambda record: True)
    for spec in versions:
        graph.put(KEY, Resource(KEY.kind, Metadata("p"), spec))
    graph.flush()
    return graph


GOOD = {"performanceHints": ["AssumeNeededOnEveryNode"], "ingress": [{"action": "Deny"}]}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"selector": "x =="}, "selectors that can be read"),
        ({"ingress": [{"action": "Deny", "sideways": True}]}, "spec.ingress[0].sideways"),
        ({"ingress": [{"action": "Deny", "source": {"domains": ["x"]}}]}, "spec.ingress[0].source.domains"),
        ({"ingress": [{"action": "Deny", "destination": {"ports": [80]}}]}, "TCP, UDP or SCTP"),
        ({"egress": [{"action": "Deny", "icmp": {"type": 8}}]}, "ICMP"),
        ({"order": "1"}, "spec.order"),
    ],
)
def test_a_version_that_cannot_be_understood_leaves_the_last_one_in_force(bad, says):
    before = graph_with(GOOD).wanted()
    after = graph_with(GOOD, bad)
    assert after.wanted() == before != graph_with(bad).wanted()
    assert says in after.problems[KEY]
    after.put(KEY, Resource(KEY.kind, Metadata("p"), GOOD))
    assert not after.problems
    after.put(KEY, None)
    after.flush()
    assert after.wanted().policies == {}


@pytest.mark.parametrize("name", ["x" * 16, "a b", "a/b", "a\0b", "..", 'a"b', "calié"])
def test_an_interface_that_cannot_be_is_refused(name):
    key = ResourceKey("WorkloadEndpoint", "w", "ns")
    graph = Graph(lambda record: True)
    record = WorkloadEndpoint(
        Metadata("w", "ns"), "k8s", "n", "eth0", name, pod="w", ip_networks=(ip_network("10.0.0.1"),)
    )
    graph.put(key, record)
    assert "spec.interfaceName" in graph.problems[key]
    graph.flush()
    assert graph.wanted().endpoints == {}
    graph.put(key, replace(record, interface_name="cali1"))
    graph.flush()
    assert [endpoint.interface for endpoint in graph.wanted().endpoints.values()] == ["cali1"]
    assert not graph.problems


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"interfaceName": "eth0"}, "spec.node"),
        ({"node": "n"}, "spec.interfaceName"),
        ({"node": "n", "expectedIPs": ["10.0.0.0/24"]}, "spec.expectedIPs"),
        ({"node": "n", "expectedIPs": ["n.example"]}, "spec.expectedIPs[0]"),
        ({"node": "n", "interfaceName": "eth*"}, "spec.interfaceName"),
        ({"node": "n", "interfaceName": "eth+"}, "spec.interfaceName"),
        ({"node": "n", "interfaceName": "eth0", "profiles": "p"}, "spec.profiles"),
    ],
)
def test_a_host_endpoint_that_no_interface_can_have_is_refused(bad, says):
    """Without calicoctl nothing else refuses it."""
    key = ResourceKey("HostEndpoint", "h")
    graph = Graph(lambda record: True, lambda host: host.node == "n")
    graph.put(key, Resource(key.kind, Metadata("h"), bad))
    graph.flush()
    assert says in graph.problems[key] and graph.wanted().hosts == {}
    graph.put(key, Resource(key.kind, Metadata("h"), {"node": "n", "expectedIPs": ["10.0.0.1", "fd00::1"]}))
    graph.put(key, Resource(key.kind, Metadata("h"), bad))
    graph.flush()
    (host,) = graph.wanted().hosts.values()
    assert [len(address) for address in host.expected] == [4, 16] and says in graph.problems[key]


def parsed(rule):
    spec = {"ingress": [{"action": "Allow", "protocol": "TCP", **rule}]}
    policy = parse_policy(KEY, Resource(KEY.kind, Metadata("p"), spec))
    assert policy.wanted.ingress is not None
    return policy.wanted.ingress[0]


def test_what_a_rule_asks_of_requests_is_kept_as_it_is_written():
    http = {"methods": ["GET", "HEAD"], "paths": [{"prefix": "/b"}, {"exact": "/a"}, {"prefix": "/c", "exact": ""}]}
    assert parsed({"http": http}).http == WantedHttp(("GET", "HEAD"), ("/a",), ("/b", "/c"))
    for nothing in (None, {}, {"methods": [], "paths": None}):
        assert parsed({"http": nothing}).http is None


@pytest.mark.parametrize(
    ("http", "at"),
    [
        ([], "http"),
        ({"headers": ["x"]}, "http.headers"),
        ({"methods": "GET"}, "http.methods"),
        ({"methods": [7]}, "http.methods[0]"),
        ({"paths": ["/a"]}, "http.paths[0]"),
        ({"paths": [{}]}, "http.paths[0]"),
        ({"paths": [{"exact": "/a", "prefix": "/b"}]}, "http.paths[0]"),
        ({"paths": [{"exact": "/a"}, {"regex": "/.*"}]}, "http.paths[1]"),
        ({"paths": [{"exact": 1}]}, "http.paths[0].exact"),
    ],
)
def test_a_restriction_of_requests_that_cannot_be_understood_refuses_the_policy(http, at):
    with pytest.raises(Wrong) as caught:
        parsed({"http": http})
    assert caught.value.at == f"spec.ingress[0].{at}"


def test_a_side_knows_the_texts_that_its_sets_come_from():
    accounts = {"names": ["a", "b"], "selector": "x == 'y'"}
    side = {"selector": "has(p)", "notSelector": "has(q)", "namespaceSelector": "has(r)", "serviceAccounts": accounts}
    rule = parsed({"source": side, "destination": {"services": {"name": "web", "namespace": "shop"}}})
    assert rule.source.texts == PeerTexts("has(p)", "has(q)", "has(r)", ("a", "b"), "x == 'y'")
    assert rule.destination.texts == PeerTexts(service="web", service_namespace="shop")
    assert parsed({"source": {"selector": "has(p)"}}).source.texts == PeerTexts("has(p)")
    assert parsed({"source": {"nets": ["10.0.0.0/8"], "selector": ""}}).source.texts is None
    again = parsed({"source": side}).source.texts
    assert again is rule.source.texts  # many rules say the same: it is kept once
