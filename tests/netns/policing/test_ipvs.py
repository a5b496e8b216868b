"""Services of ip_vs, as kube-proxy's mode ipvs has them, made by hand: the policies of both ends decide about them.

Rule: the pods' own address never decides alone: each test has a packet past the service, too. With legacy iptables what
decides is what may go to the host, and the status says so.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from tests.deadlines import until
from tests.netns.policing.lab import ALLOW_80, DENY_B, Lab, socket_in
from tests.netns.policing.uplinked import HOST, NODE_PORT, Uplinked

pytestmark = [pytest.mark.netns, pytest.mark.never_excused, pytest.mark.kernel("ipvs")]

INTERFACE, PORT = "kube-ipvs0", 80
ADDRESSES = {4: "10.96.0.7", 6: "fd96::7"}
IDLE = "10.96.0.8"  # has no service
LEGACY = "kube-proxy runs in mode ipvs (interface kube-ipvs0 is there), which is not supported with legacy iptables"
UNTRACKED = "net.ipv4.vs.conntrack is 0"
NOT_TO_B = {
    "selector": "app == 'a'",
    "order": 5,
    "types": ["Egress"],
    "egress": [{"action": "Deny", "destination": {"selector": "app == 'b'"}}, {"action": "Allow"}],
}
NO_SERVICES = {
    "selector": "app == 'a'",
    "types": ["Egress"],
    "egress": [{"action": "Deny", "destination": {"nets": ["10.96.0.0/12"]}}, {"action": "Allow"}],
}
# as manifests for Kubernetes have it, where ip_vs is met
TO_HOST = {"FELIX_DEFAULTENDPOINTTOHOSTACTION": "ACCEPT"}


def add_service(lab: Lab, address: str, port: int, backend: str, to: int = PORT) -> None:
    where, behind = (f"[{one}]" if ":" in one else one for one in (address, backend))
    lab.host.run("ipvsadm", "-A", "-u", f"{where}:{port}", "-s", "rr")
    lab.host.run("ipvsadm", "-a", "-u", f"{where}:{port}", "-r", f"{behind}:{to}", "-m")
    lab.host.run("sysctl", "-qw", "net.ipv4.vs.conntrack=1")  # as kube-proxy does


def add_interface(lab: Lab) -> None:
    lab.host.do("link", "add", INTERFACE, "type", "dummy")
    for address in (*ADDRESSES.values(), IDLE):
        lab.host.do("addr", "add", f"{address}/{128 if ':' in address else 32}", "dev", INTERFACE)


@pytest.fixture
def ipvs_lab(two_workloads: Lab) -> Iterator[Lab]:
    """b is behind the service's addresses, as by kube-proxy."""
    add_interface(two_workloads)
    for version, address in ADDRESSES.items():
        add_service(two_workloads, address, PORT, two_workloads.workloads["b"].address(version))
    yield two_workloads
    two_workloads.host.run("ipvsadm", "-C")


def rules_of(lab: Lab) -> list[str]:
    """In no order, because tables that are made again have another one; without counts."""
    return sorted(re.sub(r"packets \d+ bytes \d+", "", lab.ruleset()).splitlines())


def reaches_service(lab: Lab, word: str, version: int = 4) -> bool:
    """Whether a's packet to the service comes to b, as the first of its connection."""
    lab.receiver("b", version)
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with socket_in(lab.workloads["a"].ns, family, socket.SOCK_DGRAM) as client:
        client.sendto(word.encode(), (ADDRESSES[version], PORT))
    return lab.arrivals("b", word.encode(), version) > 0


def is_answered(lab: Lab) -> bool:
    """Whether b's answers come back from the service's address, also those of later packets."""
    with (
        socket_in(lab.workloads["b"].ns, socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket_in(lab.workloads["a"].ns, socket.AF_INET, socket.SOCK_DGRAM) as client,
    ):
        for end in (server, client):
            end.settimeout(20)
        server.bind(("", PORT))
        client.connect((ADDRESSES[4], PORT))
        for word in (b"one", b"two"):
            client.send(word)
            asked, sender = server.recvfrom(100)
            server.sendto(asked[::-1], sender)
            if client.recv(100) != word[::-1]:
                return False
    return True


def reaches_host(lab: Lab, address: str) -> bool:
    """Whether a's packet comes to a process of the host. A packet of the host's own comes behind it."""
    with (
        socket_in(lab.host, socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket_in(lab.workloads["a"].ns, socket.AF_INET, socket.SOCK_DGRAM) as client,
        socket_in(lab.host, socket.AF_INET, socket.SOCK_DGRAM) as own,
    ):
        server.settimeout(20)
        server.bind((address, PORT))
        client.sendto(b"a", (address, PORT))
        lab.arrivals("b", b"nothing")  # what was sent before is done
        own.sendto(b"own", (address, PORT))
        return server.recv(100) == b"a"


def test_policies_of_both_ends_decide(ipvs_lab: Lab) -> None:
    """With DefaultEndpointToHostAction at its default, DROP."""
    lab = ipvs_lab
    assert reaches_service(lab, "before") and reaches_service(lab, "before6", 6)  # no engine yet
    lab.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab.start()
    assert not lab.until_in_force(policies=1)["warnings"]
    assert not lab.passes("a", "b", PORT)
    assert not reaches_service(lab, "denied") and not reaches_service(lab, "denied6", 6)  # by b's
    lab.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    lab.until_in_force(policies=2)
    assert reaches_service(lab, "allowed") and reaches_service(lab, "allowed6", 6) and is_answered(lab)
    lab.put("GlobalNetworkPolicy", "egress", NOT_TO_B)
    lab.until_in_force(policies=3)
    assert not reaches_service(lab, "barred") and not reaches_service(lab, "barred6", 6)  # by a's, with b's address
    lab.remove("GlobalNetworkPolicy", "egress")
    lab.until_in_force(policies=2)
    assert reaches_service(lab, "again")
    assert not reaches_host(lab, IDLE)  # not a service: to the host
    lab.stop()
    lab.start(**TO_HOST)
    lab.until_in_force(policies=2)
    assert reaches_service(lab, "restarted") and reaches_host(lab, IDLE)
    lab.remove("GlobalNetworkPolicy", "allow")
    lab.until_in_force(policies=1)
    assert not reaches_service(lab, "denied again")
    lab.host.run("sysctl", "-qw", "net.ipv4.vs.conntrack=0")
    lab.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    until(lambda: any(UNTRACKED in text for text in lab.standing()["warnings"]), "connections are not followed", 60)


def test_the_mode_begins_and_ends_beside_policies(ipvs_lab: Lab) -> None:
    lab = ipvs_lab
    lab.host.do("link", "del", INTERFACE)
    lab.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab.start()
    lab.until_in_force(policies=1)
    before = rules_of(lab)
    assert "ipvs-" not in str(before)
    add_interface(lab)
    until(lambda: "chain ipvs-from" in lab.ruleset(), "the mode is seen", 60, pause_s=0.5)
    assert not reaches_service(lab, "denied") and not lab.passes("a", "b", PORT)
    lab.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    lab.until_in_force(policies=2)
    assert reaches_service(lab, "allowed")
    lab.remove("GlobalNetworkPolicy", "allow")
    lab.host.do("link", "del", INTERFACE)
    until(lambda: rules_of(lab) == before, "it is over", 60, pause_s=0.5)


def test_from_outside_and_with_host_endpoints(uplinked: Uplinked) -> None:
    """A node port of ip_vs is forwarded: what a host endpoint says of the host itself does not decide."""
    lab = uplinked.lab
    add_interface(lab)
    add_service(lab, HOST[4], NODE_PORT, lab.workloads["a"].address())

    def comes_in() -> bool:
        return uplinked.into_workload(NODE_PORT, to=HOST[4])

    assert comes_in()  # no engine yet
    uplinked.put_host()
    uplinked.put_policy("own", types=["Ingress", "Egress"], ingress=[{"action": "Deny"}], egress=[{"action": "Deny"}])
    lab.start()
    lab.until_in_force(policies=1)
    until(lambda: not uplinked.into_host(NODE_PORT + 1), "it is in force for the host")
    assert comes_in()
    barred = {"types": ["Ingress"], "applyOnForward": True, "order": 1, "ingress": [{"action": "Deny"}]}
    uplinked.put_policy("forward", **barred)
    until(lambda: not comes_in(), "what is forwarded is barred where it comes in")
    lab.remove("GlobalNetworkPolicy", "forward")
    until(comes_in, "it is not any more")
    uplinked.put_host("everywhere", "*", labels={"host": "all"})
    lab.remove("HostEndpoint", "h")
    uplinked.put_policy("forward", **{**barred, "selector": "host == 'all'"})
    until(lambda: not comes_in(), "by the host endpoint of all interfaces, too")
    lab.remove("GlobalNetworkPolicy", "forward")
    until(comes_in, "it is not any more")
    lab.put("GlobalNetworkPolicy", "pod", {**DENY_B, "selector": "projectcalico.org/namespace == 'default'"})
    until(lambda: not comes_in(), "the workload's own policy decides")
    lab.host.run("ipvsadm", "-C")


@pytest.mark.slow
def test_by_legacy_iptables_what_goes_to_the_host_decides(ipvs_lab: Lab) -> None:
    ipvs_lab.put("GlobalNetworkPolicy", "deny", DENY_B)
    ipvs_lab.start(FELIX_NFTABLESMODE="Disabled", **TO_HOST)
    said = ipvs_lab.until_in_force(policies=1)
    assert any(LEGACY in text for text in said["warnings"])
    assert not ipvs_lab.passes("a", "b", PORT)
    assert reaches_service(ipvs_lab, "behind")  # as the warning says: b's own policies are not applied there
    ipvs_lab.put("GlobalNetworkPolicy", "services", NO_SERVICES)
    ipvs_lab.until_in_force(policies=2)
    assert not reaches_service(ipvs_lab, "barred")  # a's are
    ipvs_lab.remove("GlobalNetworkPolicy", "services")
    ipvs_lab.until_in_force(policies=1)
    assert reaches_service(ipvs_lab, "again")
    ipvs_lab.stop()
    ipvs_lab.start(FELIX_NFTABLESMODE="Disabled")
    ipvs_lab.until_in_force(policies=1)
    assert not reaches_service(ipvs_lab, "closed")  # the default: nothing goes to the host
    ipvs_lab.host.do("link", "del", INTERFACE)
    until(lambda: not any(LEGACY in text for text in ipvs_lab.standing()["warnings"]), "the warning is gone", 60)
