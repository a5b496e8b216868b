"""A tunnel comes up with the rules that guard it."""

from __future__ import annotations

from dataclasses import replace
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
    found, waiting = held.select(WANTED, (), {}, UNGUARDED, 0.0)
    assert waiting == 1 and not found.devices and not found.forwarding and found.routes == {PLAIN}
    assert held.select(WANTED, (), {}, GUARDED, 0.1) == (WANTED, 0)


def test_one_that_is_up_stays() -> None:
    found, waiting = HeldDevices().select(WANTED, (NAME,), {}, UNGUARDED, 0.0)
    assert (found, waiting) == (WANTED, 0)


def test_one_that_is_there_but_down_is_left_alone() -> None:
    found, _ = HeldDevices().select(WANTED, (), {}, UNGUARDED, 0.0)
    assert found.held == {NAME}


@pytest.mark.parametrize(
    "standing",
    [
        Standing(),  # nothing has been read
        Standing(decided=True, failing="the datastore does not answer"),
        Standing(decided=True, failing="the kernel refuses", why_not=""),  # policies are to be enforced, and are not
        Standing(decided=True, in_force=True, failing="refused"),
        Standing(decided=True, ready=True, why_not="there is no policy", problems=("the kernel is busy",)),
    ],
)
def test_without_a_rule_it_stays_down_for_ever(standing: Standing) -> None:
    held = HeldDevices()
    assert held.select(WANTED, (), {}, standing, 0.0)[0].problems == ()
    found, waiting = held.select(WANTED, (), {}, standing, 1000 * PATIENCE_S)
    assert waiting == 1 and not found.devices
    assert [text for text in found.problems if "stays down" in text] == list(found.problems) != []


def test_a_refused_rule_where_no_policy_is_to_be_enforced() -> None:
    held = HeldDevices()
    refused = Standing(decided=True, ready=True, unguardable="no such expression")
    held.select(WANTED, (), {}, UNGUARDED, 0.0)
    begun = 5 * PATIENCE_S  # so long it was being read: that does not count
    assert held.select(WANTED, (), {}, refused, begun)[1] == 1
    assert held.select(WANTED, (), {}, UNGUARDED, begun + 1)[1] == 1  # not refused after all
    assert held.select(WANTED, (), {}, refused, begun + 2)[1] == 1
    assert held.select(WANTED, (), {}, refused, begun + PATIENCE_S)[1] == 1
    found, waiting = held.select(WANTED, (), {}, refused, begun + 2 + PATIENCE_S)
    (said,) = found.problems
    assert waiting == 0 and NAME in found.devices and "is up" in said and "no such expression" in said
    assert held.select(WANTED, (NAME,), {}, GUARDED, begun + 100) == (WANTED, 0)


def at_port(port: int) -> Desired:
    return replace(WANTED, devices={NAME: replace(WANTED.devices[NAME], port=port)})


def test_another_port_waits_for_its_rules() -> None:
    held, old_only = HeldDevices(), replace(GUARDED, vxlan_ports=frozenset((4789,)))
    assert held.select(at_port(4789), (NAME,), {NAME: 4789}, old_only, 0.0) == (at_port(4789), 0)
    found, waiting = held.select(at_port(4790), (NAME,), {NAME: 4789}, old_only, 1.0)
    assert (found, waiting) == (at_port(4789), 1)
    found, waiting = held.select(at_port(4790), (NAME,), {NAME: 4789}, old_only, 1.0 + 10 * PATIENCE_S)
    (said,) = found.problems
    assert waiting == 1 and found.devices == at_port(4789).devices and "keeps port 4789" in said and "4790" in said
    both = replace(GUARDED, vxlan_ports=frozenset((4789, 4790)))
    assert held.select(at_port(4790), (NAME,), {NAME: 4789}, both, 500.0) == (at_port(4790), 0)


def test_one_that_is_down_does_not_come_up_at_a_port_without_rules() -> None:
    old_only = replace(GUARDED, vxlan_ports=frozenset((4789,)))
    found, waiting = HeldDevices().select(at_port(4790), (), {NAME: 4789}, old_only, 0.0)
    assert waiting == 1 and found.held == {NAME}


def test_a_port_changes_although_the_rules_are_refused_where_no_policy_is_to_be_enforced() -> None:
    held, refused = HeldDevices(), Standing(decided=True, ready=True, unguardable="no", vxlan_ports=frozenset((4789,)))
    assert held.select(at_port(4790), (NAME,), {NAME: 4789}, refused, 0.0)[0].devices == at_port(4789).devices
    found, waiting = held.select(at_port(4790), (NAME,), {NAME: 4789}, refused, PATIENCE_S)
    assert waiting == 0 and found.devices == at_port(4790).devices
