"""Documents as records of the graph, random ones, and packets to try them with."""

import json
from ipaddress import ip_address

from hypothesis import strategies as st

from cni_calico.model.documents import codec
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.nodes import KUBE_LABELS
from cni_calico.model.resources import Metadata, Resource
from cni_calico.policy.explain import Packet
from cni_calico.policy.graph import Graph
from cni_calico.policy.records import ServiceMembers, labelled_node
from tests.unit.policy.naive import packet

NODE, UPLINK = "here", "uplink"


def record_of(key, document):
    """The record that the graph is given for a document; ``key`` is (kind, namespace, name)."""
    kind, namespace, name = key
    if document is None:
        return None
    spec = document["spec"]
    if kind == "WorkloadEndpoint":
        return codec.decode_endpoint(ResourceKey(kind, name, namespace), document)
    if kind == "EndpointSlice":
        addresses = frozenset(ip_address(text).packed for text in spec["addresses"])
        ports = frozenset((address, *port) for address in addresses for port in spec["ports"])
        return ServiceMembers(namespace, spec["service"], addresses, ports)
    if kind == "Node":
        return labelled_node(document)
    metadata = Metadata(name, namespace, labels=document["metadata"].get("labels", {}))
    return Resource(kind, metadata, spec)


def put(graph, key, document):
    graph.put(ResourceKey(key[0], key[2], key[1]), record_of(key, document))


def graph_of(documents):
    graph = Graph(lambda record: record.node == NODE, lambda host: host.node == NODE)
    for key in documents:
        put(graph, key, documents[key])
    return graph


def as_packet(raw):
    return Packet(raw["source"], raw["destination"], raw["protocol"], raw["sport"], raw["dport"], raw["icmp"])


# -- random documents -------------------------------------------------------------------------------------------------

ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2", "192.0.2.1", "fd00::1", "fd00::2"]
NETS = ["10.0.0.0/31", "10.0.0.0/16", "10.0.1.0/24", "0.0.0.0/0", "fd00::/64", "::/0", "10.0.0.2/32", "10.0.1.0/25"]
RULE_NETS = [*NETS, "10.0.1.1", "fd00::1"]  # an address without prefix length is the whole address
NAMESPACES = ["a", "b"]
PROFILES = ["kns.a", "kns.b", "ksa.a.s", "own"]
PORT_NAMES = ["web", "dns"]
LABELS = st.dictionaries(st.sampled_from(["x", "y", "pcns.team"]), st.sampled_from(["1", "2"]), max_size=2)

_tests = st.sampled_from(
    [
        "x == '1'",
        "x == '2'",
        "y in {'1', '2'}",
        "has(x)",
        "!has(y)",
        "x != '1'",
        "y not in {'2'}",
        "all()",
        "team == '1'",
        "x starts with '1'",
        "pcns.team == '1'",
        "projectcalico.org/namespace == 'a'",
        "has(team)",
    ]
)
_accounts = st.sampled_from(
    [{"names": ["s"]}, {"selector": "team == '1'"}, {"names": ["s"], "selector": "has(x)"}],
)
SELECTORS = st.one_of(
    _tests,
    st.tuples(_tests, st.sampled_from(["&&", "||"]), _tests).map(lambda parts: "({}) {} ({})".format(*parts)),
    _tests.map(lambda text: f"!({text})"),
)
SPACES = st.sampled_from(["all()", "global()", "team == '1'", "has(team)", "!has(team)", "team == '2' || global()"])


def some(strategy, *, of=4):
    """Mostly absent."""
    return st.integers(0, of - 1).flatmap(lambda n: strategy if n == 0 else st.none())


def document(spec, labels=None):
    present = {field: value for field, value in spec.items() if value is not None}
    return {"metadata": {"labels": labels or {}}, "spec": present}


@st.composite
def peers(draw, protocol, namespace, destination):
    ports = st.lists(
        st.sampled_from([80, "80:90", "443", *PORT_NAMES] if protocol in ("TCP", "UDP") else PORT_NAMES),
        min_size=1,
        max_size=2,
    )
    with_ports = protocol in (None, "TCP", "UDP")
    peer = {
        "selector": draw(some(SELECTORS)),
        "notSelector": draw(some(SELECTORS, of=8)),
        "namespaceSelector": draw(some(SPACES, of=6)),
        "serviceAccounts": draw(
            some(
                st.sampled_from(
                    [{"names": ["s"]}, {"selector": "team == '1'"}, {"names": ["s"], "selector": "has(x)"}]
                ),
                of=8,
            )
        ),
        "nets": draw(some(st.lists(st.sampled_from(RULE_NETS), min_size=1, max_size=2), of=6)),
        "notNets": draw(some(st.lists(st.sampled_from(RULE_NETS), min_size=1, max_size=2), of=8)),
        "ports": draw(some(ports, of=3)) if with_ports else None,
        "notPorts": draw(some(ports, of=8)) if with_ports else None,
        "services": draw(some(st.just({"name": "svc", "namespace": namespace or "a"}), of=8)),
    }
    if not any(
        isinstance(port, str) and port.isalpha() for field in ("ports", "notPorts") for port in peer[field] or ()
    ):
        peer["nodeSelector"] = draw(some(_tests, of=8))
    return {field: value for field, value in peer.items() if value is not None}


@st.composite
def rules(draw, namespace):
    protocol = draw(st.sampled_from([None, "TCP", "TCP", "UDP", "ICMP", 6 if draw(st.booleans()) else "ICMPv6"]))
    icmp = some(st.sampled_from([{"type": 8}, {"type": 8, "code": 0}, {"type": 8, "code": 1}]), of=2)
    rule = {
        "action": draw(st.sampled_from(["Allow", "Allow", "Deny", "Pass", "Log"])),
        "protocol": protocol,
        "notProtocol": draw(some(st.sampled_from(["TCP", 17]), of=8)),
        "ipVersion": draw(some(st.sampled_from([4, 6]), of=8)),
        "icmp": draw(icmp) if protocol in ("ICMP", "ICMPv6") else None,
        "notICMP": draw(icmp) if protocol in ("ICMP", "ICMPv6") else None,
        "source": draw(some(peers(protocol, namespace, False), of=2)),
        "destination": draw(some(peers(protocol, namespace, True), of=2)),
    }
    return {field: value for field, value in rule.items() if value is not None}


@st.composite
def policies(draw, namespace):
    spec = {
        "tier": draw(st.sampled_from([None, "default", "one", "two"])),
        "order": draw(st.sampled_from([None, 1, 1.5, 2])),
        "selector": draw(some(SELECTORS, of=2)),
        "serviceAccountSelector": draw(some(st.sampled_from(["all()", "team == '1'"]), of=8)),
        "namespaceSelector": None if namespace else draw(some(SPACES)),
        "types": draw(st.sampled_from([None, ["Ingress"], ["Egress"], ["Ingress", "Egress"]])),
        "ingress": draw(st.lists(rules(namespace), max_size=2)),
        "egress": draw(st.lists(rules(namespace), max_size=2)),
        "performanceHints": draw(some(st.just(["AssumeNeededOnEveryNode"]), of=8)),
    }
    kind = draw(some(st.sampled_from(["applyOnForward", "preDNAT", "doNotTrack"]), of=2))
    if kind is not None and not namespace:
        spec |= {"applyOnForward": True, kind: True}
        if kind == "preDNAT":
            spec |= {"types": ["Ingress"], "egress": []}
    return document(spec)


_named = st.builds(
    lambda name, protocol, port: {"name": name, "protocol": protocol, "port": port},
    st.sampled_from(PORT_NAMES),
    st.sampled_from(["TCP", "UDP"]),
    st.sampled_from([80, 53]),
)


@st.composite
def workloads(draw, name):
    spec = {
        "orchestrator": "k8s",
        "node": NODE if name.startswith("l") else "there",
        "pod": name,
        "endpoint": "eth0",
        "interfaceName": "cali1" if name in ("l1", "l2") else f"cali{name}",
        "ipNetworks": [
            f"{text}/128" if ":" in text else f"{text}/32"
            for text in draw(st.lists(st.sampled_from(ADDRESSES), max_size=2, unique=True))
        ],
        "profiles": draw(st.lists(st.sampled_from(PROFILES), max_size=2, unique=True)),
        "serviceAccountName": draw(st.sampled_from(["", "s", "t"])),
        "ports": draw(st.lists(_named, max_size=2)),
    }
    return document(spec, draw(LABELS))


def profiles():
    return st.builds(
        lambda ingress, egress, labels: document({"ingress": ingress, "egress": egress, "labelsToApply": labels}),
        st.lists(rules(""), max_size=2),
        st.lists(rules(""), max_size=2),
        st.dictionaries(st.sampled_from(["x", "pcns.team", "pcsa.team", "pcsa.x"]), st.sampled_from(["1", "2"])),
    )


_tiers = st.builds(
    lambda order, action: document({"order": order, "defaultAction": action}),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([None, "Deny", "Pass"]),
)
_network_sets = st.builds(
    lambda nets, labels: document({"nets": nets}, labels),
    st.lists(st.sampled_from([*NETS, "10.0.1.1"]), max_size=3),
    LABELS,
)


def hosts(name):
    return st.builds(
        lambda interface, addresses, ports, profiles, labels: document(
            {
                "node": "there" if name == "hremote" else NODE,
                "interfaceName": "*" if name == "hany" else interface if interface or addresses else UPLINK,
                "expectedIPs": addresses,
                "ports": ports,
                "profiles": profiles,
            },
            labels,
        ),
        st.sampled_from(["", UPLINK]),
        st.lists(st.sampled_from(ADDRESSES), max_size=2, unique=True),
        st.lists(_named, max_size=1),
        st.lists(st.sampled_from(PROFILES), max_size=2, unique=True),
        LABELS,
    )


_slices = st.builds(
    lambda addresses, ports: document({"service": "svc", "addresses": addresses, "ports": ports}),
    st.lists(st.sampled_from(ADDRESSES), max_size=2, unique=True),
    st.lists(st.sampled_from([(6, 80), (17, 53), (6, 443)]), max_size=2),
)


@st.composite
def nodes(draw):
    """The labels that count are those that Kubernetes has; addresses of other kinds than these two do not."""
    kinds = st.sampled_from(["InternalIP", "ExternalIP", "CalicoNodeIP"])
    listed = draw(st.lists(st.tuples(kinds, st.sampled_from([*ADDRESSES, "a-name"])), max_size=3))
    labels = draw(LABELS)
    given = document({"addresses": [{"type": kind, "address": text} for kind, text in listed]}, labels | {"x": "2"})
    given["metadata"]["annotations"] = {KUBE_LABELS: json.dumps(labels)}
    return given


def keys():
    namespaced = [
        (kind, namespace, name)
        for namespace in NAMESPACES
        for kind, names in (
            ("WorkloadEndpoint", ["l1", "l2", "l3", "r1", "r2"]),
            ("NetworkPolicy", ["p", "q"]),
            ("KubernetesNetworkPolicy", ["p"]),
            ("NetworkSet", ["s"]),
            ("EndpointSlice", ["s1", "s2"]),
        )
        for name in names
    ]
    return namespaced + [
        (kind, "", name)
        for kind, names in (
            ("GlobalNetworkPolicy", ["p", "q", "r"]),
            ("KubernetesClusterNetworkPolicy", ["k"]),
            ("StagedGlobalNetworkPolicy", ["p"]),
            ("GlobalNetworkSet", ["s"]),
            ("Node", ["here", "there"]),
            ("HostEndpoint", ["h", "hany", "hremote"]),
            ("Profile", PROFILES),
            ("Tier", ["default", "one"]),
        )
        for name in names
    ]


def documents_for(key):
    kind, namespace, name = key
    if kind == "WorkloadEndpoint":
        return workloads(name)
    if kind.endswith("Policy"):
        return policies(namespace)
    if kind == "HostEndpoint":
        return hosts(name)
    return {
        "Profile": profiles(),
        "Tier": _tiers,
        "NetworkSet": _network_sets,
        "GlobalNetworkSet": _network_sets,
        "EndpointSlice": _slices,
        "Node": nodes(),
    }[kind]


PACKETS = [
    packet(source, destination, protocol, sport, dport, icmp)
    for source in ADDRESSES
    for destination in ADDRESSES
    if (":" in source) == (":" in destination)
    for protocol, sport, dport, icmp in (
        (6, 40000, 80, (0, 0)),
        (6, 80, 443, (0, 0)),
        (17, 40000, 53, (0, 0)),
        (58 if ":" in source else 1, 0, 0, (8, 0)),
    )
]

# TCP without any flag: connection tracking calls it invalid
INVALID = [{**one, "invalid": True} for one in PACKETS if one["protocol"] == 6 and one["dport"] == 80]
