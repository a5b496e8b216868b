"""Whose interface is whose for the routes, and which interfaces get an alias that says so."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import pytest

from cni_calico.model.host import HostInterface, HostRoute
from cni_calico.model.names import attachment_digest, owner_text, signed_alias
from cni_calico.model.resources import Network, WorkloadEndpoint
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.endpoints import (
    NOBODY,
    Moves,
    desired_endpoint_routes,
    select_proven,
    select_unsigned,
)
from cni_calico.nodeagent.dataplane.moving import Moving
from cni_calico.nodeagent.view.present import select_present
from cni_calico.nodeagent.view.snapshot import BlockRoute, Snapshot
from tests.unit.nodeagent.fabric import workload

A: WorkloadEndpoint = replace(workload("a", "cali1", "10.65.1.5/32"), pod="a", container_id="ca")
B: WorkloadEndpoint = replace(workload("b", "cali1", "10.65.1.6/32"), pod="b", container_id="cb")
DIGEST = attachment_digest("cal.net", "ca", "eth0")
SIGNED = signed_alias(DIGEST, owner_text("k8s", "default", "a"))


def link(alias: str = "", *, up: bool = True) -> HostInterface:
    return HostInterface(7, "cali1", up, 1500, kind="veth", alias=alias)


@pytest.mark.parametrize("endpoints", [(A, B), (B, A)])
def test_the_routes_of_an_interface(endpoints: tuple[WorkloadEndpoint, ...]) -> None:
    """They follow the alias, never the order of the records; nobody's routes lead to an interface that is disputed."""
    assert select_present(endpoints, [link(SIGNED)]) == {"cali1": A}
    assert select_present(endpoints, [link()]) == {}
    assert select_present([B], [link(SIGNED)]) == {} and select_present([B], [link()]) == {"cali1": B}
    assert select_present(endpoints, []) == {}


@pytest.mark.parametrize("handle", ["cal.net.ca", "cal.net.ca.eth0"])
@pytest.mark.parametrize("digest", [DIGEST, attachment_digest("", "ca", "eth0")])
def test_the_handle_says_whose_an_older_alias_is(handle: str, digest: str) -> None:
    """Also if another pod alone names the interface, with any container's ID that it likes."""
    old, forged = link(f"cni-calico:{digest}"), replace(B, container_id="ca")
    handles = {"cal.net.cb": ("default", "b"), handle: ("default", "a")}
    for present in ({}, {"cali1": forged}, {"cali1": A}):
        (found,) = select_unsigned(present, [old], handles)
        assert found.alias == signed_alias(digest, owner_text("k8s", "default", "a"))
        assert select_proven([found], []) == (found,)


def test_routes_prove_what_no_handle_knows() -> None:
    """The digest stays: the DEL recognises it."""
    (old,) = select_unsigned({"cali1": A}, [link(f"cni-calico:{DIGEST}")], {})
    assert old.alias == SIGNED and select_proven([old], []) == ()
    assert select_proven([old], [HostRoute(A.ip_networks[0], "cali1")]) == (old,)
    (none,) = select_unsigned({"cali1": A}, [link()], {})
    assert none.alias == signed_alias(attachment_digest("", "ca", "eth0"), owner_text("k8s", "default", "a"))


def test_what_gets_no_alias() -> None:
    present = {"cali1": A}
    for one in (link(SIGNED), link("an administrator's"), link(up=False), replace(link(), kind="dummy")):
        assert select_unsigned(present, [one], {}) == ()
    assert select_unsigned({}, [link()], {}) == ()
    assert select_unsigned({"cali1": replace(A, container_id="")}, [link()], {}) == ()


def test_a_machine_that_is_elsewhere_has_no_route_here() -> None:
    """As IPAM says; a machine that has just come is believed before it."""
    felix, here = FelixSettings(), A.ip_networks[0]
    away = frozenset((here.network_address, ip_address("10.65.1.9")))

    def routed(moves: Moves) -> set[tuple[Network, int]]:
        return {(route.dst, route.metric) for route in desired_endpoint_routes({"cali1": A}, felix, moves)}

    assert routed(NOBODY) == routed(Moves(away=frozenset((ip_address("10.65.1.9"),)))) == {(here, 1024)}
    assert routed(Moves(away=away)) == routed(Moves(withheld=frozenset(("cali1",)))) == set()
    assert routed(Moves(elevated=frozenset(("cali1",)), away=away)) == {(here, 512)}


def test_only_machines_are_looked_for_in_the_blocks() -> None:
    here, without_kubernetes = A.ip_networks[0].network_address, SimpleNamespace(kubernetes_store=None)
    context: Any = without_kubernetes
    blocks = (BlockRoute(A.ip_networks[0], "n2", away=frozenset((here,))),)
    moving = Moving(context, lambda: None)
    launcher = replace(A, pod="virt-launcher-vm-1")
    assert moving.moves(Snapshot("n1", blocks=blocks, endpoints=(launcher, B)), FelixSettings()) == Moves(
        away=frozenset((here,))
    )
    assert moving.moves(Snapshot("n1", blocks=blocks, endpoints=(A, B)), FelixSettings()) is NOBODY
