"""A tunnel comes up with the rules that guard it."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from cni_calico.model.host import ForwardingEntry, HostRoute, TunnelDevice
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.held_devices import PATIENCE_S, HeldDevices
from cni_calico.nodeagent.status.policing import Standing

NAME = "vxlan.calico"
THROUGH = HostRoute(ip_network("10.65.1.0/26"), NAME)
PLAIN = HostRoute(ip_network("10.65.2.0/26"), "eth0")
WANTED = Desired(
    devices={NAME: TunnelDevice(NAME, "vxlan", 1450, None)},
    routes=frozenset((THROUGH, PLAIN)),
    forwarding=frozenset((ForwardingEntry(NAME, "66:00:00:00:00:01", ip_address("172.31.0.2")),)),
)
UNGUARDED, GUARDED = Standing(), Standing(guarded=frozenset((NAME,)))


def test_it_waits_with_all_that_leads_through_it() -> None:
    held = HeldDevices()
    found, waiting = held.select(WANTED, (), UNGUARDED, 0.0)
    assert waiting == 1 and not found.devices and not found.forwarding and found.routes == {PLAIN}
    assert held.select(WANTED, (), GUARDED, 0.1) == (WANTED, 0)


def test_one_that_is_up_stays() -> None:
    found, waiting = HeldDevices().select(WANTED, (NAME,), UNGUARDED, 0.0)
    assert (found, waiting) == (WANTED, 0)


@pytest.mark.parametrize("in_force", [True, False])
def test_a_rule_that_never_comes(in_force: bool) -> None:
    held = HeldDevices()
    refused = Standing(in_force=in_force, failing="refused")
    assert held.select(WANTED, (), refused, 0.0)[1] == held.select(WANTED, (), refused, PATIENCE_S - 0.1)[1] == 1
    found, waiting = held.select(WANTED, (), refused, PATIENCE_S)
    assert (waiting == 1) is in_force and (NAME in found.devices) is not in_force
    (said,) = found.problems
    assert ("stays down" if in_force else "is up") in said and "refused" in said
    assert held.select(WANTED, (), GUARDED, PATIENCE_S + 1) == (WANTED, 0)
