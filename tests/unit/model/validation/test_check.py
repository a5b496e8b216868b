"""Validation: every rule has a resource that breaks it and nothing else; good ones pass; nothing ever raises."""

import copy
import json
import pathlib
from ipaddress import ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.model.documents import codec
from cni_calico.model.keys import CLUSTER_KINDS, NAMESPACED_KINDS, ResourceKey
from cni_calico.model.kubernetes import custom as crd
from cni_calico.model.resources import IPPool, Metadata
from cni_calico.model.validation.check import InvalidResource, check_resource, require_valid
from cni_calico.model.validation.defaults import with_defaults
from cni_calico.model.validation.felix_fields import KNOWN

VECTORS = pathlib.Path(__file__).parents[3] / "golden" / "vectors"


def resource(kind, spec, name="x", **metadata):
    namespace = {"namespace": "ns"} if kind in NAMESPACED_KINDS else {}
    return {
        "apiVersion": "projectcalico.org/v3",
        "kind": kind,
        "metadata": {"name": name} | namespace | metadata,
        "spec": spec,
    }


def problems(document, **context):
    return [str(problem) for problem in check_resource(document, **context).problems]


GOOD = {
    "IPPool": {"cidr": "10.0.0.0/16", "ipipMode": "CrossSubnet", "nodeSelector": "!all()", "blockSize": 32},
    "IPReservation": {"reservedCIDRs": ["10.0.0.0/30", "10.0.0.9", "fd00::/120"]},
    "Node": {
        "bgp": {
            "ipv4Address": "10.0.0.1/24",
            "ipv6Address": "fd00::1",
            "asNumber": "1.10",
            "ipv4IPIPTunnelAddr": "10.1.1.1",
            "routeReflectorClusterID": "1.0.0.1",
        },
        "ipv6VXLANTunnelAddr": "fd00::2",
        "vxlanTunnelMACAddr": "66:0a:00:00:00:01",
        "orchRefs": [{"nodeName": "x", "orchestrator": "k8s"}],
    },
    "BGPPeer": {
        "peerIP": "10.0.0.1:1790",
        "asNumber": 64512,
        "node": "n",
        "password": {"secretKeyRef": {"name": "s", "key": "k"}},
        "maxRestartTime": "1m30s",
        "ttlSecurity": 2,
        "filters": ["f"],
    },
    "BGPConfiguration": {
        "listenPort": 179,
        "communities": [{"name": "c", "value": "64512:1"}],
        "prefixAdvertisements": [{"cidr": "10.0.0.0/8", "communities": ["c", "1:2:3"]}],
        "serviceClusterIPs": [{"cidr": "10.96.0.0/12"}],
        "ignoredInterfaces": ["eth9"],
        "ipv4NormalRoutePriority": 1024,
        "ipv6NormalRoutePriority": 2147483646,
    },
    "BGPFilter": {
        "exportV4": [{"cidr": "10.0.0.0/8", "matchOperator": "In", "action": "Accept", "prefixLength": {"min": 9}}],
        "importV6": [
            {"action": "Reject", "interface": "eth*", "source": "RemotePeers", "communities": {"values": ["1:2"]}}
        ],
    },
    "FelixConfiguration": {"healthPort": 9099, "reportingInterval": "0s", "logSeverityScreen": "Info"},
    "WorkloadEndpoint": {
        "orchestrator": "cni",
        "node": "n",
        "containerID": "c",
        "endpoint": "eth0",
        "interfaceName": "cali1",
        "ipNetworks": ["10.0.0.1/32", "fd00::1"],
        "ipNATs": [{"internalIP": "10.0.0.1", "externalIP": "1.2.3.4"}],
        "ports": [{"name": "http", "port": 80, "hostPort": 8080}],
    },
    "GlobalNetworkPolicy": {"selector": "a == 'b'", "types": ["Ingress"], "order": 1.5, "tier": "default"},
    "NetworkPolicy": {
        "selector": "all()",
        "types": ["Ingress", "Egress"],
        "ingress": [
            {
                "action": "Allow",
                "protocol": "TCP",
                "ipVersion": 4,
                "source": {"nets": ["10.0.0.0/8", "192.0.2.1"], "namespaceSelector": "all()"},
                "destination": {"ports": [80, "8000:8080", "http", "443"], "serviceAccounts": {"names": ["a"]}},
            }
        ],
        "egress": [{"action": "Log", "protocol": "ICMP", "icmp": {"type": 8, "code": 0}}, {"action": "Pass"}],
    },
    "StagedNetworkPolicy": {"stagedAction": "Set", "ingress": [{"action": "Deny"}]},
    "StagedGlobalNetworkPolicy": {"stagedAction": "Delete"},
    "StagedKubernetesNetworkPolicy": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": []},
    "GlobalNetworkSet": {"nets": ["10.0.0.0/8", "1.2.3.4", "fd00::/64"], "allowedEgressDomains": ["a.example"]},
    "NetworkSet": {"nets": ["10.0.0.0/8"]},
    "Profile": {"labelsToApply": {"a": ""}, "ingress": [{"action": "Allow", "source": {"selector": "has(a)"}}]},
    "Tier": {"order": 100, "defaultAction": "Pass"},
    "HostEndpoint": {
        "node": "n",
        "interfaceName": "*",
        "expectedIPs": ["10.0.0.1"],
        "ports": [{"name": "a", "port": 1, "protocol": "TCP"}],
    },
    "CalicoNodeStatus": {"node": "n", "classes": ["Agent", "BGP", "Routes"], "updatePeriodSeconds": 10},
    "KubeControllersConfiguration": {
        "logSeverityScreen": "Info",
        "healthChecks": "Enabled",
        "prometheusMetricsPort": 9094,
        "etcdV3CompactionPeriod": "10m0s",
        "controllers": {"node": {"reconcilerPeriod": "5m0s", "syncLabels": "Enabled"}, "policy": None},
    },
    "ClusterInformation": {"clusterGUID": "a1", "datastoreReady": True, "calicoVersion": "v3", "clusterType": "k8s"},
}
NAMES = {"WorkloadEndpoint": "n-cni-c-eth0"}


def test_every_kind_has_a_good_one():
    assert GOOD.keys() == {*CLUSTER_KINDS, *NAMESPACED_KINDS}


@pytest.mark.parametrize("kind", GOOD)
def test_good_resources(kind):
    report = check_resource(resource(kind, GOOD[kind], NAMES.get(kind, "x")))
    assert (report.problems, report.warnings) == ([], [])


def test_everything_that_upstream_stored_is_valid():
    for dump in VECTORS.glob("etcd-dump-*.json"):
        for path, kv in json.loads(dump.read_text())["kvs"].items():
            if "/resources/" in path:
                assert problems(kv["value"]) == [], path
    for dump in VECTORS.glob("k8s-*.json"):
        for plural, objects in json.loads(dump.read_text()).items():
            for obj in objects if plural not in ("nodes", "pods") else ():
                key, document = crd.read_object(obj)
                if isinstance(key, ResourceKey):
                    assert problems(document) == [], key


@pytest.mark.parametrize(
    ("kind", "change", "problem"),
    [
        ("IPPool", {"cidr": None}, "IPPool.spec.cidr = null (must be a network in CIDR notation)"),
        ("IPPool", {"cidr": "10.0.0.0"}, 'IPPool.spec.cidr = "10.0.0.0" (must be a network in CIDR notation)'),
        ("IPPool", {"cidr": "10.0.0.1/16"}, "did you mean 10.0.0.0/16?"),
        ("IPPool", {"cidr": "169.254.0.0/17"}, "overlaps with the link-local range 169.254.0.0/16"),
        ("IPPool", {"blockSize": 19}, "IPPool.spec.blockSize = 19 (must be from 20 to 32 for an IPv4 pool)"),
        ("IPPool", {"blockSize": "26"}, 'IPPool.spec.blockSize = "26" (must be from 20 to 32'),
        ("IPPool", {"cidr": "fd00::/64", "ipipMode": "Never"}, "(must be from 116 to 128 for an IPv6 pool)"),
        ("IPPool", {"cidr": "10.0.0.0/27", "blockSize": 26}, "smaller than one of its blocks (blockSize 26)"),
        ("IPPool", {"cidr": "fd00::/64", "blockSize": 122}, "IPIP is not supported on an IPv6 pool"),
        ("IPPool", {"vxlanMode": "Always"}, "a pool cannot have both encapsulations"),
        ("IPPool", {"ipipMode": "always"}, '= "always" (must be one of Never, Always, CrossSubnet)'),
        ("IPPool", {"nodeSelector": "a =="}, "at position 4"),
        ("IPPool", {"allowedUses": ["Workload", "Pods"]}, 'IPPool.spec.allowedUses[1] = "Pods"'),
        (
            "IPPool",
            {"allowedUses": ["Workload", "LoadBalancer"], "nodeSelector": "all()", "ipipMode": "Never"},
            "cannot be combined",
        ),
        (
            "IPPool",
            {"allowedUses": ["LoadBalancer"], "ipipMode": "Never"},
            "must be all() for a pool of load balancer addresses",
        ),
        ("IPPool", {"assignmentMode": "Auto"}, "must be one of Automatic, Manual"),
        ("IPPool", {"disabled": "yes"}, 'IPPool.spec.disabled = "yes" (must be true or false)'),
        ("IPPool", {"ipip": {"enabled": True}}, "belongs to an older API"),
        ("IPReservation", {"reservedCIDRs": ["10.0.0.0/99"]}, "IPReservation.spec.reservedCIDRs[0]"),
        ("IPReservation", {"reservedCIDRs": "10.0.0.0/8"}, "must be a list"),
        ("Node", {"bgp": {"ipv4Address": "fd00::1/64"}}, "must be an IPv4 address with its prefix length"),
        ("Node", {"bgp": {"asNumber": 1 << 32}}, "must be an AS number"),
        ("Node", {"ipv4VXLANTunnelAddr": "x"}, 'Node.spec.ipv4VXLANTunnelAddr = "x" (must be an IPv4 address)'),
        ("Node", {"vxlanTunnelMACAddr": "66"}, "must be a MAC address"),
        ("Node", {"orchRefs": [{"nodeName": "x"}]}, "Node.spec.orchRefs[0].orchestrator = null (must be given)"),
        ("BGPPeer", {"peerIP": "10.0.0.1:99999"}, "must be an IP address, optionally as"),
        ("BGPPeer", {"peerIP": "10.0.0.1:" + "1" * 5000}, "must be an IP address, optionally as"),
        ("BGPPeer", {"peerIP": "[fd00::1]"}, "must be an IP address, optionally as"),
        ("BGPPeer", {"peerIP": None}, "either peerIP or peerSelector must be given"),
        ("BGPPeer", {"nodeSelector": "all()"}, "cannot be given together with node"),
        ("BGPPeer", {"asNumber": None, "peerSelector": "all()"}, "cannot be given together with peerIP"),
        ("BGPPeer", {"sourceAddress": "Any"}, "must be one of UseNodeIP, None"),
        ("BGPPeer", {"password": {}}, None),
        ("BGPPeer", {"ttlSecurity": 256}, "must be a whole number from 0 to 255"),
        ("BGPPeer", {"maxRestartTime": 90}, "must be a duration"),
        ("BGPPeer", {"reachableBy": "x"}, "must be an IP address"),
        ("BGPConfiguration", {"listenPort": 0}, "must be a whole number from 1 to 65535"),
        ("BGPConfiguration", {"nodeToNodeMeshEnabled": False}, 'can only be given in BGPConfiguration "default"'),
        ("BGPConfiguration", {"communities": [{"name": "c", "value": "70000:1"}]}, "must be aa:nn or aa:nn:mm"),
        ("BGPConfiguration", {"communities": []}, "a name defined in spec.communities"),
        ("BGPConfiguration", {"logSeverityScreen": "Loud"}, "must be one of Trace, Debug"),
        ("BGPFilter", {"exportV4": [{"cidr": "fd00::/8", "matchOperator": "In", "action": "Accept"}]}, "IPv4 network"),
        ("BGPFilter", {"exportV4": [{"cidr": "10.0.0.0/8", "action": "Accept"}]}, "must be given together"),
        ("BGPFilter", {"exportV4": [{}]}, "BGPFilter.spec.exportV4[0].action = null (must be Accept or Reject)"),
        ("BGPFilter", {"exportV4": [{"action": "Accept", "prefixLength": {"min": 1}}]}, "has no meaning without cidr"),
        (
            "BGPFilter",
            {"importV6": [{"action": "Reject", "operations": [{"setPriority": {"value": 1}}]}]},
            "can only be given with action Accept",
        ),
        ("FelixConfiguration", {"reportingInterval": 30}, "must be a duration"),
        ("FelixConfiguration", {"interfaceExclude": "eth0,/[/"}, "expected a regular expression between slashes"),
        ("FelixConfiguration", {"interfaceExclude": "eth0,//"}, "expected a regular expression between slashes"),
        ("FelixConfiguration", {"interfaceExclude": "eth0,a b"}, "expected an interface, or a regular expression"),
        ("FelixConfiguration", {"nodeSelector": "has(rack"}, "selector"),
        ("WorkloadEndpoint", {"endpoint": "eth1"}, "must be n-cni-c-eth1, as its node"),
        ("WorkloadEndpoint", {"ipNetworks": ["10.0.0.0/24", "10.0.0.1"]}, "must be a single address"),
        ("WorkloadEndpoint", {"ipNATs": [{"internalIP": "10.0.0.2", "externalIP": "1.2.3.4"}]}, "is not one of"),
        ("WorkloadEndpoint", {"interfaceName": "a" * 16}, "is not a valid interface name"),
        ("WorkloadEndpoint", {"ports": [{"port": 70000}]}, "WorkloadEndpoint.spec.ports[0].port = 70000"),
        ("WorkloadEndpoint", {"mac": "ee"}, "must be a MAC address"),
        ("WorkloadEndpoint", {"profiles": "p"}, 'WorkloadEndpoint.spec.profiles = "p" (must be a list)'),
        ("GlobalNetworkPolicy", {"selector": "("}, "GlobalNetworkPolicy.spec.selector"),
        ("GlobalNetworkPolicy", {"order": "1"}, 'GlobalNetworkPolicy.spec.order = "1" (must be a number)'),
        ("GlobalNetworkPolicy", {"order": True}, "must be a number"),
        ("GlobalNetworkPolicy", {"types": ["Both"]}, 'spec.types[0] = "Both" (must be one of Ingress, Egress)'),
        ("GlobalNetworkPolicy", {"doNotTrack": True}, "must be true where doNotTrack is"),
        (
            "GlobalNetworkPolicy",
            {"doNotTrack": True, "preDNAT": True, "applyOnForward": True},
            "cannot be given together with doNotTrack",
        ),
        ("NetworkPolicy", {"ingress": [{"action": "Maybe"}]}, 'NetworkPolicy.spec.ingress[0].action = "Maybe"'),
        ("NetworkPolicy", {"ingress": [{}]}, "NetworkPolicy.spec.ingress[0].action = null"),
        (
            "NetworkPolicy",
            {"egress": [{"action": "Deny", "protocol": "tcp"}]},
            'egress[0].protocol = "tcp" (must be one',
        ),
        ("NetworkPolicy", {"egress": [{"action": "Deny", "protocol": 256}]}, "egress[0].protocol = 256"),
        ("NetworkPolicy", {"egress": [{"action": "Deny", "ipVersion": 5}]}, "must be 4 or 6"),
        (
            "NetworkPolicy",
            {"egress": [{"action": "Deny", "protocol": "ICMP", "icmp": {"code": 1}}]},
            "has no meaning without type",
        ),
        ("NetworkPolicy", {"egress": [{"action": "Deny", "protocol": "ICMP", "icmp": {"type": 255}}]}, "from 0 to 254"),
        ("NetworkPolicy", {"egress": [{"action": "Deny", "source": {"ports": [80]}}]}, "has no meaning unless"),
        (
            "NetworkPolicy",
            {"egress": [{"action": "Deny", "protocol": "UDP", "destination": {"ports": ["90:80"]}}]},
            'NetworkPolicy.spec.egress[0].destination.ports[0] = "90:80" (must be a port number, a range',
        ),
        (
            "NetworkPolicy",
            {"egress": [{"action": "Deny", "protocol": "UDP", "destination": {"notPorts": [70000]}}]},
            "destination.notPorts[0] = 70000",
        ),
        ("NetworkPolicy", {"ingress": [{"action": "Allow", "source": {"nets": ["x"]}}]}, 'source.nets[0] = "x"'),
        ("NetworkPolicy", {"ingress": [{"action": "Allow", "source": {"nets": ["10.0.0.1/8"]}}]}, "10.0.0.0/8"),
        ("NetworkPolicy", {"ingress": [{"action": "Allow", "source": {"selector": "("}}]}, "source.selector"),
        ("NetworkPolicy", {"ingress": "all"}, 'NetworkPolicy.spec.ingress = "all" (must be a list)'),
        ("GlobalNetworkSet", {"nets": ["10.0.0.0/99"]}, 'GlobalNetworkSet.spec.nets[0] = "10.0.0.0/99"'),
        ("NetworkSet", {"nets": "10.0.0.0/8"}, 'NetworkSet.spec.nets = "10.0.0.0/8" (must be a list)'),
        ("Profile", {"labelsToApply": {"a b": ""}}, 'Profile.spec.labelsToApply = "a b"'),
        ("Profile", {"egress": [{"action": "Allow", "notProtocol": "x"}]}, 'egress[0].notProtocol = "x"'),
        ("Tier", {"order": "first"}, 'Tier.spec.order = "first" (must be a number)'),
        ("Tier", {"defaultAction": "Allow"}, 'Tier.spec.defaultAction = "Allow" (must be one of Pass, Deny)'),
        ("HostEndpoint", {"node": ""}, 'HostEndpoint.spec.node = "" (must be given)'),
        ("HostEndpoint", {"interfaceName": "", "expectedIPs": []}, "either it or expectedIPs must be given"),
        ("HostEndpoint", {"interfaceName": "a/b"}, "is not a valid interface name"),
        ("HostEndpoint", {"interfaceName": "eth*"}, "is not a valid interface name"),
        ("HostEndpoint", {"interfaceName": "eth+"}, "is not a valid interface name"),
        ("HostEndpoint", {"ports": [{"name": "a", "port": 1, "protocol": "TPC"}]}, "must be one of TCP, UDP, ICMP"),
        ("HostEndpoint", {"expectedIPs": ["10.0.0.1/8"]}, 'HostEndpoint.spec.expectedIPs[0] = "10.0.0.1/8"'),
        ("HostEndpoint", {"ports": [{"port": 1, "protocol": "UDP"}]}, "HostEndpoint.spec.ports[0].name = null"),
        ("HostEndpoint", {"ports": [{"name": "a", "port": 1}]}, "HostEndpoint.spec.ports[0].protocol = null"),
        ("CalicoNodeStatus", {"classes": ["All"]}, 'CalicoNodeStatus.spec.classes[0] = "All"'),
        ("CalicoNodeStatus", {"updatePeriodSeconds": 86401}, "from 0 to 86400"),
        ("KubeControllersConfiguration", {"logSeverityScreen": "Loud"}, 'spec.logSeverityScreen = "Loud"'),
        ("KubeControllersConfiguration", {"healthChecks": True}, "spec.healthChecks = true (must be one of"),
        (
            "KubeControllersConfiguration",
            {"controllers": {"node": {"reconcilerPeriod": 5}}},
            "KubeControllersConfiguration.spec.controllers.node.reconcilerPeriod = 5 (must be a duration",
        ),
        ("ClusterInformation", {"datastoreReady": "yes"}, 'ClusterInformation.spec.datastoreReady = "yes"'),
    ],
)
def test_one_thing_wrong(kind, change, problem):
    found = problems(resource(kind, GOOD[kind] | change, NAMES.get(kind, "x")))
    if problem is None:
        assert len(found) == 2
    else:
        assert len(found) == 1, found
        assert problem in found[0]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (resource("IPPool", GOOD["IPPool"], "Pool"), 'IPPool.metadata.name = "Pool" (must consist of lower case'),
        (resource("IPPool", GOOD["IPPool"], "a" * 254), "at most 253 characters"),
        (resource("IPPool", GOOD["IPPool"], None), "IPPool.metadata.name = null (must be given)"),
        (resource("IPPool", GOOD["IPPool"], namespace="ns"), "is not a namespaced kind"),
        (resource("NetworkSet", {}, namespace=""), "NetworkSet.metadata.namespace"),
        (resource("IPPool", GOOD["IPPool"], labels={"a b": "c"}), "is not a valid label name"),
        (resource("IPPool", GOOD["IPPool"], labels={"a": "c d"}), "is not a valid label value"),
        (resource("IPPool", GOOD["IPPool"], annotations={"a": 1}), "must be a text"),
        (resource("Pool", {}), 'Pool.kind = "Pool"'),
        (resource("IPPool", []), "IPPool.spec = [] (must be an object)"),
        (resource("Tier", {}) | {"apiVersion": "v1"}, "must be projectcalico.org/v3"),
    ],
)
def test_metadata(document, problem):
    assert any(problem in found for found in problems(document)), problems(document)


def test_pool_cannot_move():
    old = resource("IPPool", {"cidr": "10.0.0.0/16"})
    assert problems(resource("IPPool", {"cidr": "10.0.0.0/16", "blockSize": 26}), old=old) == []
    found = problems(resource("IPPool", {"cidr": "10.0.0.0/15", "blockSize": 27}), old=old)
    assert "cannot be changed (it is 10.0.0.0/16)" in found[0]
    assert "cannot be changed (it is 26)" in found[1]


def test_pools_cannot_overlap():
    pools = [
        IPPool(Metadata(name), ip_network(cidr), 26) for name, cidr in (("x", "10.0.0.0/16"), ("y", "10.8.0.0/13"))
    ]
    assert problems(resource("IPPool", {"cidr": "10.0.0.0/16"}), pools=pools) == []
    assert problems(resource("IPPool", {"cidr": "10.15.0.0/16"}), pools=pools) == [
        'IPPool.spec.cidr = "10.15.0.0/16" (overlaps with IPPool y, whose cidr is 10.8.0.0/13)'
    ]


def test_all_problems_in_one_error():
    with pytest.raises(InvalidResource) as caught:
        require_valid(resource("IPPool", {"cidr": "x", "ipipMode": "y"}))
    assert str(caught.value).startswith("error with the following fields:\n-  IPPool.spec.cidr")
    with pytest.raises(InvalidResource) as caught:
        require_valid(resource("IPPool", {"cidr": "x"}))
    assert str(caught.value).startswith('error with field IPPool.spec.cidr = "x"')


def test_unknown_fields_are_refused_unless_the_user_insists():
    misspelt = resource("FelixConfiguration", {"helthPort": 1})
    with pytest.raises(InvalidResource, match='did you mean "healthPort"'):
        require_valid(misspelt)
    assert require_valid(misspelt, old=misspelt) == []  # somebody's newer version stored it
    warnings = require_valid(misspelt, allow_unknown=True)
    assert [warning.at for warning in warnings] == ["FelixConfiguration.spec.helthPort"]
    assert len(KNOWN) == 194


def test_defaults_are_those_upstream_stores():
    made = with_defaults(resource("IPPool", {"cidr": "fd00::/64", "blockSize": 120}))
    assert made["spec"] == {
        "cidr": "fd00::/64",
        "blockSize": 120,
        "ipipMode": "Never",
        "vxlanMode": "Never",
        "nodeSelector": "all()",
        "allowedUses": ["Workload", "Tunnel"],
        "assignmentMode": "Automatic",
    }
    assert with_defaults(resource("Tier", {"order": 1}))["spec"] == {"order": 1, "defaultAction": "Deny"}
    assert with_defaults(resource("Tier", {"order": 1000}, "kube-admin"))["spec"]["defaultAction"] == "Pass"


@pytest.mark.parametrize(
    ("spec", "types"),
    [
        ({}, ["Ingress"]),
        ({"ingress": [{"action": "Allow"}]}, ["Ingress"]),
        ({"egress": [{"action": "Allow"}]}, ["Egress"]),
        ({"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]}, ["Ingress", "Egress"]),
        ({"types": ["Egress"], "ingress": [{"action": "Allow"}]}, ["Egress"]),
    ],
)
def test_policies_get_tier_label_and_types(spec, types):
    for kind in ("NetworkPolicy", "GlobalNetworkPolicy"):
        made = with_defaults(resource(kind, spec))
        assert (made["spec"]["tier"], made["spec"]["types"]) == ("default", types)
        assert made["metadata"]["labels"] == {"projectcalico.org/tier": "default"}


def test_endpoints_get_the_labels_they_are_found_by():
    spec = {"orchestrator": "k8s", "serviceAccountName": "sa"}
    made = with_defaults(resource("WorkloadEndpoint", spec) | {"metadata": {"name": "x", "namespace": "ns"}})
    assert made["metadata"]["labels"] == {
        "projectcalico.org/namespace": "ns",
        "projectcalico.org/orchestrator": "k8s",
        "projectcalico.org/serviceaccount": "sa",
    }


def test_dotted_as_numbers_are_stored_as_numbers():
    assert with_defaults(resource("BGPPeer", {"asNumber": "1.10"}))["spec"] == {"asNumber": 65546}
    assert with_defaults(resource("Node", {"bgp": {"asNumber": "64512"}}))["spec"] == {"bgp": {"asNumber": 64512}}
    assert with_defaults(resource("BGPConfiguration", {"asNumber": "x"}))["spec"] == {"asNumber": "x"}
    assert with_defaults(resource("Node", {"bgp": None}))["spec"] == {"bgp": None}


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-1, 300), st.sampled_from(["", "x", "10.0.0.1", "10.0.0.0/8", "("])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["cidr", "a", "name", "values"]), inner, max_size=3),
    ),
    max_leaves=5,
)


def places(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*at, key))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_validation_accepts_the_codec_reads(data):
    kind = data.draw(st.sampled_from(sorted(GOOD)))
    document = copy.deepcopy(resource(kind, GOOD[kind], NAMES.get(kind, "x")))
    at = data.draw(st.sampled_from(sorted(filter(None, places(document)), key=repr)))
    parent = document
    for step in at[:-1]:
        parent = parent[step]
    parent[at[-1]] = data.draw(values)
    if not problems(document, old=document):
        metadata = document["metadata"]
        codec.decode(ResourceKey(document["kind"], metadata["name"], metadata.get("namespace") or ""), document)


@pytest.mark.parametrize("kind", sorted({*CLUSTER_KINDS, *NAMESPACED_KINDS}))
def test_every_kind_is_checked_for_its_metadata(kind):
    assert any("metadata.name" in problem for problem in problems(resource(kind, {}, "-")))
