"""Floating IPs: which addresses lead to which workload, and which are left alone."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.resources import IPNAT, WorkloadEndpoint
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import desired_state
from cni_calico.nodeagent.dataplane.floating import FloatingAddress, desired_floating, floating_routes, render_floating
from cni_calico.nodeagent.view.floating import PER_WORKLOAD, select_floating_blocks
from cni_calico.nodeagent.view.snapshot import Snapshot
from tests.unit.nodeagent.fabric import FELIX, INTERFACES, pool, snapshot, workload

ENABLED = FelixSettings(floating_ips="Enabled")
POOL = pool("10.65.0.0/16")
OWN = "10.65.1.5"


def endpoint(*external: str, internal: str = OWN, name: str = "w", interface: str = "calia") -> WorkloadEndpoint:
    nats = tuple(IPNAT(ip_address("fd65::1:5" if ":" in each else internal), ip_address(each)) for each in external)
    made = workload(name, interface, f"{internal}/32", "fd65::1:5/128")
    return replace(made, ip_nats=nats)


def asked(
    *endpoints: WorkloadEndpoint, felix: FelixSettings = ENABLED, seen: Snapshot | None = None, backend: str = "bird"
) -> tuple[dict[str, str], list[str]]:
    """(internal by external address, what is said) of workloads that have their interfaces."""
    present = {each.interface_name: each for each in endpoints}
    found, said = desired_floating(present, seen or snapshot(POOL), INTERFACES, felix, backend)
    return {str(one.external): str(one.internal) for one in found}, said


def test_only_if_it_is_enabled() -> None:
    for felix in (FELIX, FelixSettings(floating_ips="Disabled")):
        assert asked(endpoint("192.0.2.50"), felix=felix) == ({}, [])
    assert asked(endpoint("192.0.2.50"))[0] == {"192.0.2.50": OWN}
    assert asked(replace(endpoint("192.0.2.50"), orchestrator="openstack"), felix=FELIX)[0] == {"192.0.2.50": OWN}


@pytest.mark.parametrize(
    ("external", "why"),
    [
        ("10.0.0.2", "a node has it"),
        ("192.0.2.1", "a node has it"),  # an interface of this host
        (OWN, "a workload has it"),
        ("10.65.1.6", "a workload has it"),
        ("127.0.0.1", "no packet to such an address"),
        ("224.0.0.5", "no packet to such an address"),
        ("169.254.169.254", "no packet to such an address"),
        ("0.0.0.0", "no packet to such an address"),
        ("255.255.255.255", "it is reserved"),
        ("10.65.9.9", "IPAM has not said yet who has addresses of 10.65.9.0/26"),
        ("10.66.0.9", "it is in 10.66.0.0/26"),  # a block whose pool is gone
        ("fe80::7", "no packet to such an address"),
    ],
)
def test_addresses_that_others_have(external: str, why: str) -> None:
    from tests.unit.nodeagent.fabric import block

    seen = snapshot(POOL, blocks=(block("10.66.0.0/26", "n3"),))
    found, said = asked(endpoint(external), workload("v", "calib", "10.65.1.6/32"), seen=seen)
    assert found == {}
    (text,) = said
    assert text.startswith(f"the floating IP {external} of default/n1-k8s-w-eth0 is not used: ") and why in text


def test_what_ipam_says_of_an_address_in_a_pool() -> None:
    known = {ip_network("10.65.9.0/26"): {ip_address("10.65.9.1"): "default/other"}}
    found, said = asked(endpoint("10.65.9.1", "10.65.9.2"), seen=snapshot(POOL, floating=known))
    assert found == {"10.65.9.2": OWN}
    (text,) = said
    assert text.endswith("10.65.9.1 of default/n1-k8s-w-eth0 is not used: IPAM gave it to default/other")


def test_an_address_that_is_not_the_workloads_gets_nothing() -> None:
    """A record may name any address as its own."""
    stranger = replace(endpoint("192.0.2.50"), ip_networks=(ip_network("10.65.1.9/32"),))
    found, said = asked(stranger)
    assert found == {} and "10.65.1.5 is no address of this workload" in said[0]
    mixed = replace(endpoint(), ip_nats=(IPNAT(ip_address(OWN), ip_address("2001:db8::1")),))
    assert asked(mixed)[0] == {}
    pending = snapshot(POOL, unproven={"calia": frozenset({ip_network("10.65.1.5/32")})})
    assert asked(stranger, seen=pending) == ({}, [])  # IPAM will say so


@given(st.permutations(["10.65.1.20", "10.65.1.3", "10.65.1.100"]))
def test_of_several_that_want_it_one_gets_it(internal: list[str]) -> None:
    """The smallest as text, in whatever order they come; a property of upstream's."""
    endpoints = [
        endpoint("192.0.2.50", internal=one, name=f"w{one[-1]}", interface=f"cali{i}") for i, one in enumerate(internal)
    ]
    found, said = asked(*endpoints)
    assert found == {"192.0.2.50": "10.65.1.100"}
    assert sum("two workloads ask for it" in text for text in said) == 2


def test_what_a_pod_may_ask_for_is_limited() -> None:
    many = [f"192.0.2.{i}" for i in range(10, 60)]
    found, said = asked(endpoint(*many))
    assert list(found) == many[:PER_WORKLOAD]
    assert said[0] == f"only the first {PER_WORKLOAD} floating IPs of default/n1-k8s-w-eth0 are used"
    greedy = endpoint(*(f"10.65.{i}.9" for i in range(100, 140)), name="a")
    modest = endpoint("10.65.9.1", name="z")
    others = [endpoint(*(f"10.65.{i}.9" for i in range(200, 216)), name=f"b{n}") for n in range(3)]
    blocks = select_floating_blocks([greedy, modest, *others], (POOL,))
    assert ip_network("10.65.9.0/26") in blocks and len(blocks) == 32


def test_what_nobody_announces_is_said() -> None:
    (text,) = asked(endpoint("192.0.2.50"))[1]
    assert "192.0.2.50: no pool that BGP announces contains them" in text
    covering = pool("192.0.2.0/24", node_selector="!all()")
    known = {ip_network("192.0.2.0/26"): {}}
    seen = snapshot(POOL, covering, floating=known)
    assert asked(endpoint("192.0.2.50"), seen=seen) == ({"192.0.2.50": OWN}, [])
    assert "BGP is off" in asked(endpoint("192.0.2.50"), seen=seen, backend="vxlan")[1][0]
    kept = snapshot(POOL, replace(covering, disable_bgp_export=True), floating=known)
    assert "no pool that BGP announces" in asked(endpoint("192.0.2.50"), seen=kept)[1][0]


def test_its_route_is_like_the_workloads_own() -> None:
    both = endpoint("192.0.2.50", "2001:db8::50")
    routes = desired_state(snapshot(POOL, endpoints=(both,)), INTERFACES, ENABLED, "bird").routes
    by_destination = {str(route.dst): route for route in routes}
    for own, external in (("10.65.1.5/32", "192.0.2.50/32"), ("fd65::1:5/128", "2001:db8::50/128")):
        assert replace(by_destination[own], dst=ip_network(external)) == by_destination[external]
    without = desired_state(snapshot(POOL, endpoints=(both,)), INTERFACES, FELIX, "bird").routes
    assert routes - without == floating_routes(
        [FloatingAddress(n.external_ip, n.internal_ip, "calia") for n in both.ip_nats], ENABLED
    )
    v4 = FelixSettings(floating_ips="Enabled", ipv6_support=False)
    assert asked(both, felix=v4)[0] == {"192.0.2.50": OWN}


def test_a_workload_that_asks_itself_comes_from_its_smallest() -> None:
    used = [FloatingAddress(ip_address(f"192.0.2.{i}"), ip_address(OWN), "calia") for i in (50, 51)]
    script = render_floating(used, 4)
    assert "elements = { 192.0.2.50 : 10.65.1.5, 192.0.2.51 : 10.65.1.5 }" in script
    assert "elements = { 10.65.1.5 . 10.65.1.5 : 192.0.2.50 }" in script
    assert render_floating(used, 6) == "add table ip6 calico-floating\ndelete table ip6 calico-floating\n"
