"""What a pod tells the host itself at its own interface: routers and redirects, DHCP, helpers of connection tracking;
and multicast of the host's neighbours.

Rule: each forged frame is known to be a good one, because the host believes it where the setting that stops it, or the
route that it would change, is another one.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import pytest

from cni_calico.plugin.network.plan import host_sysctls
from tests.deadlines import until
from tests.netns.policing.lab import socket_in
from tests.netns.policing.test_frames import checksum
from tests.netns.policing.uplinked import FAMILIES, HOST, OTHER, POD, Uplinked, uplinked_lab

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]

FILTERS = ["Auto", "Disabled"]
IPV4, IPV6, UDP, ICMP, ICMPV6 = 0x0800, 0x86DD, 17, 1, 58
ADVERTISEMENT, REDIRECT6, REDIRECT = 134, 137, 5
# the pod's own, made of its MAC address as kernels do; a stranger behind the uplink that the host talks to
ROUTER, STRANGER = ip_address("fe80::bad"), {4: "203.0.113.5", 6: "2001:db8::5"}
HOST_MAC = bytes.fromhex("eeeeeeeeeeee")
ALL_NODES, BROADCAST = bytes.fromhex("333300000001"), bytes.fromhex("ffffffffffff")
HOST_LOCAL = ip_address("fe80::ecee:eeff:feee:eeee")


@pytest.fixture
def host_end(tmp_path: Path) -> Iterator[Uplinked]:
    """The workload's interface with the settings that an ADD gives it, and with every default that believes others."""
    with uplinked_lab(tmp_path) as made:
        for version in ("ipv4", "ipv6"):
            for interface in ("all", "calia"):
                made.host.set_sysctl(f"{version}/conf/{interface}/accept_redirects", "1")
        for path, value in host_sysctls("calia", v4=True, v6=True):
            made.host.set_sysctl("/".join(path), value)
        until(lambda: is_usable(made), "the interface's own address")
        made.lab.always = {"FELIX_DEFAULTENDPOINTTOHOSTACTION": "RETURN"}
        yield made


def is_usable(node: Uplinked) -> bool:
    [interface] = node.host.ip("-6", "addr", "show", "dev", "calia", "scope", "link")
    return [info for info in interface["addr_info"] if not info.get("tentative")] != []


def start(node: Uplinked, mode: str, **counts: int) -> None:
    """The engine, until its policies (``counts``), or else the standing rules are in force."""
    lab = node.lab
    lab.always = {**lab.always, "FELIX_NFTABLESMODE": mode}
    lab.start()
    if counts:
        lab.until_in_force(**counts)
    else:
        until(lambda: "spoofing" in lab.ruleset() and lab.standing().get("ready"), "the standing rules")


class Wire:
    """The workload's own frames, past its kernel."""

    def __init__(self, node: Uplinked, stack: ExitStack) -> None:
        ns = node.lab.workloads["a"].ns
        self._socket = stack.enter_context(socket_in(ns, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))
        self._socket.bind(("eth0", 3))
        link = ns.link("eth0")
        assert link is not None
        self.mac = bytes.fromhex(link["address"].replace(":", ""))

    def send(self, kind: int, packet: bytes, to: bytes = HOST_MAC) -> None:
        self._socket.send(to + self.mac + kind.to_bytes(2, "big") + packet)


@pytest.fixture
def own_wire(host_end: Uplinked) -> Iterator[Wire]:
    with ExitStack() as stack:
        yield Wire(host_end, stack)


def icmpv6(source: Any, to: Any, body: bytes) -> bytes:
    ends = ip_address(str(source)).packed + ip_address(str(to)).packed
    pseudo = ends + struct.pack(">II", len(body), ICMPV6)
    summed = body[:2] + struct.pack(">H", checksum(pseudo + body)) + body[4:]
    return struct.pack(">IHBB", 6 << 28, len(body), ICMPV6, 255) + ends + summed


def ipv4(source: str, to: str, protocol: int, payload: bytes) -> bytes:
    fixed = struct.pack(">BBHHHBB", 0x45, 0, 20 + len(payload), 7, 0, 64, protocol)
    ends = IPv4Address(source).packed + IPv4Address(to).packed
    return fixed + struct.pack(">H", checksum(fixed + bytes(2) + ends)) + ends + payload


def ipv6(source: str, to: str, payload: bytes) -> bytes:
    return (
        struct.pack(">IHBB", 6 << 28, len(payload), UDP, 64)
        + IPv6Address(source).packed
        + (IPv6Address(to).packed + payload)
    )


def udp(source: str, to: str, sport: int, port: int, word: bytes) -> bytes:
    length = 8 + len(word)
    header = struct.pack(">HHH", sport, port, length)
    ends = ip_address(source).packed + ip_address(to).packed
    summed = checksum(ends + struct.pack(">II", length, UDP) + header + bytes(2) + word) or 0xFFFF
    payload = header + struct.pack(">H", summed) + word
    return ipv6(source, to, payload) if ":" in source else ipv4(source, to, UDP, payload)


def advertisement(mac: bytes) -> bytes:
    """A router, with a prefix in which everybody shall make an address."""
    router = struct.pack(">BBHBBHII", ADVERTISEMENT, 0, 0, 64, 0, 1800, 0, 0)
    prefix = struct.pack(">BBBBIII", 3, 4, 64, 0xC0, 86400, 14400, 0) + IPv6Address("2001:db8:bad::").packed
    return icmpv6(ROUTER, "ff02::1", router + prefix + bytes((1, 1)) + mac)


def until_heard(node: Uplinked, own_wire: Wire) -> None:
    """Until the host has taken everything that was sent before: an echo is answered after it."""
    with socket_in(node.lab.workloads["a"].ns, socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(IPV6)) as seen:
        seen.settimeout(20)
        seen.bind(("eth0", IPV6))
        request = struct.pack(">BBHHH", 128, 0, 0, 7, 7)
        own_wire.send(IPV6, icmpv6(POD[6], HOST_LOCAL, request))
        while (packet := seen.recv(2048))[6] != ICMPV6 or packet[40] != 129:
            pass


def advertised(node: Uplinked) -> bool:
    """Whether the host has a route or an address of the advertisement."""
    routes = [route for route in node.host.routes(6) if route.get("protocol") == "ra"]
    return bool(routes or [address for address in node.host.addresses("calia") if "bad" in address])


def test_router_advertisements_of_a_pod(host_end: Uplinked, own_wire: Wire) -> None:
    for _ in range(3):
        own_wire.send(IPV6, advertisement(own_wire.mac), ALL_NODES)
    until_heard(host_end, own_wire)
    assert not advertised(host_end)
    host_end.host.set_sysctl("ipv6/conf/calia/accept_ra", "2")  # who forwards believes with 2 only
    own_wire.send(IPV6, advertisement(own_wire.mac), ALL_NODES)
    until(lambda: advertised(host_end), "the frame is a good one")


def redirect(version: int, gateway: str, mac: bytes) -> tuple[int, bytes]:
    """From the gateway: packets for STRANGER shall go to the workload."""
    if version == 4:
        quoted = ipv4(HOST[4], STRANGER[4], UDP, struct.pack(">HHHH", 40000, 9, 8, 0))
        body = IPv4Address(POD[4]).packed + quoted
        summed = checksum(bytes((REDIRECT, 1, 0, 0)) + body)
        return IPV4, ipv4(gateway, HOST[4], ICMP, struct.pack(">BBH", REDIRECT, 1, summed) + body)
    ends = IPv6Address("fe80::cafe").packed + IPv6Address(STRANGER[6]).packed
    return IPV6, icmpv6(gateway, HOST_LOCAL, struct.pack(">BBHI", REDIRECT6, 0, 0, 0) + ends + bytes((2, 1)) + mac)


def next_hop(node: Uplinked, version: int) -> tuple[str, str]:
    [route] = node.host.ip(f"-{version}", "route", "get", STRANGER[version])
    return route.get("gateway") or str(route.get("via")), route["dev"]


@pytest.mark.parametrize("version", [4, 6])
def test_redirects_of_a_pod(host_end: Uplinked, own_wire: Wire, version: int) -> None:
    """A redirect counts only from the gateway, and at its interface: no route of the host has a workload as gateway."""
    host_end.host.do(f"-{version}", "route", "add", STRANGER[version], "via", OTHER[version])
    with socket_in(host_end.host, FAMILIES[version], socket.SOCK_DGRAM) as talking:
        talking.sendto(b"x", (STRANGER[version], 9))  # there is something to redirect
    before = next_hop(host_end, version)
    senders = [POD[version], OTHER[version], "fe80::1" if version == 6 else HOST[4]]
    for sender in senders:
        own_wire.send(*redirect(version, sender, own_wire.mac))
    until_heard(host_end, own_wire)
    assert next_hop(host_end, version) == before == (OTHER[version], "eth0")


def test_a_redirect_that_counts_is_such_a_frame(host_end: Uplinked, own_wire: Wire) -> None:
    """IPv6, where a host that does not forward has the workload as its gateway."""
    host = host_end.host
    host.set_sysctl("ipv6/conf/calia/forwarding", "0")
    host.do("-6", "route", "add", STRANGER[6], "via", str(ROUTER), "dev", "calia")
    host.do("-6", "neigh", "add", str(ROUTER), "lladdr", ":".join(f"{b:02x}" for b in own_wire.mac), "dev", "calia")

    def redirected() -> bool:
        with socket_in(host, socket.AF_INET6, socket.SOCK_DGRAM) as talking:
            talking.sendto(b"x", (STRANGER[6], 9))
        own_wire.send(*redirect(6, str(ROUTER), own_wire.mac))
        return next_hop(host_end, 6)[0] == "fe80::cafe"

    until(redirected, "it is believed")


# -- DHCP --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", FILTERS)
@pytest.mark.parametrize("is_governed", [False, True], ids=["no policy", "egress denied"])
def test_dhcp_answers_of_a_pod(host_end: Uplinked, own_wire: Wire, mode: str, is_governed: bool) -> None:
    """They never reach a client of the uplink; one that listens at every interface gets the pod's, from its own
    address, unless its policies deny that.
    """
    lab = host_end.lab
    if is_governed:
        denied = {"selector": "app == 'a'", "types": ["Egress"], "egress": [{"action": "Deny"}]}
        lab.put("GlobalNetworkPolicy", "closed", denied)
    start(host_end, mode, **({"policies": 1} if is_governed else {}))
    got: dict[str, set[str]] = {}
    with ExitStack() as stack:
        for name, port, device in (("uplink", 68, b"eth0"), ("any", 68, b"")):
            client = stack.enter_context(socket_in(host_end.host, socket.AF_INET, socket.SOCK_DGRAM))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            if device:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
            client.bind(("", port))
            client.settimeout(20)
            got[name] = set()
            for sender in (POD[4], OTHER[4], "0.0.0.0"):
                for to, mac in ((HOST[4], HOST_MAC), ("255.255.255.255", BROADCAST)):
                    word = f"{sender} {to}".encode()
                    own_wire.send(IPV4, udp(sender, to, 67, 68, word), mac)
            until_marked(host_end, client, got[name])
            client.close()
    assert got["uplink"] == set()
    assert got["any"] == (
        set() if is_governed else {f"{POD[4]} {HOST[4]}", f"{POD[4]} 255.255.255.255", "0.0.0.0 255.255.255.255"}
    )


def until_marked(node: Uplinked, client: socket.socket, got: set[str]) -> None:
    """Note what the client has got when a packet from the uplink comes, which was sent later."""
    with socket_in(node.other, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for mark in (b"first", b"last"):
            sender.sendto(mark, (HOST[4], 68))
            while (data := client.recv(2048)) != mark:
                got.add(data.decode())


# -- connection tracking -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", FILTERS)
def test_no_helper_opens_a_port(host_end: Uplinked, mode: str) -> None:
    """What a workload says on FTP's control connection makes the host expect nothing."""
    lab = host_end.lab
    rules = [{"action": "Allow", "protocol": "TCP", "destination": {"ports": [21]}}]
    lab.put("GlobalNetworkPolicy", "ftp", {"selector": "app == 'a'", "types": ["Egress", "Ingress"], "egress": rules})
    start(host_end, mode, policies=1)
    pod = lab.workloads["a"].ns
    with ExitStack() as stack:
        server = stack.enter_context(socket_in(host_end.other, socket.AF_INET, socket.SOCK_STREAM))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((OTHER[4], 21))
        server.listen()
        control = stack.enter_context(socket_in(pod, socket.AF_INET, socket.SOCK_STREAM))
        for end in (server, control):
            end.settimeout(20)
        control.connect((OTHER[4], 21))
        served = stack.enter_context(server.accept()[0])
        served.sendall(b"220 ready\r\n")
        control.recv(100)
        control.sendall(f"PORT {POD[4].replace('.', ',')},31,64\r\n".encode())
        assert served.recv(100).startswith(b"PORT")
        assert host_end.host.run("cat", "/proc/net/nf_conntrack_expect").stdout.strip() == ""
        assert not host_end.into_workload(31 * 256 + 64)
        assert not re.search(r"ct helper|CT .*--helper", lab.ruleset())


@pytest.mark.parametrize("mode", FILTERS)
def test_how_many_tracked_connections_a_pod_may_have(host_end: Uplinked, own_wire: Wire, mode: str) -> None:
    """As many of TCP as its annotation says; of UDP any number: the table's bound is one for the whole host."""
    lab = host_end.lab
    lab.workloads["a"].document["qosControls"] = {"egressMaxConnections": 20}
    lab.put_endpoint(lab.workloads["a"], app="a")
    allowed = {"selector": "app == 'a'", "types": ["Egress"], "egress": [{"action": "Allow"}]}
    lab.put("GlobalNetworkPolicy", "any", allowed)
    host_end.host.do("route", "add", STRANGER[4], "via", OTHER[4])  # where nobody answers
    start(host_end, mode, policies=1)
    for port in range(20000, 20200):
        own_wire.send(IPV4, tcp_syn(POD[4], STRANGER[4], port))
        own_wire.send(IPV4, udp(POD[4], STRANGER[4], port, 9, b"x"))
    until_heard(host_end, own_wire)
    until(lambda: len(entries(host_end, "udp")) == 200, "what UDP sends is tracked")
    assert len(entries(host_end, "tcp")) == 20


def tcp_syn(source: str, to: str, sport: int) -> bytes:
    header = struct.pack(">HHIIBBHHH", sport, 80, 1, 0, 5 << 4, 2, 65535, 0, 0)
    pseudo = IPv4Address(source).packed + IPv4Address(to).packed + struct.pack(">II", len(header), 6)
    summed = checksum(pseudo + header)
    return ipv4(source, to, 6, header[:16] + struct.pack(">H", summed) + header[18:])


def entries(node: Uplinked, protocol: str) -> list[str]:
    table = node.host.run("cat", "/proc/net/nf_conntrack").stdout.splitlines()
    return [line for line in table if f" {protocol} " in line and f"src={POD[4]}" in line]


# -- multicast ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["none", "Auto"])
@pytest.mark.parametrize("version", [4, 6])
def test_multicast_of_a_neighbour_stays_outside(host_end: Uplinked, version: int, mode: str) -> None:
    """A workload that has joined the group hears the host's own, sent to its interface, and nobody else's."""
    if mode != "none":
        start(host_end, mode)
    group = "224.0.0.251" if version == 4 else "ff05::fb"
    pod = host_end.lab.workloads["a"].ns
    with ExitStack() as stack:
        listening = stack.enter_context(socket_in(pod, FAMILIES[version], socket.SOCK_DGRAM))
        listening.settimeout(20)
        listening.bind(("" if version == 4 else "::", 5353))
        join(listening, group, pod.link("eth0"))
        sent: list[tuple[bytes, Callable[[], Any], str]] = [
            (b"neighbour", lambda: host_end.other, "eth0"),
            (b"host", lambda: host_end.host, "calia"),
        ]
        for word, ns, interface in sent:
            sender = stack.enter_context(socket_in(ns(), FAMILIES[version], socket.SOCK_DGRAM))
            link = ns().link(interface)
            index = int(link["ifindex"])
            if version == 4:
                option = bytes(8) + index.to_bytes(4, "little")
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, option)
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 16)
            else:
                sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
                sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 16)
            sender.sendto(word, (group, 5353))
        assert listening.recv(100) == b"host"


def join(listening: socket.socket, group: str, link: Any) -> None:
    index = int(link["ifindex"])
    if ":" in group:
        member = IPv6Address(group).packed + index.to_bytes(4, "little")
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
    else:
        member = IPv4Address(group).packed + bytes(4) + index.to_bytes(4, "little")
        listening.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
