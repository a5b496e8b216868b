"""What a pod's network must look like, and what differs from it: pure decisions."""

from __future__ import annotations

from dataclasses import fields, replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.plugin.plan import (
    Difference,
    LinkState,
    Observed,
    PodPlan,
    Route,
    desired_host_routes,
    desired_host_sysctls,
    desired_pod_routes,
    desired_pod_sysctls,
    random_mac,
    select_differences,
)

V4, V6 = ip_address("10.65.0.1"), ip_address("fd00:65::1")
DUAL = PodPlan("cali1", "eth0", 1450, (V4, V6), mac=bytes.fromhex("020000000001"))
ONLY_V4, ONLY_V6 = replace(DUAL, addresses=(V4,)), replace(DUAL, addresses=(V6,))
EE = "ee:ee:ee:ee:ee:ee"


def pod_routes(plan: PodPlan) -> list[str]:
    return [str(route) for route in desired_pod_routes(plan)]


def test_default_routes() -> None:
    v4 = ["169.254.1.1/32 on link", "0.0.0.0/0 via 169.254.1.1"]
    v6 = ["::/0 via fe80::ecee:eeff:feee:eeee"]
    assert pod_routes(DUAL) == v4 + v6
    assert pod_routes(ONLY_V4) == v4
    assert pod_routes(ONLY_V6) == v6


def test_routes_of_an_ipam_replace_the_defaults() -> None:
    plan = replace(DUAL, extra_routes=(ip_network("10.0.0.0/8"), ip_network("192.168.0.0/16")))
    v4 = ["169.254.1.1/32 on link", "10.0.0.0/8 via 169.254.1.1", "192.168.0.0/16 via 169.254.1.1"]
    assert pod_routes(plan) == v4
    with_defaults = replace(plan, include_default_routes=True)
    assert pod_routes(with_defaults) == [*v4, "0.0.0.0/0 via 169.254.1.1", "::/0 via fe80::ecee:eeff:feee:eeee"]


def test_a_default_route_named_twice_is_added_once() -> None:
    plan = replace(ONLY_V4, extra_routes=(ip_network("0.0.0.0/0"),) * 2, include_default_routes=True)
    assert pod_routes(plan) == ["169.254.1.1/32 on link", "0.0.0.0/0 via 169.254.1.1"]


def test_host_routes() -> None:
    assert [str(route) for route in desired_host_routes(DUAL)] == ["10.65.0.1/32 on link", "fd00:65::1/128 on link"]


def names(plan: PodPlan) -> set[str]:
    return {"/".join(name) + "=" + value for name, value in desired_host_sysctls(plan)}


def test_host_sysctls() -> None:
    always = {"ipv6/conf/cali1/accept_ra=0"}
    v4 = {f"ipv4/conf/cali1/{name}=1" for name in ("route_localnet", "proxy_arp", "forwarding")}
    v4.add("ipv4/neigh/cali1/proxy_delay=0")
    v6 = {f"ipv6/conf/cali1/{name}=0" for name in ("disable_ipv6", "accept_dad", "addr_gen_mode")}
    v6 |= {f"ipv6/conf/cali1/{name}=1" for name in ("proxy_ndp", "forwarding")}
    assert names(DUAL) == always | v4 | v6
    assert names(ONLY_V4) == always | v4
    assert names(ONLY_V6) == always | v6


def test_names_with_dots_stay_whole() -> None:
    plan = replace(ONLY_V4, host_ifname="cali.1")
    assert (("ipv4", "conf", "cali.1", "proxy_arp"), "1") in desired_host_sysctls(plan)


@pytest.mark.parametrize(("allow", "value"), [(False, "0"), (True, "1")])
def test_pod_sysctls(allow: bool, value: str) -> None:
    plan = replace(DUAL, allow_ip_forwarding=allow)
    found = {"/".join(name): value for name, value in desired_pod_sysctls(plan)}
    assert found == {
        "ipv4/ip_forward": value,
        "ipv6/conf/all/forwarding": value,
        "ipv6/conf/eth0/accept_dad": "0",
        **{f"ipv6/conf/{name}/disable_ipv6": "0" for name in ("all", "default", "lo", "eth0")},
    }
    assert {name[0] for name, _ in desired_pod_sysctls(replace(plan, addresses=(V4,)))} == {"ipv4"}
    assert {name[0] for name, _ in desired_pod_sysctls(replace(plan, addresses=(V6,)))} == {"ipv6"}


@given(st.binary(min_size=6, max_size=6))
def test_random_mac_is_local_and_unicast(random: bytes) -> None:
    mac = random_mac(random)
    assert (len(mac), mac[0] & 3, mac[0] >> 2, mac[1:]) == (6, 2, random[0] >> 2, random[1:])


# -- differences ------------------------------------------------------------------------------------------------------


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
        pod_routes=seen.pod_routes | {Route(ip_network("10.0.0.0/8"), ip_address("169.254.1.1"))},
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
    wrong = Route(ip_network("0.0.0.0/0"), ip_address("10.1.1.1"))
    right = Route(ip_network("0.0.0.0/0"), ip_address("169.254.1.1"))
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
            seen = replace(SEEN, **{f"{side}_sysctls": changed})  # type: ignore[arg-type]
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
