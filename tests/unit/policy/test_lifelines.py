"""Failsafe ports as people write them, and what a host endpoint would cut."""

from ipaddress import ip_address, ip_network

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.failsafe import INBOUND, OUTBOUND, FailsafePort, parse_failsafe_ports
from cni_calico.policy.lifelines import KUBELET_PORT, Lifeline, describe_cuts, parse_endpoints
from tests.unit.policy.cluster import NODE, document, graph_of

HOST, OWN, OTHER = ResourceKey("HostEndpoint", "h"), ip_address("192.0.2.1"), ip_address("192.0.2.9")
STORE = Lifeline("the datastore", "egress", OTHER, 12379)
KUBELET = Lifeline("the kubelet", "ingress", OTHER, KUBELET_PORT)


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("none", ()),
        ("tcp:22,udp:68", (FailsafePort(6, 22), FailsafePort(17, 68))),
        ("2379", (FailsafePort(6, 2379),)),
        ("TCP:10.0.0.0/8:22", (FailsafePort(6, 22, ip_network("10.0.0.0/8")),)),
        ("10.0.0.0/8:tcp:22", (FailsafePort(6, 22, ip_network("10.0.0.0/8")),)),
        ("udp:[fd00::/8]:53, sctp:1", (FailsafePort(17, 53, ip_network("fd00::/8")), FailsafePort(132, 1))),
        ("fd00::/8:udp:53", (FailsafePort(17, 53, ip_network("fd00::/8")),)),
    ],
)
def test_failsafe_ports(text, ports):
    assert parse_failsafe_ports(text) == ports


@pytest.mark.parametrize("text", ["tcp", "tcp:", "tcp:70000", "icmp:1", "pigeon:22", "tcp:10.0.0.0/40:22", "tcp:22:22"])
def test_what_is_no_failsafe_port(text):
    with pytest.raises(ValueError, match="expected"):
        parse_failsafe_ports(text)


def cuts(*lifelines, **policies):
    documents = {("HostEndpoint", "", "h"): document({"node": NODE, "interfaceName": "*"}, {"host": "yes"})}
    for name, spec in policies.items():
        documents["GlobalNetworkPolicy", "", name] = document({"selector": "has(host)", **spec})
    graph = graph_of(documents)
    graph.flush()
    ports = {"ingress": INBOUND, "egress": OUTBOUND}
    return list(describe_cuts(graph.wanted(), lifelines, ports.__getitem__, lambda other: (HOST, OWN)))


def test_what_cuts_before_translation_may_be_of_all_interfaces():
    everywhere = ResourceKey("HostEndpoint", "all")
    early = {"preDNAT": True, "applyOnForward": True, "types": ["Ingress"], "ingress": [{"action": "Deny"}]}
    allow = {"selector": "has(own)", "types": ["Ingress"], "ingress": [{"action": "Allow"}]}
    documents = {
        ("HostEndpoint", "", "h"): document({"node": NODE, "interfaceName": "eth0"}, {"own": ""}),
        ("HostEndpoint", "", "all"): document({"node": NODE, "interfaceName": "*"}, {"all": ""}),
        ("GlobalNetworkPolicy", "", "early"): document({"selector": "has(all)", **early}),
        ("GlobalNetworkPolicy", "", "own"): document(allow),
    }
    graph = graph_of(documents)
    graph.flush()
    ports = {"ingress": INBOUND, "egress": OUTBOUND}
    found = describe_cuts(graph.wanted(), [KUBELET], ports.__getitem__, lambda other: (HOST, OWN), everywhere)
    [said] = found
    assert "HostEndpoint all " in said, "a policy that selects the interface's own one would not help"


def test_cuts_are_named_with_the_rule_that_is_missing():
    store, kubelet = cuts(STORE, KUBELET)
    assert "HostEndpoint h cuts this node from the datastore at 192.0.2.9 (TCP 12379)" in store
    assert "egress rule {action: Allow, protocol: TCP, destination: {nets: [192.0.2.9/32], ports: [12379]}}" in store
    assert "ingress rule {action: Allow, protocol: TCP, destination: {ports: [10250]}}" in kubelet
    allow = [{"action": "Allow", "protocol": "TCP", "destination": {"ports": [10250, 12379]}}]
    assert cuts(STORE, KUBELET, p={"ingress": allow, "egress": allow}) == []
    early = {"preDNAT": True, "applyOnForward": True, "types": ["Ingress"]}
    assert len(cuts(KUBELET, p={"ingress": allow}, q={**early, "ingress": [{"action": "Deny"}]})) == 1
    assert cuts(KUBELET, q={**early, "ingress": allow}) == []
    untracked = {"doNotTrack": True, "applyOnForward": True, "ingress": allow, "egress": allow}
    assert len(cuts(KUBELET, q=untracked)) == 1  # it does not apply to "*"


def test_one_server_of_several_is_enough():
    member = Lifeline("the datastore", "egress", ip_address("192.0.2.8"), 2379)  # a failsafe port
    assert cuts(STORE, member) == []


def test_bfd_is_cut_in_each_direction_and_bgp_only_in_both():
    bgp = [Lifeline("BGP with 192.0.2.9", way, OTHER, 1790) for way in ("ingress", "egress")]
    bfd = [Lifeline("BFD with 192.0.2.9", way, OTHER, 3784, 17, (3785,), alone=True) for way in ("ingress", "egress")]
    found = cuts(*bgp, *bfd)
    assert [text.partition(": give")[0] for text in found] == [
        "HostEndpoint h cuts this node off for BGP with 192.0.2.9 (TCP 1790)",
        "HostEndpoint h cuts this node off for BFD with 192.0.2.9 (UDP 3784)",
        "HostEndpoint h cuts this node from BFD with 192.0.2.9 (UDP 3784)",
    ]
    assert "{action: Allow, protocol: UDP, destination: {ports: [3784, 3785]}}" in found[1]
    assert (
        "egress rule {action: Allow, protocol: UDP, destination: {nets: [192.0.2.9/32], ports: [3784, 3785]}}"
        in found[2]
    )
    assert "FailsafeOutboundHostPorts: udp:3784" in found[2]
    allow = [{"action": "Allow", "protocol": "UDP", "destination": {"ports": ["3784:3785"]}}]
    (left,) = cuts(*bfd, p={"types": ["Egress"], "egress": allow})
    assert "off for BFD" in left
    out = [{"action": "Allow", "protocol": "TCP", "destination": {"ports": [1790]}}]
    assert cuts(*bgp, p={"types": ["Egress"], "egress": out}) == []
    assert cuts(*bfd, p={"ingress": allow, "egress": allow}) == []


def test_servers_that_are_named_by_their_addresses():
    urls = ("https://10.0.0.1:2379", "http://[fd00::1]", "etcd.example:2379", "10.0.0.2:1", "http://10.0.0.3:port")
    found = [(str(line.other), line.port) for line in parse_endpoints("x", urls)]
    assert found == [("10.0.0.1", 2379), ("fd00::1", 80), ("10.0.0.2", 1)]
