"""A service of ip_vs, as kube-proxy's mode that is not supported has it: packets do what the status says of it.

Rule: packets to such a service are the host's own on their second way, so what decides is what may go to the host.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.deadlines import until
from tests.netns.policing.lab import DENY_B, Lab, socket_in

pytestmark = [pytest.mark.netns, pytest.mark.never_excused, pytest.mark.kernel("ipvs")]

INTERFACE, ADDRESS, PORT = "kube-ipvs0", "10.96.0.7", 80
WARNING = "kube-proxy runs in mode ipvs (interface kube-ipvs0 is there), which is not supported"
NO_SERVICES = {
    "selector": "app == 'a'",
    "types": ["Egress"],
    "egress": [{"action": "Deny", "destination": {"nets": ["10.96.0.0/12"]}}, {"action": "Allow"}],
}
# as manifests for Kubernetes have it, where ip_vs is met
TO_HOST = {"FELIX_DEFAULTENDPOINTTOHOSTACTION": "ACCEPT"}


@pytest.fixture
def ipvs_lab(two_workloads: Lab) -> Iterator[Lab]:
    """b is behind the service's address, as by kube-proxy."""
    host = two_workloads.host
    host.do("link", "add", INTERFACE, "type", "dummy")
    host.do("addr", "add", f"{ADDRESS}/32", "dev", INTERFACE)
    service = f"{ADDRESS}:{PORT}"
    host.run("ipvsadm", "-A", "-u", service, "-s", "rr")
    host.run("ipvsadm", "-a", "-u", service, "-r", f"{two_workloads.workloads['b'].address()}:{PORT}", "-m")
    yield two_workloads
    host.run("ipvsadm", "-C")


def reaches_service(ipvs_lab: Lab, word: str) -> bool:
    """Whether a's packet to the service comes to b, as the first of its connection."""
    ipvs_lab.receiver("b", 4)
    with socket_in(ipvs_lab.workloads["a"].ns, socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(word.encode(), (ADDRESS, PORT))
    return ipvs_lab.arrivals("b", word.encode()) > 0


@pytest.mark.parametrize("mode", ["Auto", pytest.param("Disabled", marks=pytest.mark.slow)])
def test_what_goes_to_the_host_decides(ipvs_lab: Lab, mode: str) -> None:
    assert reaches_service(ipvs_lab, "before")  # no engine yet
    ipvs_lab.put("GlobalNetworkPolicy", "deny", DENY_B)
    ipvs_lab.start(FELIX_NFTABLESMODE=mode, **TO_HOST)
    said = ipvs_lab.until_in_force(policies=1)
    assert any(WARNING in text for text in said["warnings"])
    assert not ipvs_lab.passes("a", "b", PORT)
    assert reaches_service(ipvs_lab, "behind")  # as the warning says: b's own policies are not applied there
    ipvs_lab.put("GlobalNetworkPolicy", "services", NO_SERVICES)
    ipvs_lab.until_in_force(policies=2)
    assert not reaches_service(ipvs_lab, "barred")  # a's are
    assert not ipvs_lab.passes("a", "b", PORT)
    ipvs_lab.remove("GlobalNetworkPolicy", "services")
    ipvs_lab.until_in_force(policies=1)
    assert reaches_service(ipvs_lab, "again")
    ipvs_lab.stop()
    ipvs_lab.start(FELIX_NFTABLESMODE=mode)
    ipvs_lab.until_in_force(policies=1)
    assert not reaches_service(ipvs_lab, "closed")  # the default: nothing goes to the host
    ipvs_lab.host.do("link", "del", INTERFACE)
    until(lambda: not any(WARNING in text for text in ipvs_lab.standing()["warnings"]), "the warning is gone", 60)
