"""Desired minus actual: nothing foreign is removed, nothing is ever missing."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.model.host import HostRoute, TunnelDevice
from cni_calico.nodeagent.dataplane.delta import Changes, is_ours, plan_devices, plan_routes, plan_set, select_conflicts
from tests.unit.nodeagent.fabric import FELIX

REMOTE = HostRoute(ip_network("10.65.2.0/26"), "vxlan.calico", ip_address("10.65.2.0"), onlink=True)
POD = HostRoute(ip_network("10.65.1.5/32"), "calia", scope="link", protocol=3)
HOLE = HostRoute(ip_network("10.65.1.0/26"), kind="blackhole")
BIRDS = HostRoute(ip_network("10.65.7.0/26"), "eth0", ip_address("10.0.0.7"), protocol=12, metric=1024)
DEFAULT = HostRoute(ip_network("0.0.0.0/0"), "eth0", ip_address("10.0.0.254"), protocol=3)
KERNELS = HostRoute(ip_network("fe80::/64"), "calia", protocol=2, metric=256)
UPSTREAMS = replace(POD, metric=1024)


def test_additions_and_removals():
    stale = replace(REMOTE, dst=ip_network("10.65.9.0/26"))
    changes = plan_routes({REMOTE, POD, HOLE}, {HOLE, stale, BIRDS, DEFAULT, KERNELS}, FELIX)
    assert set(changes.add) == {REMOTE, POD}
    assert changes.add[0].onlink or changes.add[1].onlink  # as desired, not as compared
    assert changes.remove == (stale,)


def test_nothing_to_do_is_nothing():
    assert not plan_routes({REMOTE, POD, HOLE}, {replace(REMOTE, onlink=False), POD, HOLE, BIRDS}, FELIX)


@pytest.mark.parametrize(
    ("route", "ours"),
    [(REMOTE, True), (POD, True), (HOLE, True), (UPSTREAMS, True), (BIRDS, False), (DEFAULT, False), (KERNELS, False)],
)
def test_what_is_ours(route, ours):
    assert is_ours(route, FELIX) is ours


def test_external_routes_on_workloads_may_be_kept():
    external = replace(POD, protocol=4)
    assert is_ours(external, FELIX)
    assert not is_ours(external, replace(FELIX, remove_external_routes=False))


@pytest.mark.parametrize(
    ("holder", "conflict"),
    [
        (replace(POD, device="calib"), False),  # its endpoint is gone
        (replace(POD, device="calic"), True),  # another living workload's
        (replace(POD, device="vxlan.calico", protocol=80), False),  # ours, of when the address was borrowed
        (replace(POD, device="eth0"), True),  # somebody put it there
        (replace(POD, device="eth0", metric=5), False),  # beside ours, which wins
        (replace(POD, protocol=80), False),  # the workload's own, to be repaired
        (BIRDS, False),
    ],
)
def test_a_workloads_route_takes_no_living_ones_place(holder, conflict):
    wanted = replace(POD, device="calia")
    living = {wanted, replace(POD, device="calic")}
    assert select_conflicts([wanted], living, [holder, DEFAULT], FELIX) == ({wanted: holder} if conflict else {})


@pytest.mark.parametrize(("metric", "conflict"), [(0, True), (1023, True), (1024, True), (1025, False)])
def test_a_better_route_of_somebody_else_is_named(metric, conflict):
    holder = replace(POD, device="eth0", metric=metric)
    assert select_conflicts([UPSTREAMS], [UPSTREAMS], [holder], FELIX) == ({UPSTREAMS: holder} if conflict else {})


def test_a_route_of_another_metric_holds_its_workloads_place():
    """The CNI plugin's, or an older agent's: nobody else gets the address because the metric differs."""
    own, greedy = UPSTREAMS, replace(UPSTREAMS, device="calib")
    assert select_conflicts([own, greedy], [own, greedy], [POD], FELIX) == {greedy: POD}


def test_the_default_route_is_nobodys_to_take():
    greedy = replace(DEFAULT, device="calia", via=None)
    assert select_conflicts([greedy], [greedy], [DEFAULT], FELIX) == {greedy: DEFAULT}


def test_sets():
    assert plan_set({1, 2, 3}, {2, 4}) == Changes((1, 3), (4,))


ROUTES = st.sets(st.sampled_from([REMOTE, POD, HOLE, BIRDS, DEFAULT, KERNELS, UPSTREAMS]))


@settings(deadline=None)
@given(ROUTES, ROUTES)
def test_applying_the_changes_leaves_nothing_to_change(desired, actual):
    changes = plan_routes(desired, actual, FELIX)
    reached = {(route.dst, route.device) for route in actual} & {(route.dst, route.device) for route in desired}
    between = actual - set(changes.remove)
    after = between | set(changes.add)
    assert reached <= {(route.dst, route.device) for route in between}  # with whatever metric
    last = plan_routes(desired, after, FELIX)
    assert not last.add and not plan_routes(desired, after - set(last.remove), FELIX)
    assert desired <= after
    assert {route for route in actual if not is_ours(route, FELIX)} <= after


VXLAN = TunnelDevice(
    "vxlan.calico", "vxlan", 1450, ip_address("10.65.1.0"), parent="eth0", local=ip_address("10.0.0.1"), vni=4096,
    port=4789, mac="66:00:00:00:00:01",
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "remake"),
    [
        ({"mtu": 1400}, False),
        ({"mac": "66:00:00:00:00:02"}, False),
        ({"up": False}, False),
        ({"address": ip_address("10.65.1.9")}, False),
        ({"more_addresses": True}, False),
        ({"vni": 5}, True),
        ({"port": 8472}, True),
        ({"local": ip_address("10.0.0.9")}, True),
        ({"parent": "eth1"}, True),
        ({"learning": True}, True),
        ({"kind": "bridge"}, True),
    ],
)
def test_devices(change, remake):
    actual = replace(VXLAN, **change)
    (found,), removed = plan_devices({"vxlan.calico": VXLAN}, {"vxlan.calico": actual})
    assert (found.wanted, found.actual, found.remake, removed) == (VXLAN, actual, remake, ())


def test_devices_to_make_and_remove():
    (made,), removed = plan_devices(
        {"vxlan.calico": VXLAN}, {"vxlan-v6.calico": replace(VXLAN, name="vxlan-v6.calico")}
    )
    assert made.actual is None and removed == ("vxlan-v6.calico",)
    assert plan_devices({"vxlan.calico": VXLAN}, {"vxlan.calico": VXLAN}) == ((), ())
