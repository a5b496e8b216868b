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
def lab_with_policy(tmp_path: Path) -> Iterator[Lab]:
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
def test_a_source_that_is_not_the_workloads(lab_with_policy: Lab, setting: str) -> None:
    alias(lab_with_policy, "spoofed", "a", "203.0.113.5")
    alias(lab_with_policy, "asked", "a", "198.51.100.5")
    lab_with_policy.workloads["a"].document["allowSpoofedSourcePrefixes"] = ["198.51.100.0/24"]
    lab_with_policy.put_endpoint(lab_with_policy.workloads["a"], app="a")
    assert lab_with_policy.passes("spoofed", "b", 80) and lab_with_policy.passes("asked", "b", 80)
    lab_with_policy.start(FELIX_WORKLOADSOURCESPOOFING=setting)
    lab_with_policy.until_in_force(endpoints=2)
    assert lab_with_policy.passes("a", "b", 80)  # the endpoint stays, whatever it asked for
    assert not lab_with_policy.passes("spoofed", "b", 80)
    assert lab_with_policy.passes("asked", "b", 80) is (setting == "Any")


def test_packet_rates(lab_with_policy: Lab) -> None:
    lab_with_policy.workloads["b"].document["qosControls"] = {"ingressPacketRate": 1, "ingressPacketBurst": 3}
    lab_with_policy.put_endpoint(lab_with_policy.workloads["b"], app="b")
    lab_with_policy.start()
    lab_with_policy.until_in_force(endpoints=2)
    there = [lab_with_policy.passes("a", "b", 80) for _ in range(40)]
    assert there[0] and there.count(False) > 10
    assert all(lab_with_policy.passes("b", "a", 80) for _ in range(10))
    lab_with_policy.workloads["b"].document.pop("qosControls")
    lab_with_policy.put_endpoint(lab_with_policy.workloads["b"], app="b")
    lab_with_policy.until_passes("a", "b", 80)
    lab_with_policy.until_in_force(endpoints=2)
    assert "qos-forward" not in lab_with_policy.ruleset()


@pytest.mark.parametrize("allowed", [False, True])
def test_tunnel_packets_of_workloads(lab_with_policy: Lab, allowed: bool) -> None:
    lab_with_policy.start(FELIX_ALLOWVXLANPACKETSFROMWORKLOADS=str(allowed).lower())
    lab_with_policy.until_in_force(endpoints=2)
    assert lab_with_policy.passes("a", "b", 4789) is allowed
    assert lab_with_policy.passes("a", "b", 4790)


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
    lab_with_policy.until_passes("a", "service", 80, False)
    assert lab_with_policy.passes("a", "b", 80)
    lab_with_policy.remove("BGPConfiguration", "default")
    lab_with_policy.until_passes("a", "service", 80)


@pytest.mark.parametrize("action", ["DROP", "RETURN", "ACCEPT"])
def test_workload_to_host(lab_with_policy: Lab, action: str) -> None:
    lab_with_policy.workloads["host"] = Workload("host", lab_with_policy.host, "", ("192.0.2.10", "2001:db8::10"))
    assert lab_with_policy.passes("a", "host", 53)
    lab_with_policy.start(FELIX_DEFAULTENDPOINTTOHOSTACTION=action)
    lab_with_policy.until_in_force(endpoints=2)
    assert lab_with_policy.passes("a", "host", 53) is (action != "DROP")
    assert lab_with_policy.passes("a", "host", 53, version=6) is (action != "DROP")
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


def test_vxlan_only_from_nodes(lab_with_policy: Lab) -> None:
    """And of nodes it is not tracked; what is known of the nodes may change."""
    lab_with_policy.workloads["host"] = Workload("host", lab_with_policy.host, "", ("192.0.2.10",))
    lab_with_policy.connect("peer", "eth7", "192.0.2.50")
    lab_with_policy.connect("stranger", "eth8", "192.0.2.51")
    lab_with_policy.tunnels = Tunnels(frozenset((4,)), False, frozenset((ip_network("192.0.2.50/32"),)))
    lab_with_policy.start()
    lab_with_policy.until_in_force(endpoints=2)
    assert lab_with_policy.passes("peer", "host", 4789) and not lab_with_policy.passes("stranger", "host", 4789)
    assert lab_with_policy.passes("stranger", "host", 4790)
    assert not lab_with_policy.host.call(_is_tracked, 4789) and lab_with_policy.host.call(_is_tracked, 4790)
    lab_with_policy.stop()
    lab_with_policy.tunnels = Tunnels(frozenset((4,)), False, frozenset((ip_network("192.0.2.48/29"),)))
    lab_with_policy.start()
    lab_with_policy.until_passes("stranger", "host", 4789)
    lab_with_policy.stop()
    lab_with_policy.tunnels = Tunnels()
    lab_with_policy.start()
    until(lambda: "notrack" not in lab_with_policy.ruleset(), "no tunnels, no rules about them")
    assert lab_with_policy.passes("stranger", "host", 4789)


def _is_tracked(port: int) -> bool:
    with Nfnetlink() as netlink:
        listed = netlink.dump(1 << 8 | 1, general("ip"), "list", Deadline.after(5))
    return any(port.to_bytes(2, "big") in payload for payload in listed)
