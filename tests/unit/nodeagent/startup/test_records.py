"""The pure parts of start-up: pools, this node's record, the cluster's records, doubts; against stored vectors."""

import json
import pathlib
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from cni_calico.errors import CorruptRecord, InvalidConfig
from cni_calico.model.documents.codec import decode_node, encode_pool
from cni_calico.model.documents.tiers import TIERS, new_tier
from cni_calico.model.host import HostInterface
from cni_calico.model.keys import FELIX_DEFAULT, ResourceKey
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.startup import cluster
from cni_calico.nodeagent.startup.address import Found
from cni_calico.nodeagent.startup.doubts import PeerAddress, select_doubts, select_node_peers
from cni_calico.nodeagent.startup.node_record import (
    conflict_error,
    describe_interfaces,
    desired_document,
    plan_node,
    select_conflicts,
    without_address,
)
from cni_calico.nodeagent.startup.pools import PoolFacts, choose_free_range, parse_pod_subnets, plan_pools, unique_local

VECTORS = pathlib.Path(__file__).parents[3] / "golden" / "vectors"
NOW, UID = "2026-11-20T12:06:00Z", "7718cc61-ffce-4e18-9724-c29549093666"


def etcd_init(path):
    dump = json.loads((VECTORS / "etcd-dump-00-init.json").read_text())
    return dump["kvs"][f"/calico/resources/v3/projectcalico.org/{path}"]["value"]


def k8s(plural, stem="k8s-01-startup"):
    return json.loads((VECTORS / f"{stem}.json").read_text())[plural]


# -- pools ------------------------------------------------------------------------------------------------------------


def pools(environ=(), **facts):
    made = plan_pools(
        parse_settings(dict(environ)), PoolFacts(**facts), random=bytes(range(5)), uids=("u4", "u6"), now=NOW
    )
    return {pool.metadata.name: pool for pool in made}


def test_default_pools():
    made = pools()
    v4, v6 = made["default-ipv4-ippool"], made["default-ipv6-ippool"]
    assert (str(v4.cidr), v4.block_size, v4.nat_outgoing, v4.ipip_mode, v4.vxlan_mode) == (
        "192.168.0.0/16",
        26,
        True,
        "Never",
        "Never",
    )
    assert (str(v6.cidr), v6.block_size, v6.nat_outgoing) == ("fd00:102:304::/48", 122, False)
    spec = encode_pool(v4)["spec"]
    assert spec["allowedUses"] == ["Workload", "Tunnel"] and spec["nodeSelector"] == "all()"


def test_a_pool_document_has_the_fields_of_upstreams():
    upstream = etcd_init("ippools/pool4")
    ours = encode_pool(pools({"CALICO_IPV4POOL_NAT_OUTGOING": "false"})["default-ipv4-ippool"])
    assert set(ours["spec"]) == set(upstream["spec"])
    assert set(ours["metadata"]) == set(upstream["metadata"])


@pytest.mark.parametrize(
    ("environ", "facts", "names"),
    [
        ({}, {"families": frozenset({4})}, ["default-ipv6-ippool"]),
        ({}, {"families": frozenset({4, 6})}, []),
        ({}, {"ipv6_possible": False}, ["default-ipv4-ippool"]),
        ({"NO_DEFAULT_POOLS": "true"}, {}, []),
        ({"CALICO_IPV4POOL_CIDR": "none"}, {}, ["default-ipv6-ippool"]),
        ({"CALICO_IPV6POOL_CIDR": "none"}, {}, ["default-ipv4-ippool"]),
    ],
)
def test_which_pools_are_made(environ, facts, names):
    assert list(pools(environ, **facts)) == names


def test_kubeadm_names_the_networks():
    text = "apiVersion: kubeadm.k8s.io/v1beta3\nnetworking:\n  podSubnet: 10.244.0.0/16,fd44::/48\n  serviceSubnet: x\n"
    subnets = parse_pod_subnets(text)
    made = pools(pod_subnets=subnets)
    assert [str(pool.cidr) for pool in made.values()] == ["10.244.0.0/16", "fd44::/48"]
    asked = pools({"CALICO_IPV4POOL_CIDR": "10.1.0.0/16"}, pod_subnets=subnets)
    assert str(asked["default-ipv4-ippool"].cidr) == "10.1.0.0/16"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("networking:\n  dnsDomain: x\n", ()),
        ('networking: \n  podSubnet: "10.244.0.0/16"\n', ("10.244.0.0/16",)),
        ("networking:\n  podSubnet: 10.1.0.0/16, 10.2.0.0/16\n", ("10.1.0.0/16",)),
        ("networking:\n  podSubnet: 10.1.0.0/16,fd44::/48   # pods\n", ("10.1.0.0/16", "fd44::/48")),
    ],
)
def test_pod_subnets(text, expected):
    assert tuple(map(str, parse_pod_subnets(text))) == expected


def test_a_pod_subnet_that_is_none():
    with pytest.raises(ValueError):
        parse_pod_subnets("  podSubnet: many\n")


def test_a_pod_subnet_smaller_than_a_block():
    with pytest.raises(InvalidConfig, match="smaller than one block"):
        pools(pod_subnets=(ip_network("10.244.0.0/28"),))


def test_the_free_range():
    def free(*addresses):
        return str(choose_free_range([ip_address(a) for a in addresses]))

    assert free("10.0.0.1", "fd00::1") == "192.168.0.0/16"
    assert free("192.168.1.5") == "172.16.0.0/16"
    assert free("192.168.1.5", "172.16.0.9", "172.17.0.1") == "172.18.0.0/16"
    assert free("192.168.1.5", *(f"172.{n}.0.1" for n in range(16, 32))) == "192.168.0.0/16"


def test_a_unique_local_prefix():
    assert unique_local(b"\xff" * 5) == ip_network("fdff:ffff:ffff::/48")


# -- the node's record ------------------------------------------------------------------------------------------------

ETH0 = HostInterface(2, "eth0", True, 1500, tuple(map(ip_interface, ("10.99.0.11/24", "fd99::11/64", "fe80::1/64"))))
DOCKER = HostInterface(3, "docker0", True, 1500, (ip_interface("172.17.0.1/16"),))
V4, V6 = Found(ip_interface("10.99.0.11/24"), "eth0", True), Found(ip_interface("fd99::11/64"), "eth0", True)


def record(environ, old=None, v4=V4, v6=V6):
    plan = plan_node(parse_settings(environ), "node1", v4, v6, (ETH0, DOCKER))
    return desired_document(plan, old, uid=UID, now=NOW)


BOTH = {"IP": "autodetect", "IP6": "autodetect"}


def test_a_new_node_says_what_upstreams_said():
    annotations = k8s("nodes")[0]["metadata"]["annotations"]
    ours = record(BOTH)
    assert ours["spec"]["bgp"]["ipv4Address"] == annotations["projectcalico.org/IPv4Address"]
    assert ours["spec"]["bgp"]["ipv6Address"] == annotations["projectcalico.org/IPv6Address"]
    upstream = json.loads(annotations["projectcalico.org/Interfaces"])
    assert [i["name"] for i in ours["spec"]["interfaces"]] == [i["name"] for i in upstream]
    assert ours["spec"]["interfaces"][0]["addresses"][:2] == upstream[0]["addresses"][:2]
    assert set(etcd_init("nodes/vm")) == set(ours)
    assert ours["metadata"] == {"name": "node1", "uid": UID, "creationTimestamp": NOW}


def test_a_second_start_changes_nothing():
    first = record({**BOTH, "AS": "65001", "CALICO_K8S_NODE_REF": "k1"})
    assert record({**BOTH, "AS": "65001", "CALICO_K8S_NODE_REF": "k1"}, first) == first
    assert first["spec"]["bgp"]["asNumber"] == 65001
    assert first["spec"]["orchRefs"] == [{"nodeName": "k1", "orchestrator": "k8s"}]


def test_what_startup_does_not_decide_stays():
    old = record(BOTH)
    old["spec"]["bgp"] |= {"routeReflectorClusterID": "1.0.0.1", "asNumber": 65005, "future": 1}
    old["spec"]["ipv4VXLANTunnelAddr"] = "10.65.0.1"
    old["metadata"]["labels"] = {"rack": "r1"}
    new = record({"IP": "autodetect"}, old, Found(ip_interface("10.99.0.12/24")))
    assert new["spec"]["bgp"] == {**old["spec"]["bgp"], "ipv4Address": "10.99.0.12/24"}
    assert new["spec"]["ipv4VXLANTunnelAddr"] == "10.65.0.1" and new["metadata"] == old["metadata"]


def test_without_networking_no_addresses_are_written():
    assert record({"CALICO_NETWORKING_BACKEND": "none", "AS": "65001"})["spec"] == {}


def test_a_record_of_the_wrong_shape_is_named():
    with pytest.raises(CorruptRecord, match="Node node1"):
        record(BOTH, {"metadata": {"name": "node1"}, "spec": {"bgp": {"ipv4Address": 7}}})


def test_interfaces_only_of_the_families_asked_for():
    assert describe_interfaces((ETH0, DOCKER), (4,)) == ({"name": "eth0", "addresses": ["10.99.0.11"]},)
    assert describe_interfaces((ETH0, DOCKER), ()) == ()


def test_conflicts_name_the_other_node():
    plan = plan_node(parse_settings(BOTH), "node2", V4, V6, ())
    others = [decode_node(ResourceKey("Node", name), record(BOTH)) for name in ("node1",)]
    conflicts = select_conflicts(plan, others)
    assert [(c.family, c.node) for c in conflicts] == [(4, "node1"), (6, "node1")]
    assert "node node1 already has the IPv4 address 10.99.0.11" in str(conflict_error("node2", conflicts))
    assert select_conflicts(plan_node(parse_settings(BOTH), "node1", V4, V6, ()), others) == ()


def test_clearing_an_address_leaves_the_rest():
    old = record({**BOTH, "AS": "65001"})
    cleared = without_address("node1", old, (4,))
    assert cleared["spec"]["bgp"] == {"asNumber": 65001, "ipv6Address": "fd99::11/64"}


# -- the cluster's records --------------------------------------------------------------------------------------------


def test_tiers_are_upstreams():
    for name in TIERS:
        upstream = etcd_init(f"tiers/{name}")
        ours = new_tier(name, uid=upstream["metadata"]["uid"], now=NOW)
        assert ours == upstream


def desired_cluster(old, types):
    return cluster.desired_cluster(old, types, guid="0" * 32, uid=UID, now=NOW)


def test_cluster_information_is_completed():
    upstream = etcd_init("clusterinformations/default")
    new = desired_cluster(upstream, ("k8s", "bgp"))
    assert new["spec"] == {
        "clusterGUID": "effbee3284844843b69194e8615ee904",
        "datastoreReady": True,
        "clusterType": "k8s,bgp",
        "calicoVersion": "v3.32.1",
    }
    assert desired_cluster(new, ("bgp", "k8s")) == new


def test_cluster_information_is_made():
    made = desired_cluster(None, ("kdd", "k8s", "bgp"))
    stored = k8s("clusterinformations")[0]["spec"]
    assert {**made["spec"], "clusterGUID": ""} == {**stored, "clusterGUID": ""}
    assert len(made["spec"]["clusterGUID"]) == 32


def test_an_operators_values_stay():
    old = {"metadata": {"name": "default"}, "spec": {"datastoreReady": False, "calicoVersion": "v3.30.0"}}
    spec = desired_cluster(old, ())["spec"]
    assert spec["datastoreReady"] is False and spec["calicoVersion"] == "v3.30.0"


def test_felix_configuration_is_completed():
    key = FELIX_DEFAULT
    made = cluster.desired_fields(key, None, cluster.FELIX_DEFAULT_FIELDS, uid=UID, now=NOW)
    stored = k8s("felixconfigurations")[0]["spec"]
    assert made["spec"].items() <= stored.items()
    old = {**made, "spec": {"logSeverityScreen": "Debug", "bpfEnabled": False}}
    new = cluster.desired_fields(key, old, cluster.FELIX_DEFAULT_FIELDS, uid=UID, now=NOW)
    assert new["spec"] == {"logSeverityScreen": "Debug", "bpfEnabled": False, "reportingInterval": "0s"}
    assert cluster.desired_fields(key, new, cluster.FELIX_DEFAULT_FIELDS, uid=UID, now=NOW) == new


# -- doubts -----------------------------------------------------------------------------------------------------------

ETH1 = HostInterface(3, "eth1", True, 1500, (ip_interface("172.20.1.5/16"),))
ON_ETH1 = Found(ip_interface("172.20.1.5/16"), "eth1", detected=True)


def codes(found, **facts):
    return [doubt.code for doubt in select_doubts(4, found, (ETH0, ETH1), **facts)]


def test_doubts():
    assert codes(ON_ETH1, default_interface="eth1", internal_ips=[ip_address("172.20.1.5")]) == []
    assert codes(ON_ETH1, default_interface="eth0") == ["default-route"]
    assert codes(ON_ETH1, internal_ips=[ip_address("10.99.0.11")]) == ["kubernetes-internal-ip"]
    assert codes(Found(None)) == []
    fixed = Found(ON_ETH1.address, "eth1")
    assert codes(fixed, default_interface="eth0") == []  # who names an address knows why


def test_the_peer_that_is_on_the_other_card():
    (doubt,) = select_doubts(4, ON_ETH1, (ETH0, ETH1), peers=[PeerAddress("tor", ip_address("10.99.0.1"))])
    assert doubt.code == "bgp-peer"
    assert "not in the subnet of BGPPeer tor (10.99.0.1)" in doubt.text
    assert "reached directly from 10.99.0.11/24 (eth0)" in doubt.text


def test_which_peers_are_this_nodes():
    specs = [
        ("named", {"node": "n1", "peerIP": "10.0.0.1"}),
        ("other", {"node": "n2", "peerIP": "10.0.0.2"}),
        ("selected", {"nodeSelector": "rack == 'r1'", "peerIP": "10.0.0.3:1179"}),
        ("v6", {"node": "n1", "peerIP": "[fd00::1]:1179"}),
        ("bare-v6", {"node": "n1", "peerIP": "fd00::2"}),
        ("global", {"peerIP": "10.0.0.4"}),
        ("everyone", {"nodeSelector": "all()", "peerIP": "10.0.0.5"}),
        ("broken", {"nodeSelector": "((", "peerIP": "10.0.0.6"}),
        ("numbered", {"nodeSelector": 7, "peerIP": "10.0.0.7"}),
        ("spoilt", 7),
        ("selector-only", {"node": "n1", "peerSelector": "has(x)"}),
    ]
    peers = select_node_peers(specs, "n1", {"rack": "r1"})
    assert [(peer.name, str(peer.address)) for peer in peers] == [
        ("named", "10.0.0.1"),
        ("selected", "10.0.0.3"),
        ("v6", "fd00::1"),
        ("bare-v6", "fd00::2"),
    ]
