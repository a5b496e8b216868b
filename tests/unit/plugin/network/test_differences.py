"""What differs from a plan: everything that CHECK has to tell."""

from __future__ import annotations

from dataclasses import fields, replace
from ipaddress import ip_address, ip_network

import pytest

from cni_calico.plugin.network.differences import Difference, LinkState, Observed, select_differences
from cni_calico.plugin.network.plan import (
    PodPlan,
    PodRoute,
    desired_host_sysctls,
    desired_pod_routes,
    desired_pod_sysctls,
)

V4, V6 = ip_address("10.65.0.1"), ip_address("fd00:65::1")
DUAL = PodPlan("cali1", "eth0", 1450, (V4, V6), mac=bytes.fromhex("020000000001"))
ONLY_V4, ONLY_V6 = replace(DUAL, addresses=(V4,)), replace(DUAL, addresses=(V6,))
EE = "ee:ee:ee:ee:ee:ee"


def as_planned(plan: PodPlan) -> Observed:
    assert plan.mac is not None
    return Observed(
        host=LinkState(True, EE, plan.mtu, True),
        pod=LinkState(True, plan.mac.hex(":"), plan.mtu, True),
        addresses=frozenset(plan.addresses),
        pod_routes=frozenset(desired_pod_routes(plan)),
        host_routes=dict.fromkeys(plan.addresses, plan.host_ifname),
        neighbours={ip_address("169.254.1.1"): EE},
        host_sysctls=dict(desired_host_sysctls(plan)),
        pod_sysctls=dict(desired_pod_sysctls(plan)),
    )


@pytest.mark.parametrize("plan", [DUAL, ONLY_V4, ONLY_V6])
def test_nothing_differs(plan: PodPlan) -> None:
    assert select_differences(plan, as_planned(plan)) == ()


def test_what_is_there_beyond_the_plan_is_none_of_our_business() -> None:
    seen = as_planned(ONLY_V4)
    richer = replace(
        seen,
        addresses=seen.addresses | {V6},
        pod_routes=seen.pod_routes | {PodRoute(ip_network("10.0.0.0/8"), ip_address("169.254.1.1"))},
    )
    assert select_differences(ONLY_V4, richer) == ()


SEEN = as_planned(DUAL)
HOST, POD = SEEN.host, SEEN.pod
assert HOST is not None
assert POD is not None


OTHER_MAC = "02:00:00:00:00:09"
DIFFERENCES = [
    (replace(SEEN, host=replace(HOST, up=False)), "host link cali1: wanted up, found down"),
    (replace(SEEN, host=replace(HOST, mac=OTHER_MAC)), f"host link cali1: wanted mac {EE}, found mac {OTHER_MAC}"),
    (replace(SEEN, pod=replace(POD, mtu=9000)), "pod link eth0: wanted mtu 1450, found mtu 9000"),
    (
        replace(SEEN, pod=replace(POD, peer_here=False)),
        "pod link eth0: wanted joined to the other end, found joined elsewhere",
    ),
    (replace(SEEN, addresses=frozenset({V6})), "pod address 10.65.0.1/32: wanted present, found none"),
    (
        replace(SEEN, host_routes={V4: "cali1", V6: "cali2"}),
        "host route fd00:65::1: wanted dev cali1, found dev cali2",
    ),
    (replace(SEEN, host_routes={V4: "cali1"}), "host route fd00:65::1: wanted dev cali1, found none"),
    (
        replace(SEEN, host_routes={V4: "", V6: "cali1"}),
        "host route 10.65.0.1: wanted dev cali1, found a route without interface",
    ),
    (replace(SEEN, neighbours={}), f"pod neighbour 169.254.1.1: wanted {EE}, found none"),
]


@pytest.mark.parametrize(("seen", "wanted"), DIFFERENCES, ids=[text for _, text in DIFFERENCES])
def test_one_difference(seen: Observed, wanted: str) -> None:
    assert [str(difference) for difference in select_differences(DUAL, seen)] == [wanted]


def test_a_route_that_leads_elsewhere() -> None:
    wrong = PodRoute(ip_network("0.0.0.0/0"), ip_address("10.1.1.1"))
    right = PodRoute(ip_network("0.0.0.0/0"), ip_address("169.254.1.1"))
    seen = replace(SEEN, pod_routes=SEEN.pod_routes - {right} | {wrong})
    assert select_differences(DUAL, seen) == (Difference("pod", "route", "0.0.0.0/0", str(right), str(wrong)),)


@pytest.mark.parametrize("side", ["host", "pod"])
def test_every_sysctl_counts(side: str) -> None:
    found = dict(SEEN.host_sysctls if side == "host" else SEEN.pod_sysctls)
    for name, value in list(found.items()):
        for wrong in ("7", None):
            changed = {**found, name: wrong}
            if wrong is None:
                del changed[name]
            difference = Difference(side, "sysctl", "net/" + "/".join(name), value, wrong or "")
            seen = replace(SEEN, **{f"{side}_sysctls": changed})
            assert select_differences(DUAL, seen) == (difference,)


def test_a_kernel_without_ipv6_is_fine_for_ipv4() -> None:
    seen = as_planned(ONLY_V4)
    without = {name: value for name, value in seen.host_sysctls.items() if name[0] == "ipv4"}
    assert select_differences(ONLY_V4, replace(seen, host_sysctls=without)) == ()


def test_missing_links_are_said_once() -> None:
    empty = Observed(None, None, frozenset(), frozenset(), {}, {}, {}, {})
    found = select_differences(DUAL, empty)
    assert [str(difference) for difference in found] == [
        "host link cali1: wanted present, found none",
        "pod link eth0: wanted present, found none",
        "host route 10.65.0.1: wanted dev cali1, found none",
        "host route fd00:65::1: wanted dev cali1, found none",
    ]


def test_every_field_of_the_observation_is_compared() -> None:
    """A new field of Observed must not be forgotten: emptied, each one is a difference."""
    for field in fields(Observed):
        value = getattr(SEEN, field.name)
        empty = None if isinstance(value, LinkState) else type(value)()
        assert select_differences(DUAL, replace(SEEN, **{field.name: empty})), field.name
