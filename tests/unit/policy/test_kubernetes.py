"""Kubernetes' policies: verdicts against Kubernetes' own definition, form against what upstream stores."""

import json
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.errors import CorruptRecord
from cni_calico.model.documents import codec
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.pods import read_pod
from cni_calico.model.kubernetes.policies import PEERS, reading_network_policy
from cni_calico.model.resources import Metadata, WorkloadEndpoint
from cni_calico.policy.explain import Packet, decide
from cni_calico.policy.graph import Graph
from cni_calico.policy.kubernetes import (
    read_cluster_network_policy,
    read_namespace,
    read_network_policy,
    read_slice,
    read_stored_network_policy,
    record_of,
)
from cni_calico.policy.preserved import parse_value, render_value
from cni_calico.policy.records import named_port, parse_policy
from cni_calico.policy.sources import NodeSource

VECTORS = Path(__file__).resolve().parents[2] / "golden" / "policy"
NAMESPACES = {"a": {"team": "x"}, "b": {"team": "y", "kubernetes.io/metadata.name": "b"}}
PODS = {
    ("a", "p1"): ("10.0.0.1", {"app": "web"}),
    ("a", "p2"): ("10.0.0.2", {"app": "db", "tier": "1"}),
    ("b", "p3"): ("10.0.1.1", {"app": "web", "tier": "1"}),
    ("b", "p4"): ("10.0.1.2", {}),
}
PORTS = [
    {"name": "http", "containerPort": 80, "protocol": "TCP"},
    {"name": "dns", "containerPort": 53, "protocol": "UDP"},
]
OUTSIDE = "192.0.2.1"


# -- Kubernetes' definition, naively ----------------------------------------------------------------------------------


def label_match(selector, labels):
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for one in selector.get("matchExpressions", []):
        value, values = labels.get(one["key"]), one.get("values", [])
        holds = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not holds[one["operator"]]:
            return False
    return True


def peer_match(peer, own_namespace, address):
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        return address in ip_network(block["cidr"]) and not any(
            address in ip_network(net) for net in block.get("except", [])
        )
    for (namespace, _), (pod_address, labels) in PODS.items():
        if ip_address(pod_address) != address:
            continue
        if "namespaceSelector" in peer:
            if not label_match(peer["namespaceSelector"], NAMESPACES[namespace]):
                continue
        elif namespace != own_namespace:
            continue
        if label_match(peer.get("podSelector", {}), labels):
            return True
    return False


def port_match(entry, packet):
    protocol = {"TCP": 6, "UDP": 17, "SCTP": 132}[entry.get("protocol", "TCP")]
    if protocol != packet.protocol:
        return False
    port = entry.get("port")
    if port is None:
        return True
    if isinstance(port, str):
        named = {("http", 6): 80, ("dns", 17): 53}.get((port, protocol))
        is_pod = str(packet.destination) in {address for address, _ in PODS.values()}
        return is_pod and packet.destination_port == named
    return port <= packet.destination_port <= entry.get("endPort", port)


def expected(policies, pod, direction, packet):
    namespace, _ = pod
    labels, other = PODS[pod][1], packet.source if direction == "ingress" else packet.destination
    isolated, allowed = False, False
    for policy in policies:
        spec = policy["spec"]
        types = spec.get("policyTypes") or ["Ingress"]
        if policy["metadata"]["namespace"] != namespace or not label_match(spec.get("podSelector", {}), labels):
            continue
        if direction.capitalize() not in types:
            continue
        isolated = True
        for rule in spec.get(direction, []):
            peers = rule.get("from" if direction == "ingress" else "to", [])
            from_peer = not peers or any(peer_match(peer, namespace, other) for peer in peers)
            ports = rule.get("ports", [])
            if from_peer and (not ports or any(port_match(entry, packet) for entry in ports)):
                allowed = True
    return allowed or not isolated


# -- random policies --------------------------------------------------------------------------------------------------

selectors = st.one_of(
    st.just({}),
    st.builds(lambda v: {"matchLabels": {"app": v}}, st.sampled_from(["web", "db"])),
    st.builds(
        lambda op, key: {
            "matchExpressions": [{"key": key, "operator": op, **({"values": ["web", "1"]} if "In" in op else {})}]
        },
        st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
        st.sampled_from(["app", "tier"]),
    ),
)
spaces = st.sampled_from([{}, {"matchLabels": {"team": "x"}}, {"matchLabels": {"kubernetes.io/metadata.name": "b"}}])
peers = st.one_of(
    st.builds(lambda s: {"podSelector": s}, selectors),
    st.builds(lambda s: {"namespaceSelector": s}, spaces),
    st.builds(lambda s, n: {"podSelector": s, "namespaceSelector": n}, selectors, spaces),
    st.sampled_from(
        [{"ipBlock": {"cidr": "10.0.0.0/23", "except": ["10.0.1.0/25"]}}, {"ipBlock": {"cidr": "192.0.2.0/24"}}]
    ),
)
ports = st.sampled_from(
    [
        {"port": 80},
        {"port": 79, "endPort": 81},
        {"protocol": "UDP"},
        {"port": "http"},
        {"protocol": "UDP", "port": "dns"},
        {"protocol": "UDP", "port": 53},
        {},
    ]
)


def rules(peer_field):
    return st.lists(
        st.builds(
            lambda found, entries: {name: value for name, value in ((peer_field, found), ("ports", entries)) if value},
            st.lists(peers, max_size=2),
            st.lists(ports, max_size=3),
        ),
        max_size=2,
    )


@st.composite
def network_policies(draw, index):
    return {
        "metadata": {"name": f"n{index}", "namespace": draw(st.sampled_from(["a", "b"]))},
        "spec": {
            "podSelector": draw(selectors),
            "policyTypes": draw(st.sampled_from([[], ["Ingress"], ["Egress"], ["Ingress", "Egress"]])),
            "ingress": draw(rules("from")),
            "egress": draw(rules("to")),
        },
    }


def graph_of(converted):
    graph = Graph(lambda record: True)
    for name, labels in NAMESPACES.items():
        key, document = read_namespace({"metadata": {"name": name, "labels": labels}})
        graph.put(key, record_of(key, document))
    for (namespace, name), (address, labels) in PODS.items():
        found = read_pod(
            {
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": {"nodeName": "n", "containers": [{"ports": PORTS}]},
                "status": {"podIP": address},
            }
        )
        assert found is not None
        graph.put(found[0], codec.decode_endpoint(*found))
    for policy in converted:
        assert policy.left_out == ()
        graph.put(policy.key, record_of(policy.key, policy.document))
    graph.flush()
    assert not graph.problems
    return graph


PACKETS = [
    Packet(ip_address(source), ip_address(destination), protocol, 40000, port)
    for addresses in [[*(address for address, _ in PODS.values()), OUTSIDE]]
    for source in addresses
    for destination in addresses
    for protocol, port in ((6, 80), (6, 81), (6, 443), (17, 53), (17, 80))
]


def check(policies, converted):
    wanted = graph_of(converted).wanted()
    for key in wanted.endpoints:
        pod = key.namespace, wanted.endpoints[key].workload.partition("/")[2]
        for packet in PACKETS:
            for direction, own in (("ingress", packet.destination), ("egress", packet.source)):
                if str(own) == PODS[pod][0]:
                    found = decide(wanted, key, direction, packet).verdict == "Allow"
                    assert found is expected(policies, pod, direction, packet), (pod, direction, packet)


@settings(max_examples=60, deadline=None)
@given(st.tuples(network_policies(0), network_policies(1), network_policies(2)))
def test_verdicts_are_those_of_kubernetes(policies):
    check(policies, [read_network_policy(policy) for policy in policies])


@settings(max_examples=10, deadline=None)
@given(st.tuples(network_policies(0), network_policies(1)))
def test_what_is_stored_in_etcd_gives_the_same_verdicts(policies):
    check(policies, [read_stored_network_policy(policy) for policy in policies])


def test_what_is_stored_is_what_upstream_stores():
    stored = next(
        resource["spec"]
        for resource in json.loads((VECTORS / "02-kubernetes-style.input.json").read_text())["resources"]
        if resource["metadata"]["name"] == "knp.default.web"
    )
    app = {"podSelector": {"matchLabels": {"app": "a"}}}
    policy = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "b"}},
            "policyTypes": ["Egress", "Ingress"],
            "ingress": [
                {"from": [app], "ports": [{"port": 80}, {"port": 8000, "endPort": 8010}]},
                {
                    "from": [{**app, "namespaceSelector": {"matchLabels": {"team": "y"}}}],
                    "ports": [{"port": "web"}],
                },
                {
                    "from": [{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25", "192.0.2.7/32"]}}],
                    "ports": [{"protocol": "TCP"}],
                },
            ],
            "egress": [
                {"to": [{"podSelector": {"matchLabels": {"role": "front"}}}]},
            ],
        },
    }
    found = read_stored_network_policy(policy)
    assert (found.key.kind, found.key.name, found.key.namespace) == ("NetworkPolicy", "knp.default.web", "default")
    ours = found.document["spec"]
    without_empty = [{k: v for k, v in rule.items() if v != {}} for rule in ours["ingress"] + ours["egress"]]
    theirs = [{k: v for k, v in rule.items() if v != {}} for rule in stored["ingress"] + stored["egress"][1:]]
    assert without_empty == theirs
    assert {**ours, "ingress": 0, "egress": 0} == {**stored, "ingress": 0, "egress": 0}


@pytest.mark.parametrize(
    ("ports", "merged"),
    [
        ([{"port": 81}, {"port": 80}, {"port": 82}, {"port": "web"}, {"port": 9}], ["web", 9, "80:82"]),
        ([{"port": 80}, {}], []),
        ([{"port": 1, "endPort": 5}, {"port": 4, "endPort": 8}], ["1:8"]),
        ([{"port": "80"}], [80]),
    ],
)
def test_ports_are_merged(ports, merged):
    policy = {"metadata": {"name": "p", "namespace": "a"}, "spec": {"ingress": [{"ports": ports}]}}
    (rule,) = read_network_policy(policy).document["spec"]["ingress"]
    assert rule["protocol"] == "TCP"
    assert rule["destination"].get("ports", []) == merged


@pytest.mark.parametrize(
    "peer",
    [
        {"ipBlock": {"cidr": "10.0.0.0"}},
        {"ipBlock": {"cidr": "10.0.0.0/33"}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["x"]}},
        {},
        {"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}},
        {"podSelector": {"matchLabels": {"a": "' || all() || a == '"}}},
    ],
)
def test_a_rule_that_cannot_be_converted_allows_nothing(peer):
    spec = {"podSelector": {}, "ingress": [{"from": [peer]}, {"ports": [{"port": 80}]}]}
    found = read_network_policy({"metadata": {"name": "p", "namespace": "a"}, "spec": spec})
    assert len(found.document["spec"]["ingress"]) == 1
    assert "spec.ingress[0]" in found.left_out[0]


def test_a_policy_whose_pods_cannot_be_read_is_refused():
    with pytest.raises(CorruptRecord, match=r"NetworkPolicy a/p.*podSelector"):
        read_network_policy(
            {
                "kind": "NetworkPolicy",
                "metadata": {"name": "p", "namespace": "a"},
                "spec": {"podSelector": {"matchLabels": {"a b": "c"}}},
            }
        )


# -- ClusterNetworkPolicy ---------------------------------------------------------------------------------------------


def cluster_policy(**spec):
    return {"metadata": {"name": "c"}, "spec": {"tier": "Admin", "priority": 5, "subject": {"namespaces": {}}, **spec}}


def test_cluster_policy():
    found = read_cluster_network_policy(
        cluster_policy(
            tier="Baseline",
            subject={
                "pods": {
                    "namespaceSelector": {"matchLabels": {"team": "x"}},
                    "podSelector": {"matchLabels": {"app": "web"}},
                }
            },
            ingress=[
                {
                    "name": "from b",
                    "action": "Pass",
                    "from": [{"namespaces": {"matchLabels": {"team": "y"}}}],
                    "protocols": [
                        {"tcp": {"destinationPort": {"number": 80}}},
                        {"tcp": {"destinationPort": {"range": {"start": 81, "end": 90}}}},
                        {"udp": {}},
                        {"destinationNamedPort": "http"},
                    ],
                }
            ],
        )
    )
    assert found is not None
    assert found.left_out == ()
    spec = found.document["spec"]
    assert (spec["tier"], spec["order"], spec["types"]) == ("kube-baseline", 5, ["Ingress"])
    assert spec["selector"] == "projectcalico.org/orchestrator == 'k8s' && app == 'web'"
    assert spec["namespaceSelector"] == "team == 'x'"
    assert [(rule.get("protocol"), rule["destination"].get("ports")) for rule in spec["ingress"]] == [
        ("TCP", ["80:90"]),
        ("UDP", None),
        (None, ["http"]),
    ]
    for rule in spec["ingress"]:
        assert rule["action"] == "Pass"
        assert rule["metadata"] == {"annotations": {"name": "from b"}}
        assert rule["source"] == {
            "selector": "projectcalico.org/orchestrator == 'k8s'",
            "namespaceSelector": "team == 'y'",
        }


def test_cluster_policies_come_before_and_after_the_others():
    """Admin denies what a NetworkPolicy allows; Baseline decides only what nobody else does."""
    peer = {"namespaces": {}}
    deny = {"action": "Deny", "from": [peer], "protocols": [{"tcp": {"destinationPort": {"number": 80}}}]}
    admin = read_cluster_network_policy(cluster_policy(ingress=[deny]))
    baseline = read_cluster_network_policy(
        {**cluster_policy(tier="Baseline", ingress=[{"action": "Deny", "from": [peer]}]), "metadata": {"name": "z"}}
    )
    allow_web = read_network_policy(
        {
            "metadata": {"name": "n", "namespace": "a"},
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{}]},
        }
    )
    assert admin is not None and baseline is not None
    graph = graph_of([admin, baseline, allow_web])
    for name, order in (("kube-admin", 1000), ("default", 1000000), ("kube-baseline", 10000000)):
        spec = {"order": order, "defaultAction": "Deny" if name == "default" else "Pass"}
        key = codec.ResourceKey("Tier", name)
        graph.put(key, record_of(key, {"kind": "Tier", "metadata": {"name": name}, "spec": spec}))
    graph.flush()
    wanted = graph.wanted()
    p1, p2 = sorted(wanted.endpoints, key=str)[:2]
    found = {}
    for key in (p1, p2):
        address = PODS[key.namespace, wanted.endpoints[key].workload.partition("/")[2]][0]
        for port in (80, 81):
            packet = Packet(ip_address("10.0.1.2"), ip_address(address), 6, 40000, port)
            decision = decide(wanted, key, "ingress", packet)
            found[wanted.endpoints[key].workload, port] = (decision.verdict, decision.tier)
    assert found == {
        ("a/p1", 80): ("Deny", "kube-admin"),
        ("a/p1", 81): ("Allow", "default"),
        ("a/p2", 80): ("Deny", "kube-admin"),
        ("a/p2", 81): ("Deny", "kube-baseline"),
    }


@pytest.mark.parametrize(
    ("action", "rule"),
    [
        ("Accept", {"from": [{"nodes": {}}]}),
        ("Deny", {"from": [{"nodes": {}}]}),
        ("Pass", {"from": [{"pods": {}, "namespaces": {}}]}),
        ("Deny", {"from": [{"networks": ["10.0.0.0/8"]}]}),
        ("Accept", {"from": []}),
        ("Deny", {"from": [{"namespaces": {}}], "protocols": [{"icmp": {}}]}),
        ("Deny", {"from": [{"namespaces": {}}], "protocols": [{"tcp": {"sourcePort": 1}}]}),
    ],
)
def test_what_is_not_supported_closes(action, rule):
    found = read_cluster_network_policy(cluster_policy(ingress=[{"action": action, **rule}]))
    assert found is not None
    rules = found.document["spec"].get("ingress", [])
    if action == "Accept":
        assert rules == []
    else:
        assert rules == [{"action": "Deny", "source": {}, "destination": {}}]
    assert "spec.ingress[0]" in found.left_out[0]
    assert found.document["spec"]["types"] == ["Ingress"]


def test_egress_to_networks():
    rule = {"action": "Deny", "to": [{"networks": ["10.0.0.0/8", "fd00::/8"]}]}
    found = read_cluster_network_policy(cluster_policy(egress=[rule]))
    assert found is not None
    assert found.document["spec"]["egress"][0]["destination"] == {"nets": ["10.0.0.0/8", "fd00::/8"]}


@pytest.mark.parametrize(
    ("nodes", "selector"),
    [
        ({}, "all()"),
        ({"matchLabels": {"role": "db"}}, "role == 'db'"),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, "has(zone)"),
    ],
)
def test_egress_to_nodes(nodes, selector):
    rule = {"action": "Deny", "to": [{"nodes": nodes}], "protocols": [{"tcp": {"destinationPort": {"number": 80}}}]}
    found = read_cluster_network_policy(cluster_policy(egress=[rule]))
    assert found is not None and found.left_out == ()
    assert [one["destination"] for one in found.document["spec"]["egress"]] == [
        {"nodeSelector": selector, "ports": [80]}
    ]
    parsed = parse_policy(found.key, record_of(found.key, found.document))
    assert [type(source) for source in parsed.sources.values()] == [NodeSource]
    assert parse_value(render_value(parsed)) == parsed
    named = {**rule, "protocols": [{"destinationNamedPort": "8080-web"}]}
    closed = read_cluster_network_policy(cluster_policy(egress=[named]))
    assert closed is not None and "where a peer is nodes" in closed.left_out[0]
    assert closed.document["spec"]["egress"] == [{"action": "Deny", "source": {}, "destination": {}}]


def test_a_tier_that_is_not_known_is_not_ours():
    assert read_cluster_network_policy(cluster_policy(tier="Other", ingress=[])) is None


# -- services ---------------------------------------------------------------------------------------------------------


def test_a_slice_gives_all_its_addresses_ready_or_not():
    key, members = read_slice(
        {
            "metadata": {"name": "svc-x", "namespace": "a", "labels": {"kubernetes.io/service-name": "svc"}},
            "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": False}},
                {"addresses": ["example.org", "fd00::1"]},
            ],
            "ports": [
                *({"port": 80}, {"name": "any"}, {"port": 53, "protocol": "UDP"}),
                *({"port": number} for number in (-1, 0, 65536, 1 << 80)),
            ],
        }
    )
    assert (key.kind, key.namespace, key.name) == ("EndpointSlice", "a", "svc-x")
    assert members is not None
    four, six = ip_address("10.0.0.1").packed, ip_address("fd00::1").packed
    assert members.addresses == {four, six}
    assert members.ports == {(four, 6, 80), (four, 17, 53), (six, 6, 80), (six, 17, 53)}
    assert read_slice({"metadata": {"name": "x", "namespace": "a"}})[1] is None


def test_a_record_nobody_thought_of_is_a_problem_of_its_own() -> None:
    def is_local(endpoint: object) -> bool:
        raise OverflowError("too large")

    graph, key = Graph(is_local), ResourceKey("WorkloadEndpoint", "w", "a")
    graph.put(key, WorkloadEndpoint(Metadata("w", "a"), "k8s", "n", "eth0", "cali1"))
    assert graph.problems == {key: "cannot be understood: OverflowError: too large"}
    graph.flush()
    graph.put(key, None)
    assert graph.problems == {}


def test_a_protocol_of_many_digits_names_no_port() -> None:
    assert named_port("x", "9" * 10_000, 80) is None
    assert named_port("x", "132", 80) is not None


@given(st.integers(0, 3), st.lists(st.sampled_from(["TCP", "UDP", "SCTP"]), max_size=4))
def test_a_policy_in_steps_is_the_same(hundreds, protocols):
    """No step makes more than PEERS rules, so that a policy of 1 MB holds nobody up."""
    peers = [{"podSelector": {"matchLabels": {"a": f"{i}"}}} for i in range(100 * hundreds + 7)]
    ports = [{"protocol": protocol, "port": 1} for protocol in protocols]
    spec = {"podSelector": {}, "ingress": [{"from": peers, "ports": ports}], "egress": [{"to": peers}, {"to": [{}]}]}
    policy = {"metadata": {"name": "p", "namespace": "n"}, "spec": spec}
    steps, count = reading_network_policy(policy), 0
    while True:
        try:
            next(steps)
        except StopIteration as e:
            found = e.value
            break
        count += 1
    assert found == read_network_policy(policy) and len(found.left_out) == 1
    rules = sum(len(found.document["spec"][way]) for way in ("ingress", "egress"))
    assert rules == len(peers) * (1 + max(1, len(set(protocols)))) and count >= rules / PEERS
