"""The DSCP of packets, as their receivers see it: of workloads, host endpoints, and a mesh's connections."""

from __future__ import annotations

import socket
import struct
from contextlib import closing
from ipaddress import ip_network
from typing import Any

import pytest

from cni_calico.model.keys import ResourceKey
from tests.deadlines import until
from tests.netns.namespaces import Namespace
from tests.netns.policing.lab import NODE, Lab, socket_in
from tests.netns.policing.uplinked import FAMILIES, HOST, OTHER, Uplinked

pytestmark = pytest.mark.netns

POOLS = frozenset(map(ip_network, ("10.65.0.0/16", "fd00::/64")))
INSIDE = {4: "10.65.0.2", 6: "fd00::2"}
TOLD = {4: (socket.IPPROTO_IP, socket.IP_RECVTOS), 6: (socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS)}
PORT, WAIT_S = 7, 60
ALLOW_ALL = {"types": ["Ingress", "Egress"], "ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]}
FILTERS = {"FELIX_NFTABLESMODE": "Auto"}, {"FELIX_NFTABLESMODE": "Disabled"}


def dscp(sender: Namespace, receiver: Namespace, to: str) -> int:
    """Of a packet from one to the other; its header has been checked, or it would not have arrived."""
    version = 6 if ":" in to else 4
    with (
        closing(socket_in(receiver, FAMILIES[version], socket.SOCK_DGRAM)) as server,
        closing(socket_in(sender, FAMILIES[version], socket.SOCK_DGRAM)) as client,
    ):
        server.setsockopt(*TOLD[version], 1)
        server.settimeout(WAIT_S)
        server.bind((to, PORT))
        client.sendto(b"what am I", (to, PORT))
        _, told, _, _ = server.recvmsg(100, 100)
        [(_, _, data)] = told
        return int.from_bytes(data[:1], "little") >> 2


def put_dscp(of: Lab, name: str, value: int | None) -> None:
    workload = of.workloads[name]
    workload.document["qosControls"] = {} if value is None else {"dscp": value}
    of.put_endpoint(workload)


def rules_of(of: Lab, by: dict[str, str]) -> list[str]:
    """Those that write a DSCP, with their handles, which are new for a rule that is written again."""
    programs = ["nft", "-a", "list", "ruleset"], ["iptables-legacy-save"]
    return [line for line in of.host.run(*programs[FILTERS.index(by)]).stdout.splitlines() if "dscp" in line.lower()]


def put_host(of: Lab, annotation: str, **spec: Any) -> None:
    metadata = {"name": "h", "uid": "uid-h", "annotations": {"qos.projectcalico.org/dscp": annotation}}
    document = {"kind": "HostEndpoint", "metadata": metadata, "spec": {"node": NODE, "interfaceName": "eth0", **spec}}
    of.put_document(ResourceKey("HostEndpoint", "h"), document)


@pytest.mark.parametrize("by", FILTERS, ids=["nftables", "iptables"])
def test_what_leaves_the_cluster(uplinked: Uplinked, by: dict[str, str]) -> None:
    made, other = uplinked.lab, uplinked.other
    made.pools = POOLS
    made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
    made.put_profile("kns.default")
    a, b = made.workloads["a"], made.add("b", *INSIDE.values())
    made.put("GlobalNetworkPolicy", "all", ALLOW_ALL)
    put_dscp(made, "a", 34)
    put_host(made, "EF", expectedIPs=[HOST[4], HOST[6]])
    made.start(FELIX_DEFAULTENDPOINTTOHOSTACTION="ACCEPT", **by)
    made.until_in_force(endpoints=2, policies=1)
    for version in (4, 6):
        assert dscp(a.ns, other, OTHER[version]) == 34
        assert dscp(a.ns, b.ns, INSIDE[version]) == 0  # in a pool
        assert dscp(a.ns, made.host, HOST[version]) == 0
        assert dscp(b.ns, other, OTHER[version]) == 0  # did not ask
        assert dscp(made.host, other, OTHER[version]) == 46
        assert dscp(made.host, b.ns, INSIDE[version]) == 0
        assert dscp(made.host, made.host, HOST[version]) == 0
    before = rules_of(made, by)
    made.stop()
    made.start(FELIX_DEFAULTENDPOINTTOHOSTACTION="ACCEPT", **by)
    made.until_in_force(endpoints=2, policies=1)
    assert rules_of(made, by) == before  # none was written again
    put_dscp(made, "a", 10)
    until(lambda: dscp(a.ns, other, OTHER[4]) == 10, "the new one is in force")
    put_dscp(made, "a", None)
    until(lambda: dscp(a.ns, other, OTHER[6]) == 0, "nothing is marked any more")
    assert dscp(made.host, other, OTHER[4]) == 46
    put_host(made, "AF99", expectedIPs=[HOST[4]])
    said = "the packets of HostEndpoint h get no DSCP: the annotation says 'AF99'"
    until(lambda: any(said in text for text in made.standing()["problems"]), "it is reported")
    assert dscp(made.host, other, OTHER[4]) == 0
    assert not rules_of(made, by)


def syn_dscp(of: Lab, source: str, destination: str) -> int:
    """Of the first packet of a connection."""
    client, server = of.workloads[source], of.workloads[destination]
    with (
        closing(socket_in(server.ns, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)) as seen,
        closing(socket_in(server.ns, socket.AF_INET, socket.SOCK_STREAM)) as listening,
        closing(socket_in(client.ns, socket.AF_INET, socket.SOCK_STREAM)) as connecting,
    ):
        seen.settimeout(WAIT_S)
        listening.bind((server.address(), PORT))
        listening.listen()
        connecting.settimeout(WAIT_S)
        connecting.connect((server.address(), PORT))
        while True:
            packet = seen.recv(100)
            if struct.unpack("!H", packet[22:24])[0] == PORT and packet[33] & 2:
                return packet[1] >> 2


@pytest.mark.parametrize("by", FILTERS, ids=["nftables", "iptables"])
def test_connections_of_a_mesh(two_workloads: Lab, by: dict[str, str]) -> None:
    labels: dict[str, Any] = {"pcns.istio.io/dataplane-mode": "ambient"}
    two_workloads.put_profile("kns.default", **labels)
    two_workloads.add("c", "10.65.0.3")
    two_workloads.put_endpoint(two_workloads.workloads["c"], **{"istio.io__dataplane-mode": "none"})
    two_workloads.put("GlobalNetworkPolicy", "all", ALLOW_ALL)
    two_workloads.start(FELIX_ISTIOAMBIENTMODE="Enabled", FELIX_ISTIODSCPMARK="AF21", **by)
    two_workloads.until_in_force(endpoints=3, policies=1)
    assert syn_dscp(two_workloads, "a", "b") == 18
    assert dscp(two_workloads.workloads["a"].ns, two_workloads.workloads["b"].ns, "10.65.0.2") == 0  # is not TCP
    assert syn_dscp(two_workloads, "a", "c") == syn_dscp(two_workloads, "c", "b") == 0
    two_workloads.put_endpoint(two_workloads.workloads["c"], **{"istio.io__dataplane-mode": "ambient"})
    until(lambda: syn_dscp(two_workloads, "a", "c") == 18, "it has joined")
    two_workloads.stop()
    two_workloads.start(**by)
    two_workloads.until_in_force(endpoints=3, policies=1)
    assert syn_dscp(two_workloads, "a", "b") == 0
