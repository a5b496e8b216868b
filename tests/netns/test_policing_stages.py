"""What is not policy but the engine's: spoofed sources, limits, tunnels' packets, service loops, the host itself."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink, general
from cni_calico.nodeagent.dataplane.policy.tunnels import Tunnels
from tests.netns.namespaces import until
from tests.netns.policing import Lab, Workload, lab

pytestmark = pytest.mark.netns

ELSEWHERE = {"selector": "app == 'nobody'", "types": ["Ingress"], "ingress": [{"action": "Deny"}]}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Lab]:
    """Two workloads that may talk, and a policy that is none of theirs."""
    with lab(tmp_path) as made:
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        made.put_profile("kns.default")
        made.put("GlobalNetworkPolicy", "elsewhere", ELSEWHERE)
        made.add("a", "10.65.0.1", "fd00::1", app="a")
        made.add("b", "10.65.0.2", "fd00::2", app="b")
        yield made


def alias(node: Lab, name: str, of: str, address: str) -> None:
    """Another name for a workload, with an address that its record does not have."""
    workload = node.workloads[of]
    workload.ns.do("addr", "add", f"{address}/32", "dev", "eth0")
    node.workloads[name] = Workload(name, workload.ns, workload.interface, (address,))


@pytest.mark.parametrize("setting", ["Disabled", "Any"])
def test_a_source_that_is_not_the_workloads(node: Lab, setting: str) -> None:
    alias(node, "spoofed", "a", "203.0.113.5")
    alias(node, "asked", "a", "198.51.100.5")
    node.workloads["a"].document["allowSpoofedSourcePrefixes"] = ["198.51.100.0/24"]
    node.put_endpoint(node.workloads["a"], app="a")
    assert node.passes("spoofed", "b", 80) and node.passes("asked", "b", 80)
    node.start(FELIX_WORKLOADSOURCESPOOFING=setting)
    node.until_in_force(endpoints=2)
    assert node.passes("a", "b", 80)  # the endpoint stays, whatever it asked for
    assert not node.passes("spoofed", "b", 80)
    assert node.passes("asked", "b", 80) is (setting == "Any")


def test_packet_rates(node: Lab) -> None:
    node.workloads["b"].document["qosControls"] = {"ingressPacketRate": 1, "ingressPacketBurst": 3}
    node.put_endpoint(node.workloads["b"], app="b")
    node.start()
    node.until_in_force(endpoints=2)
    there = [node.passes("a", "b", 80) for _ in range(40)]
    assert there[0] and there.count(False) > 10
    assert all(node.passes("b", "a", 80) for _ in range(10))
    node.workloads["b"].document.pop("qosControls")
    node.put_endpoint(node.workloads["b"], app="b")
    node.until_passes("a", "b", 80)
    node.until_in_force(endpoints=2)
    assert "qos-forward" not in node.ruleset()


@pytest.mark.parametrize("allowed", [False, True])
def test_tunnel_packets_of_workloads(node: Lab, allowed: bool) -> None:
    node.start(FELIX_ALLOWVXLANPACKETSFROMWORKLOADS=str(allowed).lower())
    node.until_in_force(endpoints=2)
    assert node.passes("a", "b", 4789) is allowed
    assert node.passes("a", "b", 4790)


def test_service_loops(node: Lab) -> None:
    """Packets to a service's address that nobody translated are not forwarded."""
    alias(node, "service", "b", "10.96.0.7")
    node.host.do("route", "add", "10.96.0.7", "dev", "calib")
    mac = node.workloads["b"].ns.link("eth0")
    assert mac is not None
    node.host.do("neigh", "add", "10.96.0.7", "lladdr", mac["address"], "dev", "calib")
    node.start()
    node.until_in_force(endpoints=2)
    assert node.passes("a", "service", 80)
    ranges = {"serviceClusterIPs": [{"cidr": "10.96.0.0/16"}], "serviceExternalIPs": [{"cidr": "203.0.113.0/24"}]}
    node.put("BGPConfiguration", "default", ranges)
    node.until_passes("a", "service", 80, False)
    assert node.passes("a", "b", 80)
    node.remove("BGPConfiguration", "default")
    node.until_passes("a", "service", 80)


@pytest.mark.parametrize("action", ["DROP", "RETURN", "ACCEPT"])
def test_workload_to_host(node: Lab, action: str) -> None:
    node.workloads["host"] = Workload("host", node.host, "", ("192.0.2.10", "2001:db8::10"))
    assert node.passes("a", "host", 53)
    node.start(FELIX_DEFAULTENDPOINTTOHOSTACTION=action)
    node.until_in_force(endpoints=2)
    assert node.passes("a", "host", 53) is (action != "DROP")
    assert node.passes("a", "host", 53, version=6) is (action != "DROP")
    deny = {"selector": "app == 'a'", "types": ["Egress"], "egress": [{"action": "Deny", "protocol": "UDP"}]}
    node.put("GlobalNetworkPolicy", "deny", deny)
    node.until_passes("a", "host", 53, False)
    assert node.passes("host", "a", 53)  # the host reaches its own workloads always


def test_without_ipv6(node: Lab) -> None:
    assert node.passes("a", "b", 80, version=6)
    node.start(FELIX_IPV6SUPPORT="false")
    node.until_in_force(endpoints=2)
    with pytest.raises(PermissionError):  # the host's own packet, which is to mark the end
        node.passes("a", "b", 80, version=6)
    assert node.passes("a", "b", 80)
    arrived = node.receiver("b", 6)
    arrived.setblocking(False)
    with pytest.raises(BlockingIOError):
        arrived.recv(4096)


def test_vxlan_only_from_nodes(node: Lab) -> None:
    """And of nodes it is not tracked; what is known of the nodes may change."""
    node.workloads["host"] = Workload("host", node.host, "", ("192.0.2.10",))
    node.connect("peer", "eth7", "192.0.2.50")
    node.connect("stranger", "eth8", "192.0.2.51")
    node.tunnels = Tunnels(frozenset((4,)), False, frozenset((ip_network("192.0.2.50/32"),)))
    node.start()
    node.until_in_force(endpoints=2)
    assert node.passes("peer", "host", 4789) and not node.passes("stranger", "host", 4789)
    assert node.passes("stranger", "host", 4790)
    assert not node.host.call(_is_tracked, 4789) and node.host.call(_is_tracked, 4790)
    node.stop()
    node.tunnels = Tunnels(frozenset((4,)), False, frozenset((ip_network("192.0.2.48/29"),)))
    node.start()
    node.until_passes("stranger", "host", 4789)
    node.stop()
    node.tunnels = Tunnels()
    node.start()
    until(lambda: "notrack" not in node.ruleset(), "no tunnels, no rules about them")
    assert node.passes("stranger", "host", 4789)


def _is_tracked(port: int) -> bool:
    with Nfnetlink() as netlink:
        listed = netlink.dump(1 << 8 | 1, general("ip"), "list", Deadline.after(5))
    return any(port.to_bytes(2, "big") in payload for payload in listed)
