"""Every parser of what a tenant writes: annotations, labels and ports of pods, policies, network sets, selectors,
Services with their EndpointSlices, podman's documents.

Rule: beyond the rule of ``targets``: a value keeps what its type promises; an error is one line of bounded length,
whatever was written; what ``calicoctl apply`` accepts, the agent can read; nothing multiplies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_netconf
from cni_calico.controllers.loadbalancer.rules import BadRequest, is_managed, parse_wish, read_service
from cni_calico.errors import CalicoError
from cni_calico.model.documents.codec import decode_endpoint
from cni_calico.model.documents.fields import Wrong
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.custom import read_object
from cni_calico.model.kubernetes.pods import read_namespace, read_pod, read_service_account
from cni_calico.model.kubernetes.policies import CLUSTER_NETWORK_POLICY, NETWORK_POLICY, read_stored_network_policy
from cni_calico.model.qos import BOUNDS
from cni_calico.model.selector_forms import (
    NAMESPACE,
    ORCHESTRATOR,
    SERVICE_ACCOUNT,
    normalized,
    parse_tree,
    requirements,
)
from cni_calico.model.selectors import parse_selector
from cni_calico.model.validation.check import check_resource
from cni_calico.model.validation.defaults import with_defaults
from cni_calico.netavark.documents import PORTS_MAX, parse_document, parse_membership, plan_network
from cni_calico.nodeagent.bgp.config.services import parse_service
from cni_calico.plugin.annotations import PREFIX, parse_pod_annotations
from cni_calico.policy.decode import decode_record, reduce_record
from cni_calico.policy.graph import Graph
from cni_calico.policy.kubernetes import MEMBERS_MAX, record_of
from cni_calico.policy.long_selectors import LONG, normalizing, parsing_tree
from cni_calico.policy.nodes import SLICE
from cni_calico.policy.records import Labelled, PolicyRecord, ServiceMembers, labelled_workload, parse_profile
from cni_calico.policy.steps import finish
from cni_calico.policy.wanted import WantedRule, WantedSide
from cni_calico.relay.reduction import reduce_account, reduce_pod

Refusals = (CalicoError, Wrong, BadRequest)
ERROR_MAX = 2000  # characters: it goes into logs, status files, metrics and Events
_SET_ID = re.compile(r"[a-z][A-Za-z0-9_.-]{0,62}")
_EVERYTHING = {
    "cniVersion": "1.1.0",
    "name": "net",
    "type": "calico",
    "datastore_type": "local",
    "datastore_path": "/somewhere",
    "ipam": {"type": "calico-ipam"},
}
_FEATURES = {"ip_addrs_no_ipam": True, "floating_ips": True}
_CONFIGURATIONS = [parse_netconf({**_EVERYTHING, "feature_control": given}, {}) for given in ({}, _FEATURES)]

POD_ANNOTATIONS = {
    **{
        f"{PREFIX}{name}": value
        for name, value in {
            "ipAddrsNoIpam": ["10.0.0.1", "fd00::1"],
            "ipv4pools": ["pool", "10.0.0.0/16"],
            "ipv6pools": ["fd00::/64"],
            "hwAddr": "02:00:00:00:00:01",
            "ipFamilies": ["IPv4", "IPv6"],
            "floatingIPs": ["192.0.2.1"],
            "allowedSourcePrefixes": ["10.1.0.0/16", "fd01::/64"],
        }.items()
    },
    "qos.projectcalico.org/ingressBandwidth": "10M",
    "qos.projectcalico.org/egressPacketRate": "1000",
    "qos.projectcalico.org/dscp": "46",
    "kubernetes.io/egress-bandwidth": "1Gi",
}
POD = {
    "metadata": {
        "name": "web-0",
        "namespace": "shop",
        "uid": "u",
        "labels": {"app": "web", "pcns.team": "x", NAMESPACE: "other", SERVICE_ACCOUNT: "admin"},
        "annotations": {
            "cni.projectcalico.org/podIP": "10.0.0.1/32",
            "cni.projectcalico.org/podIPs": "10.0.0.1/32,fd00::1/128",
            "cni.projectcalico.org/containerID": "c1",
            "cni.projectcalico.org/allowedSourcePrefixes": '["10.1.0.0/16"]',
            "cni.projectcalico.org/floatingIPs": '["192.0.2.1"]',
            "qos.projectcalico.org/ingressMaxConnections": "10",
            "k8s.v1.cni.cncf.io/network-status": "[]",
        },
    },
    "spec": {
        "nodeName": "here",
        "serviceAccountName": "web",
        "containers": [{"ports": [{"name": "http", "containerPort": 80, "protocol": "TCP", "hostPort": 80}]}],
        "initContainers": [{"ports": [{"name": "probe", "containerPort": 81}]}],
    },
    "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
}
KUBERNETES_POLICY = {
    "kind": "NetworkPolicy",
    "metadata": {"name": "p", "namespace": "shop"},
    "spec": {
        "podSelector": {
            "matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a", "b"]}],
        },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {
                "ports": [{"protocol": "TCP", "port": 80, "endPort": 90}, {"protocol": "UDP", "port": "dns"}],
                "from": [
                    {"namespaceSelector": {"matchLabels": {"team": "x"}}, "podSelector": {}},
                    {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
                ],
            }
        ],
        "egress": [{"to": [{"ipBlock": {"cidr": "fd00::/64"}}]}],
    },
}
CLUSTER_POLICY = {
    "kind": "ClusterNetworkPolicy",
    "metadata": {"name": "p"},
    "spec": {
        "tier": "Admin",
        "priority": 10,
        "subject": {"namespaces": {"matchLabels": {"team": "x"}}},
        "ingress": [
            {
                "name": "rule",
                "action": "Deny",
                "from": [{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}}],
                "protocols": [{"tcp": {"destinationPort": {"number": 80}}}, {"destinationNamedPort": "http"}],
            }
        ],
        "egress": [{"action": "Accept", "to": [{"networks": ["10.0.0.0/8"]}]}],
    },
}
_RULE = {
    "action": "Allow",
    "protocol": "TCP",
    "notProtocol": "SCTP",
    "ipVersion": 4,
    "source": {
        "selector": "app == 'a'",
        "notSelector": "has(b)",
        "namespaceSelector": "team in {'x'} && !global()",
        "nets": ["10.0.0.0/8"],
        "serviceAccounts": {"names": ["s"], "selector": "role == 'r'"},
    },
    "destination": {"ports": [80, "81:90", "http"], "notPorts": [82], "notNets": ["10.1.0.0/16"]},
    "metadata": {"annotations": {"why": "because"}},
}
CALICO_POLICY = {
    "apiVersion": "crd.projectcalico.org/v1",
    "kind": "NetworkPolicy",
    "metadata": {
        "name": "default.p",
        "namespace": "shop",
        "annotations": {"projectcalico.org/metadata": '{"name":"p","labels":{"a":"b"}}'},
    },
    "spec": {
        "tier": "default",
        "order": 10.5,
        "selector": "app == 'web'",
        "serviceAccountSelector": "role == 'r'",
        "types": ["Ingress", "Egress"],
        "ingress": [_RULE, {"action": "Deny", "protocol": "ICMP", "icmp": {"type": 8, "code": 0}}],
        "egress": [{"action": "Allow", "destination": {"services": {"name": "s", "namespace": "shop"}}}],
        "performanceHints": ["AssumeNeededOnEveryNode"],
    },
}
NETWORK_SET = {
    "apiVersion": "crd.projectcalico.org/v1",
    "kind": "NetworkSet",
    "metadata": {"name": "set", "namespace": "shop", "labels": {"role": "db", "pcns.team": "x", NAMESPACE: "other"}},
    "spec": {"nets": ["10.0.0.0/8", "192.0.2.1", "fd00::/64"]},
}
SERVICE = {
    "metadata": {
        "name": "s",
        "namespace": "shop",
        "uid": "u",
        "annotations": {
            "projectcalico.org/loadBalancerIPs": '["192.0.2.1", "fd00::1"]',
            "projectcalico.org/ipv4pools": '["pool"]',
            "projectcalico.org/ipv6pools": '["pool6"]',
        },
    },
    "spec": {
        "type": "LoadBalancer",
        "loadBalancerClass": "calico",
        "ipFamilies": ["IPv4", "IPv6"],
        "clusterIP": "10.96.0.1",
        "clusterIPs": ["10.96.0.1"],
        "externalIPs": ["192.0.2.9"],
        "externalTrafficPolicy": "Local",
    },
    "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
}
SLICE_OBJECT = {
    "metadata": {"name": "s-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "s"}},
    "addressType": "IPv4",
    "endpoints": [{"addresses": ["10.0.0.1", "a.example"], "conditions": {"ready": True}, "nodeName": "here"}],
    "ports": [{"name": "http", "port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}],
}
ACCOUNT = {"metadata": {"name": "shop", "namespace": "shop", "labels": {"team": "x", "projectcalico.org/name": "y"}}}
PODMAN = {
    "container_id": "c1",
    "network": {"name": "net", "options": {"mtu": "1400", "ipv4_pools": "a, b"}, "ipv6_enabled": True},
    "network_options": {"interface_name": "eth0", "static_ips": ["10.0.0.1"]},
    "port_mappings": [{"host_port": 8080, "container_port": 80, "protocol": "tcp,udp", "range": 2, "host_ip": ""}],
}


def of_json(check: Callable[[Mapping[str, Any]], object]) -> Callable[[bytes], None]:
    """``check`` given the object that the bytes are; an API server sends nothing else."""

    def parse(data: bytes) -> None:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return
        if isinstance(found, dict):
            with_short_errors(check, found)

    return parse


def with_short_errors(check: Callable[[Any], object], given: Any) -> None:
    try:
        check(given)
    except Refusals as e:
        assert_short(str(e))
        raise


def assert_short(text: str) -> None:
    assert len(text) <= ERROR_MAX, f"{len(text)} characters: {text[:200]}"
    assert not re.search(r"[\x00-\x1f]", text), f"more than a line: {text!r}"


# -- pods -------------------------------------------------------------------------------------------------------------


def check_annotations(given: Mapping[str, Any]) -> None:
    """Values that are no texts are given as JSON."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    owner = {"metadata": {"name": "web-0", "namespace": "shop", "annotations": texts}}
    for conf in _CONFIGURATIONS:
        refused = None
        for pod, namespace in ((owner, None), ({"metadata": {}}, owner)):
            try:
                request = parse_pod_annotations(pod, namespace, conf)
            except CalicoError as e:
                refused = e
                assert_short(f"{e} {e.details}")
                continue
            for text in request.ignored:
                assert_short(text)
            for addresses in (request.addresses, request.addresses_no_ipam):
                assert len({address.version for address in addresses}) == len(addresses)
            for address in (*request.addresses, *request.addresses_no_ipam, *request.floating_ips):
                assert not (address.is_multicast or address.is_loopback or address.is_unspecified), address
                assert not getattr(address, "scope_id", None)
            assert all("%" not in str(net) for net in request.source_prefixes), request.source_prefixes
            assert request.mac is None or (len(request.mac) == 6 and not request.mac[0] & 1)
            assert request.families is None or request.families <= {4, 6}
            assert all(BOUNDS[name][0] <= value <= BOUNDS[name][1] for name, value in request.qos.items())
    if refused is not None:
        raise refused


def check_pod(pod: Mapping[str, Any]) -> None:
    """Its own node's endpoint, and what other nodes hear of it through a relay."""
    found = read_pod(pod)
    reduced = reduce_pod(dict(pod))
    if found is None:
        assert reduced is None
        return
    key, record = found[0], decode_endpoint(*found)
    reduce_record(key, record)
    seen = labelled_workload(record)
    if seen is not None:
        labels = dict(seen.labels)
        assert labels[NAMESPACE] == key.namespace and labels[ORCHESTRATOR] == "k8s"
        assert labels.get(SERVICE_ACCOUNT, "") == record.service_account, "another's account"
        assert not any(name.startswith(("pcns.", "pcsa.")) for name in labels), "labels of another namespace"
    graph = Graph(lambda record: True)
    graph.put(key, record)
    graph.flush()
    assert not graph.problems, graph.problems
    for endpoint in graph.wanted().endpoints.values():
        for limits in (endpoint.ingress_limits, endpoint.egress_limits):
            assert all(n is None or 0 < n < 1 << 32 for n in (limits.packet_rate, limits.packet_burst))
    assert reduced is not None
    told = read_pod(reduced)
    assert told is not None and labelled_workload(decode_endpoint(*told)) == seen, "the relay tells something else"


def check_account(obj: Mapping[str, Any]) -> None:
    for read, kind in ((read_namespace, "Namespace"), (read_service_account, "ServiceAccount")):
        key, document = read(obj)
        parse_profile(key, record_of(key, document))
        reduced = reduce_account({"kind": kind, **obj})
        assert reduced is not None and read(reduced)[1]["spec"] == document["spec"]


# -- policies ---------------------------------------------------------------------------------------------------------


def _assert_policy(policy: PolicyRecord, written: int) -> None:
    rules = policy.wanted.rules()
    assert len(rules) <= written, "rules have multiplied"
    assert set(policy.sources) == {name for rule in rules for name in rule.set_ids()}
    assert all(_SET_ID.fullmatch(name) for name in policy.sources), policy.sources
    for rule in rules:
        _assert_rule(rule)


def _assert_rule(rule: WantedRule) -> None:
    assert set(rule.families) <= {4, 6}
    for protocol in (rule.protocol, rule.not_protocol):
        assert protocol is None or 1 <= protocol <= 255
    for icmp in (rule.icmp, rule.not_icmp):
        assert icmp is None or rule.protocol in (1, 58)
    for side in (rule.source, rule.destination):
        _assert_side(side, rule.protocol)


def _assert_side(side: WantedSide, protocol: int | None) -> None:
    for low, high in side.ports + side.not_ports:
        assert 0 <= low <= high <= 65535 and protocol in (6, 17, 132)
    assert all("%" not in str(net) for net in side.nets + side.not_nets)


def check_kubernetes_policy(obj: Mapping[str, Any]) -> None:
    key = ResourceKey(NETWORK_POLICY, "p", "shop")
    record, left_out = decode_record(key, obj)
    for text in left_out:
        assert_short(text)
    assert record is not None
    stored = with_defaults(read_stored_network_policy(obj).document)
    policy = reduce_record(key, record)
    assert isinstance(policy, PolicyRecord)
    _assert_policy(policy, len(json.dumps(obj)))
    kept = reduce_record(*_as_record(ResourceKey("NetworkPolicy", "knp.default.p", "shop"), stored))
    assert isinstance(kept, PolicyRecord) and kept.wanted.rules() == policy.wanted.rules(), "etcd has another policy"


def check_cluster_policy(obj: Mapping[str, Any]) -> None:
    key = ResourceKey(CLUSTER_NETWORK_POLICY, "p")
    record, left_out = decode_record(key, obj)
    for text in left_out:
        assert_short(text)
    if record is not None:
        policy = reduce_record(key, record)
        assert isinstance(policy, PolicyRecord)
        _assert_policy(policy, len(json.dumps(obj)))


def _as_record(key: ResourceKey, document: Mapping[str, Any]) -> tuple[ResourceKey, Any]:
    return key, decode_record(key, document)[0]


def check_calico_policy(obj: Mapping[str, Any]) -> None:
    for kind in ("NetworkPolicy", "GlobalNetworkPolicy"):
        policy = _check_stored({**obj, "kind": kind})
        if isinstance(policy, PolicyRecord):
            _assert_policy(policy, len(json.dumps(obj)))
            for text in policy.warnings:
                assert_short(text)


def check_network_set(obj: Mapping[str, Any]) -> None:
    for kind in ("NetworkSet", "GlobalNetworkSet"):
        found = _check_stored({**obj, "kind": kind})
        assert isinstance(found, Labelled)
        namespace = (obj.get("metadata") or {}).get("namespace")
        if kind == "NetworkSet" and namespace:
            labels = dict(found.labels)
            assert labels[NAMESPACE] == namespace
            assert not any(name.startswith(("pcns.", "pcsa.")) for name in labels), "labels of another namespace"
            assert ORCHESTRATOR not in labels and SERVICE_ACCOUNT not in labels, "a pod's labels"


def _check_stored(obj: Mapping[str, Any]) -> Any:
    """The record of a custom resource, as the graph keeps it; what may be stored must be readable."""
    key, document = read_object(obj)
    assert isinstance(key, ResourceKey)
    report = check_resource(document)
    for problem in report.problems + report.warnings:
        assert_short(str(problem))
    try:
        return reduce_record(*_as_record(key, document))
    except Refusals as e:
        assert report.problems, f"calicoctl accepts it, the agent cannot read it: {e}"
        raise


SAMPLES: tuple[dict[str, str], ...] = (
    {},
    *({"a": value} for value in ("", "b", "bc", "cb")),
    {"a": "b", "d": "e"},
    {"d": "f"},
    {NAMESPACE: "shop", "a": "b"},
)


def check_selector(data: bytes) -> None:
    def meaning(text: str) -> None:
        selector = parse_selector(text)
        normal = normalized(selector.tree)
        needed = requirements(selector.tree)
        for labels in SAMPLES:
            matches = selector.matches(labels)
            assert normal.matches(labels) == matches, (text, normal.text, labels)
            for one in needed if matches else ():
                assert one.label in labels and (one.values is None or labels[one.label] in one.values), (text, one)

    with_short_errors(meaning, data.decode("utf-8", "replace"))


def check_long_selector(data: bytes) -> None:
    """The second parser, in steps, which has the texts from LONG characters on."""
    text = data.decode("utf-8", "replace")
    for long in (text + " " * LONG, " || ".join([f"({text})"] * (2 + LONG // (len(text) + 6)))):
        assert len(long) >= LONG
        found = _outcome(lambda long=long: finish(parsing_tree(long)))
        expected = _outcome(lambda long=long: parse_tree(long))
        assert found == expected, long[:ERROR_MAX]
        if isinstance(found, str):
            assert len(found) <= ERROR_MAX and "\n" not in found
        else:
            assert finish(normalizing(found)).text == normalized(found).text, long[:ERROR_MAX]


def _outcome(parse: Callable[[], Any]) -> Any:
    """The tree, or the error's text."""
    try:
        return parse()
    except Refusals as e:
        return str(e)


# -- services ---------------------------------------------------------------------------------------------------------


def check_service(obj: Mapping[str, Any]) -> None:
    announced, problems = parse_service(obj, [SLICE_OBJECT])
    for problem in problems:
        assert_short(str(problem))
    assert announced is None or announced.cluster_ips
    service = read_service(obj)
    is_managed(service, "AllServices")
    wish = parse_wish(service)
    assert len({address.version for address in wish.addresses}) == len(wish.addresses)
    assert {address.version for address in wish.addresses} <= set(service.families)


def check_slice(obj: Mapping[str, Any]) -> None:
    for problem in parse_service(SERVICE, [obj])[1]:
        assert_short(str(problem))
    found, _ = decode_record(ResourceKey(SLICE, "s-1", "shop"), obj)
    if isinstance(found, ServiceMembers):
        assert len(found.ports) <= MEMBERS_MAX
        assert all(protocol in range(1, 256) and port in range(1, 65536) for _, protocol, port in found.ports)
        assert all(len(address) in (4, 16) for address in found.addresses)


# -- podman -----------------------------------------------------------------------------------------------------------


def check_network(document: JsonFields) -> None:
    network = document.section("network")
    assert plan_network(network)["subnets"] == [] and network.values.get("name") == plan_network(network).get("name")


def check_membership(document: JsonFields) -> None:
    mappings = parse_membership(document).portmap(None)["runtimeConfig"]["portMappings"]
    assert len(mappings) <= PORTS_MAX
    assert all(0 < mapping[end] < 65536 for mapping in mappings for end in ("hostPort", "containerPort"))


def check_podman(data: bytes) -> None:
    def documents(given: bytes) -> None:
        document = parse_document(given)
        refused = None
        for read in (check_network, check_membership):
            try:
                read(document)
            except CalicoError as e:
                refused = e
        if refused is not None:
            raise refused

    with_short_errors(documents, data)


TENANTS: dict[str, tuple[Any, Callable[[bytes], object]]] = {
    "a pod's annotations": (POD_ANNOTATIONS, of_json(check_annotations)),
    "a pod": (POD, of_json(check_pod)),
    "a namespace or an account": (ACCOUNT, of_json(check_account)),
    "a Kubernetes policy": (KUBERNETES_POLICY, of_json(check_kubernetes_policy)),
    "a cluster's policy": (CLUSTER_POLICY, of_json(check_cluster_policy)),
    "a Calico policy": (CALICO_POLICY, of_json(check_calico_policy)),
    "a network set": (NETWORK_SET, of_json(check_network_set)),
    "a selector's meaning": ("a == 'b' && !has(c) || d in {'e', 'f'}", check_selector),
    "a long selector": ("a == 'b' && !has(c) || d in {'e', 'f'}", check_long_selector),
    "a Service": (SERVICE, of_json(check_service)),
    "an EndpointSlice": (SLICE_OBJECT, of_json(check_slice)),
    "podman's document": (PODMAN, check_podman),
}
