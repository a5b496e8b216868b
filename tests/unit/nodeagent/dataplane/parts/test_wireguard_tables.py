"""The order of writes at the kernel's door, of WireGuard's side and of the main table: never plain in between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

from cni_calico.kernel.netlink.routes import TABLE_MAIN
from cni_calico.model.host import HostRoute
from cni_calico.model.resources import Network
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption
from tests.unit.nodeagent.dataplane.encryption.test_steps import NAME, NETWORK, OWN, key, peer
from tests.unit.nodeagent.dataplane.parts.test_wireguard import WANTED, Host

LENT, TAKEN = ip_network("10.65.1.9/32"), ip_network("10.65.2.9/32")  # of our block, of n2's
THIRD = ip_network("10.65.3.0/26")


def plain(*networks: object) -> frozenset[HostRoute]:
    """What the main table has of other nodes."""
    return frozenset(HostRoute(ip_network(str(one)), "vxlan.calico", protocol=80) for one in networks)


def here(*networks: object) -> frozenset[HostRoute]:
    blackhole = HostRoute(OWN, kind="blackhole", protocol=80)
    return frozenset((blackhole, *(HostRoute(ip_network(str(one)), "cali1", protocol=80) for one in networks)))


def nodes(
    second: Iterable[Network] = (), third: Iterable[Network] = (), own: Iterable[Network] = ()
) -> DesiredEncryption:
    """Three nodes with their blocks, and these addresses of others' blocks."""
    peers = peer(2, NETWORK, *second), peer(3, THIRD, *third, node="n3")
    return replace(WANTED, peers=peers, own=frozenset((OWN, *own)))


def is_inside(address: Any, network: Any) -> bool:
    return bool(address.subnet_of(network))


def allowed(host: Host, number: int) -> frozenset[Network]:
    """What a peer may send from."""
    found = host.wireguard.devices[NAME].peer(key(number))
    return frozenset() if found is None else found.allowed


class Watched:
    """A node that encrypts for two others; after each write, where packets to each address go."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.ways: set[tuple[str, str]] = set()
        host.apply(nodes(), routes=here() | plain(NETWORK, THIRD))
        for number in (2, 3):
            host.wireguard.shake(NAME, key(number), 50)
        host.apply(nodes(), routes=here() | plain(NETWORK, THIRD))
        host.written = self._look

    def way(self, address: object) -> str:
        for table in (1, TABLE_MAIN):
            around = [one for one in self.host.tables[table] if is_inside(address, one.dst)]
            route = max(around, key=lambda one: one.dst.prefixlen, default=None)
            if route is not None and route.kind != "throw":
                return "here" if route.device.startswith("cali") else route.device or route.kind
        return "nowhere"

    def _look(self) -> None:
        self.ways |= {(str(one), self.way(one)) for one in (LENT, TAKEN, NETWORK, THIRD)}
        for one in (LENT, TAKEN, NETWORK, THIRD):
            if self.way(one) == NAME:
                peers = self.host.wireguard.devices[NAME].peers
                assert any(is_inside(one, network) for each in peers for network in each.allowed)

    def writes(self, wanted: DesiredEncryption, routes: frozenset[HostRoute]) -> list[str]:
        done = self.host.apply(wanted, routes=routes)
        assert not done.failed and not done.pending
        assert not [way for way in self.ways if way[1] == "vxlan.calico"]
        made = list(self.host.writes)
        assert not self.host.apply(wanted, full=True, routes=routes).changed
        return made


@pytest.fixture
def watched_node(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(Host(monkeypatch))


def test_an_address_that_another_node_borrows(watched_node: Watched) -> None:
    """WireGuard's peer and route, then the plain route; the other way round when it is given back."""
    with_it = here() | plain(NETWORK, THIRD, LENT)
    assert watched_node.writes(nodes(second=[LENT]), with_it) == [
        f"peer 2 {LENT} {NETWORK}",
        f"table 1: {LENT} {NAME}",
        f"main: {LENT} vxlan.calico",
    ]
    assert watched_node.writes(nodes(), here() | plain(NETWORK, THIRD)) == [
        f"main: {LENT} removed",
        f"table 1: {LENT} removed",
        f"peer 2 {NETWORK}",
    ]


def test_one_that_goes_to_another_node(watched_node: Watched) -> None:
    """Two peers and nothing else, in an order in which one of them always has it."""
    with_it = here() | plain(NETWORK, THIRD, LENT)
    watched_node.writes(nodes(second=[LENT]), with_it)
    assert watched_node.writes(nodes(third=[LENT]), with_it) == [f"peer 3 {LENT} {THIRD}", f"peer 2 {NETWORK}"]


def test_one_that_this_node_borrows(watched_node: Watched) -> None:
    """Its pod has the route of the main table before that is asked, and until it is not asked any more."""
    with_it = here(TAKEN) | plain(NETWORK, THIRD)
    assert watched_node.writes(nodes(own=[TAKEN]), with_it) == [f"main: {TAKEN} cali1", f"table 1: {TAKEN} throw"]
    watched_node.host.tables[TABLE_MAIN] -= here(TAKEN) - here()  # with the pod
    watched_node.ways.clear()
    assert watched_node.writes(nodes(), here() | plain(NETWORK, THIRD)) == [f"table 1: {TAKEN} removed"]


def test_one_that_comes_back(watched_node: Watched) -> None:
    """What another node had borrowed, a pod of this one has now."""
    watched_node.writes(nodes(second=[LENT]), here() | plain(NETWORK, THIRD, LENT))
    assert watched_node.writes(nodes(), here(LENT) | plain(NETWORK, THIRD)) == [
        f"main: {LENT} cali1",
        f"table 1: {LENT} removed",
        f"peer 2 {NETWORK}",
    ]


def test_a_node_and_its_block(watched_node: Watched) -> None:
    """The third goes, then its block is the second's."""
    gone = replace(nodes(), peers=nodes().peers[:1])
    assert watched_node.writes(gone, here() | plain(NETWORK)) == [
        f"main: {THIRD} removed",
        f"table 1: {THIRD} removed",
        "peer 3 removed",
    ]
    taken = replace(gone, peers=(peer(2, NETWORK, THIRD),))
    assert watched_node.writes(taken, here() | plain(NETWORK, THIRD)) == [
        f"peer 2 {NETWORK} {THIRD}",
        f"table 1: {THIRD} {NAME}",
        f"main: {THIRD} vxlan.calico",
    ]


def test_a_plain_route_that_stays_keeps_what_is_before_it(watched_node: Watched) -> None:
    """A main table that cannot be changed; it is tried again."""
    watched_node.writes(nodes(second=[LENT]), here() | plain(NETWORK, THIRD, LENT))
    watched_node.host.failing.add(TABLE_MAIN)
    less = here() | plain(NETWORK, THIRD)
    for _ in range(2):
        done = watched_node.host.apply(nodes(), routes=less)
        assert done.failed and watched_node.way(LENT) == NAME
        assert allowed(watched_node.host, 2) == {NETWORK, LENT}
    watched_node.host.failing.clear()
    watched_node.host.apply(nodes(), routes=less)
    assert watched_node.way(LENT) == "blackhole"
    assert allowed(watched_node.host, 2) == {NETWORK}
