"""What is not policy but the engine's: spoofed sources, limits, tunnels' packets, service loops, the host itself."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink, general
from cni_calico.model.documents.codec import encode_node, encode_pool
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.feed.parameters import select_tunnels
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.nodeagent.view.sources import Sources
from tests.deadlines import until
from tests.fakes.memory_store import MemoryStore
from tests.netns.policing.lab import Lab, Workload, lab, socket_in
from tests.netns.policing.reported import denials_of
from tests.unit.nodeagent.fabric import FELIX, node, pool

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]

ARP, SENDER = 0x0806, bytes.fromhex("020000000a0a")
ELSEWHERE = {"selector": "app == 'nobody'", "types": ["Ingress"], "ingress": [{"action": "Deny"}]}


@pytest.fixture
def lab_with_policy(tmp_path: Path) -> Iterator[Lab]:
    """Two workloads that may talk, and a policy that is none of theirs."""
    with lab(tmp_path) as made:
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        made.put_profile("kns.default")
        made.put("GlobalNetworkPolicy", "elsewhere", ELSEWHERE)
        made.add("a", "10.65.0.1", "fd00::1", app="a")
        made.add("b", "10.65.0.2", "fd00::2", app="b")
        yield made


def is_nftables(node: Lab) -> bool:
    """Whose limits report what they drop; those of legacy iptables do not (docs/flows.md)."""
    return "FELIX_NFTABLESMODE" not in node.always


def alias(node: Lab, name: str, of: str, address: str) -> None:
    """Another name for a workload, with an address that its record does not have."""
    workload = node.workloads[of]
    six = ":" in address
    workload.ns.do("addr", "add", f"{address}/{128 if six else 32}", "dev", "eth0", *(("nodad",) if six else ()))
    node.workloads[name] = Workload(name, workload.ns, workload.interface, (address,))


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("setting", ["Disabled", "Any"])
def test_a_source_that_is_not_the_workloads(lab_with_policy: Lab, setting: str, version: int) -> None:
    spoofed, asked, prefix = {
        4: ("203.0.113.5", "198.51.100.5", "198.51.100.0/24"),
        6: ("2001:db8:bad::5", "2001:db8:51::5", "2001:db8:51::/48"),
    }[version]
    alias(lab_with_policy, "spoofed", "a", spoofed)
    alias(lab_with_policy, "asked", "a", asked)

    def passes(name: str) -> bool:
        return lab_with_policy.passes(name, "b", 80, version=version)

    lab_with_policy.workloads["a"].document["allowSpoofedSourcePrefixes"] = [prefix]
    lab_with_policy.put_endpoint(lab_with_policy.workloads["a"], app="a")
    assert passes("spoofed") and passes("asked")
    lab_with_policy.start(FELIX_WORKLOADSOURCESPOOFING=setting)
    lab_with_policy.until_in_force(endpoints=2)
    with denials_of(lab_with_policy) as denials:
        assert passes("a")  # the endpoint stays, whatever it asked for
        assert not passes("spoofed")
        assert passes("asked") is (setting == "Any")
        denials.check(*["a source that is not the workload's"] * (1 if setting == "Any" else 2))


def test_packet_rates(lab_with_policy: Lab) -> None:
    lab_with_policy.workloads["b"].document["qosControls"] = {"ingressPacketRate": 1, "ingressPacketBurst": 3}
    lab_with_policy.put_endpoint(lab_with_policy.workloads["b"], app="b")
    lab_with_policy.start()
    lab_with_policy.until_in_force(endpoints=2)
    with denials_of(lab_with_policy) as denials:
        there = [lab_with_policy.passes("a", "b", 80) for _ in range(40)]
        assert there[0] and there.count(False) > 10
        denials.check(*["over the packet rate"] * (there.count(False) if is_nftables(lab_with_policy) else 0))
    assert all(lab_with_policy.passes("b", "a", 80) for _ in range(10))
    lab_with_policy.workloads["b"].document.pop("qosControls")
    lab_with_policy.put_endpoint(lab_with_policy.workloads["b"], app="b")
    lab_with_policy.until_passes("a", "b", 80)
    until(lambda: "qos-forward" not in lab_with_policy.ruleset(), "no rate, no rules about it")


def test_a_packet_rate_too_high_for_iptables(lab_with_policy: Lab) -> None:
    """It can limit to 10,000 packets per second at most."""
    client, server = lab_with_policy.workloads["a"], lab_with_policy.workloads["b"]
    server.document["qosControls"] = {"ingressPacketRate": 12000, "ingressPacketBurst": 1}
    lab_with_policy.put_endpoint(server, app="b")
    lab_with_policy.start()
    lab_with_policy.until_in_force(endpoints=2)
    lab_with_policy.receiver("b", 4)
    with socket_in(client.ns, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(5000):  # some of them are less than 83 us apart
            sender.sendto(b"many", (server.address(), 80))
    assert 0 < lab_with_policy.arrivals("b", b"many") < 5000
    assert "limit rate over 12000/second" in lab_with_policy.ruleset()


def test_numbers_of_connections(lab_with_policy: Lab) -> None:
    """A new one over the limit is reset; the others go on, and one that ends makes room."""
    lab_with_policy.workloads["b"].document["qosControls"] = {"ingressMaxConnections": 3}
    lab_with_policy.put_endpoint(lab_with_policy.workloads["b"], app="b")
    lab_with_policy.start()
    lab_with_policy.until_in_force(endpoints=2)
    client, server = lab_with_policy.workloads["a"], lab_with_policy.workloads["b"]
    with ExitStack() as stack:
        denials = stack.enter_context(denials_of(lab_with_policy))
        listening = stack.enter_context(socket_in(server.ns, socket.AF_INET, socket.SOCK_STREAM))
        listening.bind((server.address(), 80))
        listening.listen()

        def connected() -> tuple[socket.socket, socket.socket]:
            made = stack.enter_context(socket_in(client.ns, socket.AF_INET, socket.SOCK_STREAM))
            made.settimeout(20)
            made.connect((server.address(), 80))
            return made, stack.enter_context(listening.accept()[0])

        pairs = [connected() for _ in range(3)]
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                connected()
        denials.check(*["over the number of connections"] * (3 if is_nftables(lab_with_policy) else 0))
        for one, other in pairs:
            one.sendall(b"still there")
            assert other.recv(100) == b"still there"
        for end in pairs[0]:  # at once, without the wait that a connection's end usually has
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()

        def accepted() -> bool:
            try:
                return bool(connected())
            except ConnectionRefusedError:
                return False

        until(accepted, "room for another connection")


def test_the_host_never_claims_a_workloads_own_address(lab_with_policy: Lab) -> None:
    """With proxy ARP it would, while the route to the workload is not there: the workload sees a duplicate address."""
    client = lab_with_policy.workloads["a"]
    lab_with_policy.host.set_sysctl("ipv4/conf/calia/proxy_arp", "1")
    lab_with_policy.host.set_sysctl("ipv4/neigh/calia/proxy_delay", "0")
    lab_with_policy.host.do("route", "del", client.address(), "dev", "calia")
    lab_with_policy.host.do("route", "add", "10.65.0.0/24", "dev", "calib")

    def claimed() -> set[str]:
        """Addresses of which the host says that they are its own; the gateway's is asked for last."""
        with socket_in(client.ns, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ARP)) as wire:
            wire.bind(("eth0", ARP))
            wire.settimeout(20)
            found: set[str] = set()
            for address in (client.address(), "10.65.0.99"):
                own, asked = ip_address(client.address()).packed, ip_address(address).packed
                question = b"\0\1\x08\0\6\4\0\1" + SENDER + own + bytes(6) + asked
                wire.send(b"\xff" * 6 + SENDER + ARP.to_bytes(2, "big") + question)
            while "10.65.0.99" not in found:
                packet = wire.recv(100)
                if packet[20:22] == b"\0\2":
                    found.add(str(ip_address(packet[28:32])))
            return found

    assert claimed() == {client.address(), "10.65.0.99"}
    lab_with_policy.start()
    lab_with_policy.until_in_force(endpoints=2)
    assert claimed() == {"10.65.0.99"}


@pytest.mark.parametrize("unchecked", [False, True])
def test_what_connection_tracking_cannot_understand(lab_with_policy: Lab, unchecked: bool) -> None:
    client, server = lab_with_policy.workloads["a"], lab_with_policy.workloads["b"]
    too_short = struct.pack("!HHHH", 40000, 80, 4, 0)  # a UDP header is 8 bytes long, so no length is less
    lab_with_policy.receiver("b", 4)
    with socket_in(client.ns, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as raw:
        raw.sendto(too_short + b"before", (server.address(), 0))
        assert lab_with_policy.arrivals("b", b"before") == 1
        lab_with_policy.start(FELIX_DISABLECONNTRACKINVALIDCHECK=str(unchecked).lower())
        lab_with_policy.until_in_force(endpoints=2)
        with denials_of(lab_with_policy) as denials:
            raw.sendto(too_short + b"policed", (server.address(), 0))
            assert lab_with_policy.arrivals("b", b"policed") == unchecked
            denials.check(*(() if unchecked else ("invalid",)))
    assert lab_with_policy.passes("a", "b", 80)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("action", ["Drop", "Reject"])
def test_what_deny_does(lab_with_policy: Lab, action: str, version: int) -> None:
    """The same for a rule's Deny, the end of a tier, and the end of the profiles."""
    lab_with_policy.put_profile("kns.closed", allow=False)
    lab_with_policy.add("c", "10.65.0.3", "fd00::3", namespace_name="closed")
    udp = {"protocol": "UDP"}
    rules = [
        {"action": "Allow", **udp, "destination": {"ports": [80]}},
        {"action": "Deny", **udp, "destination": {"ports": [81]}},
    ]
    lab_with_policy.put("GlobalNetworkPolicy", "b", {"selector": "app == 'b'", "types": ["Ingress"], "ingress": rules})
    lab_with_policy.start(FELIX_NFTABLESFILTERDENYACTION=action)
    lab_with_policy.until_in_force(endpoints=3)
    assert lab_with_policy.passes("a", "b", 80, version=version)
    said = (
        "ingress: b rule 1",
        "ingress: end of tier default (policies: b)",
        "ingress: no policy or profile allowed it",
    )
    for name, port, reason in (("b", 81, said[0]), ("b", 82, said[1]), ("c", 80, said[2])):
        with denials_of(lab_with_policy) as denials:
            assert not lab_with_policy.passes("a", name, port, version=version)
            family = socket.AF_INET if version == 4 else socket.AF_INET6
            with socket_in(lab_with_policy.workloads["a"].ns, family, socket.SOCK_DGRAM) as client:
                client.connect((lab_with_policy.workloads[name].address(version), port))
                client.send(b"hello")
                assert lab_with_policy.arrivals(name, b"hello", version) == 0
                client.settimeout(5 if action == "Reject" else 0)
                with pytest.raises(ConnectionRefusedError if action == "Reject" else BlockingIOError):
                    client.recv(100)
            denials.check(reason, reason)


@pytest.mark.parametrize("allowed", [False, True])
def test_tunnel_packets_of_workloads(lab_with_policy: Lab, allowed: bool) -> None:
    lab_with_policy.start(FELIX_ALLOWVXLANPACKETSFROMWORKLOADS=str(allowed).lower())
    lab_with_policy.until_in_force(endpoints=2)
    with denials_of(lab_with_policy) as denials:
        for version in (4, 6):
            assert lab_with_policy.passes("a", "b", 4789, version=version) is allowed
            assert lab_with_policy.passes("a", "b", 4790, version=version)
        denials.check(*["VXLAN from a workload"] * (0 if allowed else 2))


def test_service_loops(lab_with_policy: Lab) -> None:
    """Packets to a service's address that nobody translated are not forwarded."""
    alias(lab_with_policy, "service", "b", "10.96.0.7")
    lab_with_policy.host.do("route", "add", "10.96.0.7", "dev", "calib")
    mac = lab_with_policy.workloads["b"].ns.link("eth0")
    assert mac is not None
    lab_with_policy.host.do("neigh", "add", "10.96.0.7", "lladdr", mac["address"], "dev", "calib")
    lab_with_policy.start()
    lab_with_policy.until_in_force(endpoints=2)
    assert lab_with_policy.passes("a", "service", 80)
    ranges = {"serviceClusterIPs": [{"cidr": "10.96.0.0/16"}], "serviceExternalIPs": [{"cidr": "203.0.113.0/24"}]}
    lab_with_policy.put("BGPConfiguration", "default", ranges)
    with denials_of(lab_with_policy) as denials:
        lab_with_policy.until_passes("a", "service", 80, False)
        denials.check("service loop")
    assert lab_with_policy.passes("a", "b", 80)
    lab_with_policy.remove("BGPConfiguration", "default")
    lab_with_policy.until_passes("a", "service", 80)


@pytest.mark.parametrize("action", ["DROP", "RETURN", "ACCEPT"])
def test_workload_to_host(lab_with_policy: Lab, action: str) -> None:
    lab_with_policy.workloads["host"] = Workload("host", lab_with_policy.host, "", ("192.0.2.10", "2001:db8::10"))
    assert lab_with_policy.passes("a", "host", 53)
    lab_with_policy.start(FELIX_DEFAULTENDPOINTTOHOSTACTION=action)
    lab_with_policy.until_in_force(endpoints=2)
    with denials_of(lab_with_policy) as denials:
        assert lab_with_policy.passes("a", "host", 53) is (action != "DROP")
        assert lab_with_policy.passes("a", "host", 53, version=6) is (action != "DROP")
        denials.check(*["DefaultEndpointToHostAction"] * (2 if action == "DROP" else 0))
    deny = {"selector": "app == 'a'", "types": ["Egress"], "egress": [{"action": "Deny", "protocol": "UDP"}]}
    lab_with_policy.put("GlobalNetworkPolicy", "deny", deny)
    lab_with_policy.until_passes("a", "host", 53, False)
    assert lab_with_policy.passes("host", "a", 53)  # the host reaches its own workloads always


def test_without_ipv6(lab_with_policy: Lab) -> None:
    assert lab_with_policy.passes("a", "b", 80, version=6)
    lab_with_policy.start(FELIX_IPV6SUPPORT="false")
    lab_with_policy.until_in_force(endpoints=2)
    with pytest.raises(PermissionError):  # the host's own packet, which is to mark the end
        lab_with_policy.passes("a", "b", 80, version=6)
    assert lab_with_policy.passes("a", "b", 80)
    arrived = lab_with_policy.receiver("b", 6)
    arrived.setblocking(False)
    with pytest.raises(BlockingIOError):
        arrived.recv(4096)


@pytest.mark.parametrize("version", [4, 6])
def test_vxlan_only_from_nodes(lab_with_policy: Lab, version: int) -> None:
    """And of nodes it is not tracked; what is known of the nodes may change."""
    host, peer, stranger, single, both = {
        4: ("192.0.2.10", "192.0.2.50", "192.0.2.51", "192.0.2.50/32", "192.0.2.48/29"),
        6: ("2001:db8::10", "2001:db8::50", "2001:db8::51", "2001:db8::50/128", "2001:db8::50/124"),
    }[version]
    lab_with_policy.workloads["host"] = Workload("host", lab_with_policy.host, "", (host,))
    lab_with_policy.connect("peer", "eth7", peer)
    lab_with_policy.connect("stranger", "eth8", stranger)

    def arrives(name: str, port: int) -> bool:
        return lab_with_policy.passes(name, "host", port, version=version)

    def is_tracked(port: int) -> bool:
        return lab_with_policy.host.call(_is_tracked, port, "ip" if version == 4 else "ip6")

    families = frozenset((version,))
    lab_with_policy.tunnels = Tunnels(families, False, frozenset((ip_network(single),)))
    lab_with_policy.start()
    lab_with_policy.until_in_force(endpoints=2)
    assert arrives("peer", 4789) and not arrives("stranger", 4789)
    assert arrives("stranger", 4790)
    assert not is_tracked(4789) and is_tracked(4790)
    lab_with_policy.stop()
    lab_with_policy.tunnels = Tunnels(families, False, frozenset((ip_network(both),)))
    lab_with_policy.start()
    until(lambda: arrives("stranger", 4789), "it is a node now")
    lab_with_policy.stop()
    lab_with_policy.tunnels = Tunnels()
    lab_with_policy.start()
    until(lambda: "notrack" not in lab_with_policy.ruleset(), "no tunnels, no rules about them")
    assert arrives("stranger", 4789)


def test_a_node_that_cannot_be_read_opens_vxlan_to_nobody(lab_with_policy: Lab) -> None:
    """Of one whose record is broken elsewhere the address counts."""
    store = MemoryStore()
    store.elsewhere(Write.put(ResourceKey("Node", "n1"), encode_node(node("n1", "192.0.2.10/24"))))
    store.elsewhere(
        Write.put(
            ResourceKey("IPPool", "p"), {**encode_pool(pool("10.65.0.0/16", vxlan="Always")), "metadata": {"name": "p"}}
        )
    )
    for name, bgp in (("n2", {"ipv4Address": "192.0.2.50/24", "asNumber": []}), ("n3", {"ipv4Address": 7})):
        store.elsewhere(Write.put(ResourceKey("Node", name), {"metadata": {"name": name}, "spec": {"bgp": bgp}}))
    sources = Sources(store, "n1", lambda: None)
    try:
        sources.wait_synced(Deadline.after(10))
        snapshot = sources.snapshot()
    finally:
        sources.stop()
    assert snapshot.cut_off == ("n3",)
    lab_with_policy.workloads["host"] = Workload("host", lab_with_policy.host, "", ("192.0.2.10",))
    lab_with_policy.connect("peer", "eth7", "192.0.2.50")
    lab_with_policy.connect("stranger", "eth8", "192.0.2.51")
    lab_with_policy.tunnels = select_tunnels(snapshot, FELIX, "bird", ("vxlan.calico",))
    lab_with_policy.start()
    lab_with_policy.until_in_force(endpoints=2)
    assert lab_with_policy.passes("peer", "host", 4789) and not lab_with_policy.passes("stranger", "host", 4789)
    assert lab_with_policy.passes("stranger", "host", 4790)


def _is_tracked(port: int, family: str) -> bool:
    with Nfnetlink() as netlink:
        listed = netlink.dump(1 << 8 | 1, general(family), "list", Deadline.after(5))
    return any(port.to_bytes(2, "big") in payload for payload in listed)
