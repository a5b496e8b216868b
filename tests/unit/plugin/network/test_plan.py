"""What a pod's network must look like: pure decisions."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.plugin.network.plan import (
    PodPlan,
    desired_host_sysctls,
    desired_pod_routes,
    desired_pod_sysctls,
    random_mac,
)

V4, V6 = ip_address("10.65.0.1"), ip_address("fd00:65::1")
DUAL = PodPlan("cali1", "eth0", 1450, (V4, V6), mac=bytes.fromhex("020000000001"))
ONLY_V4, ONLY_V6 = replace(DUAL, addresses=(V4,)), replace(DUAL, addresses=(V6,))


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
