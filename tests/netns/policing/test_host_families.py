"""Host endpoints, tunnels between nodes and the two families: what carries workloads' packets stays open under a policy
that denies everything, in IPv4 and IPv6; without tunnels it is traffic like any other; IPv6 can be left out.
"""

from __future__ import annotations

import socket
from ipaddress import ip_network

import pytest

from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from tests.netns.namespaces import Namespace
from tests.netns.policing.lab import socket_in
from tests.netns.policing.uplinked import DENY_ALL, DHCP, DNS, HOST, OTHER, POD, Uplinked, start

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]
# the ends of the tunnel; the workloads' networks as the other host routes them; an address that is no node's
HERE, THERE = {4: "10.65.0.250", 6: "fd00::fa"}, {4: "10.65.9.1", 6: "fd00:9::1"}
WORKLOADS, STRANGER = {4: "10.65.0.0/16", 6: "fd00::/64"}, {4: "172.31.0.77", 6: "fd31::77"}
WIDTH = {4: 32, 6: 128}


def make_tunnel(uplinked: Uplinked, version: int) -> None:
    """VXLAN between the two hosts, in and of one family, through which the other reaches the workload."""
    make_end(uplinked.host, version, HOST[version], OTHER[version], HERE)
    uplinked.host.do(f"-{version}", "route", "add", THERE[version], "dev", "vxlan.calico")
    make_other_end(uplinked, version, OTHER[version])


def make_other_end(uplinked: Uplinked, version: int, own: str) -> None:
    make_end(uplinked.other, version, own, HOST[version], THERE)
    uplinked.other.do(f"-{version}", "route", "replace", HERE[version], "dev", "vxlan.calico")
    way = ("via", HERE[version], "dev", "vxlan.calico", "onlink", "src", THERE[version])
    uplinked.other.do(f"-{version}", "route", "replace", WORKLOADS[version], *way)


def make_end(end: Namespace, version: int, own: str, remote: str, addresses: dict[int, str]) -> None:
    """With the same hardware address every time, so that neighbours need not be found again."""
    vxlan = "link add vxlan.calico type vxlan id 4096 dstport 4789 nolearning udp6zerocsumrx udp6zerocsumtx"
    end.do(*vxlan.split(), "local", own, "remote", remote)
    mac = f"02:00:00:00:00:{'01' if addresses is HERE else '02'}"
    end.do("link", "set", "vxlan.calico", "addrgenmode", "none", "address", mac, "up")
    nodad = ("nodad",) if version == 6 else ()
    end.do("addr", "add", f"{addresses[version]}/{WIDTH[version]}", "dev", "vxlan.calico", *nodad)


def deny_all(uplinked: Uplinked) -> None:
    uplinked.put_host("uplink", "eth0")
    uplinked.lab.put("GlobalNetworkPolicy", "deny-all", {**DENY_ALL, "applyOnForward": True, "selector": "has(host)"})


@pytest.mark.parametrize("version", [4, 6])
def test_tunnels_between_nodes_stay_open(uplinked: Uplinked, version: int) -> None:
    """Workloads of other nodes arrive, but only through known nodes' tunnels."""
    nodes = frozenset((ip_network(f"{OTHER[version]}/{WIDTH[version]}"),))
    uplinked.lab.tunnels = Tunnels(frozenset((version,)), version == 4, nodes)
    make_tunnel(uplinked, version)
    deny_all(uplinked)
    assert uplinked.into_workload(80, version)
    start(uplinked, hosts=1, policies=1)
    assert uplinked.into_workload(80, version) and not uplinked.into_host(80, version) and uplinked.log_in(version)
    pod, marker = uplinked.lab.workloads["a"].ns, (uplinked.host, POD[version], 9)
    length = 24 if version == 4 else 64
    nodad = ("nodad",) if version == 6 else ()
    uplinked.other.do("addr", "add", f"{STRANGER[version]}/{length}", "dev", "eth0", *nodad)
    assert uplinked.arrives(uplinked.other, POD[version], 80, pod, marker)
    uplinked.other.do("link", "del", "vxlan.calico")
    make_other_end(uplinked, version, STRANGER[version])
    uplinked.other.do("neigh", "replace", HERE[version], "lladdr", "02:00:00:00:00:01", "dev", "vxlan.calico")
    assert not uplinked.arrives(uplinked.other, POD[version], 80, pod, marker)  # no node has that address


@pytest.mark.parametrize("version", [4, 6])
def test_without_tunnels_nothing_passes_as_one(uplinked: Uplinked, version: int) -> None:
    """Workloads' packets come as they are, and are forwarded traffic; VXLAN is the host's own."""
    deny_all(uplinked)
    start(uplinked, hosts=1, policies=1)
    assert not uplinked.into_workload(80, version)
    uplinked.lab.put("GlobalNetworkPolicy", "deny-all", {**DENY_ALL, "selector": "has(host)"})
    uplinked.until(lambda: uplinked.into_workload(80, version), True, "forwarded traffic is open")
    assert not uplinked.into_host(80, version)
    make_tunnel(uplinked, version)
    assert not uplinked.into_workload(80, version)
    uplinked.lab.remove("HostEndpoint", "uplink")
    uplinked.until(lambda: uplinked.into_workload(80, version), True, "through the tunnel that nobody polices")


def ipip_arrives(uplinked: Uplinked, source: tuple[Namespace, str], destination: tuple[Namespace, str]) -> bool:
    """Whether a packet of that protocol arrives, known when a later one has, to a failsafe port. Without a device."""
    uplinked.count += 1
    word = f"ipip{uplinked.count}".encode()
    with (
        socket_in(destination[0], socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IPIP) as arrived,
        socket_in(source[0], socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IPIP) as sending,
    ):
        sending.bind((source[1], 0))
        try:
            sending.sendto(word, (destination[1], 0))
        except PermissionError:
            return False  # how the kernel says that it was dropped on its way out
        assert uplinked.into_host(DHCP) if destination[0] is uplinked.host else uplinked.out_of_host(DNS)
        arrived.setblocking(False)
        while True:
            try:
                if arrived.recv(4096).endswith(word):
                    return True
            except BlockingIOError:
                return False


def test_ipip_between_nodes_stays_open(uplinked: Uplinked) -> None:
    """To and from known nodes, and only where this node has such a tunnel. What has passed once is tracked."""
    here, there, stranger = (uplinked.host, HOST[4]), (uplinked.other, OTHER[4]), (uplinked.other, STRANGER[4])
    before = (uplinked.other, "172.31.0.78")
    for _, address in (stranger, before):
        uplinked.other.do("addr", "add", f"{address}/24", "dev", "eth0")
    assert ipip_arrives(uplinked, before, here) and ipip_arrives(uplinked, here, before)
    nodes = frozenset((ip_network(f"{OTHER[4]}/32"),))
    deny_all(uplinked)
    for has_tunnel in (False, True):
        uplinked.lab.tunnels = Tunnels(frozenset(), has_tunnel, nodes)
        start(uplinked, hosts=1, policies=1)
        assert not ipip_arrives(uplinked, stranger, here) and not ipip_arrives(uplinked, here, stranger)
        assert ipip_arrives(uplinked, there, here) is ipip_arrives(uplinked, here, there) is has_tunnel
        uplinked.lab.stop()


def test_without_ipv6_only_ipv4_is_policed_at_host_endpoints(uplinked: Uplinked) -> None:
    deny_all(uplinked)
    start(uplinked, ipv6=False, hosts=1, policies=1)
    assert not uplinked.into_host(80) and not uplinked.out_of_host(80) and uplinked.log_in()
    assert uplinked.into_host(80, 6) and uplinked.out_of_host(80, 6)
    uplinked.lab.stop()
    start(uplinked, hosts=1, policies=1)
    assert not uplinked.into_host(80, 6) and not uplinked.out_of_host(80, 6) and uplinked.log_in(6)
