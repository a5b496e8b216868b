"""Failsafe ports and excluded interfaces as environments and FelixConfigurations have them."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.policy.failsafe import INBOUND, OUTBOUND, FailsafePort

NET = ip_network("fd00::/8")


@pytest.mark.parametrize(
    ("environment", "resource", "ports"),
    [
        ("none", None, ()),
        ("NONE", [{"protocol": "TCP", "port": 22}], ()),
        ("", [], ()),
        ("", [{"port": 22}], (FailsafePort(6, 22),)),
        ("", [{"protocol": "UDP", "port": 68, "net": ""}], (FailsafePort(17, 68),)),
        ("", [{"protocol": "SCTP", "port": 9, "net": "fd00::/8"}], (FailsafePort(132, 9, NET),)),
        ("sctp:[fd00::/8]:9", None, (FailsafePort(132, 9, NET),)),
        ("", None, INBOUND),
    ],
)
def test_failsafe_ports(environment: str, resource: Any, ports: tuple[FailsafePort, ...]) -> None:
    found = parse_felix({"FELIX_FailsafeInboundHostPorts": environment}, {"failsafeInboundHostPorts": resource})
    assert (found.settings.failsafe_inbound, found.warnings) == (ports, ())


@pytest.mark.parametrize(
    "resource",
    [
        "ssh",
        [22],
        [None],
        [{}],
        [{"protocol": "22"}],
        [{"protocol": "ICMP", "port": 1}],
        [{"port": 22, "net": "10.0.0.0/33"}],
    ],
)
def test_failsafe_ports_that_are_wrong_leave_the_usual_ones_open(resource: Any) -> None:
    found = parse_felix({}, {"failsafeOutboundHostPorts": resource})
    assert found.settings.failsafe_outbound == OUTBOUND
    assert len(found.warnings) == 1 and "failsafeOutboundHostPorts" in found.warnings[0]


@pytest.mark.parametrize("text", ["/", "//", "/^veth", "/[/", "a b", "x" * 16, "eth*", "eth+"])
def test_an_excluded_interface_that_cannot_be_meant(text: str) -> None:
    """An empty expression would take every host endpoint out of force."""
    found = parse_felix({}, {"interfaceExclude": f"dummy0,{text}"})
    assert found.settings.interface_exclude == ("kube-ipvs0",)
    assert len(found.warnings) == 1 and "interfaceExclude" in found.warnings[0]


def test_excluded_interfaces() -> None:
    found = parse_felix({"FELIX_INTERFACEEXCLUDE": "kube-ipvs0, /^veth[0-9]+$/,eth0.100"})
    assert found.settings.interface_exclude == ("kube-ipvs0", "/^veth[0-9]+$/", "eth0.100") and not found.warnings
