"""The order of changes: whatever becomes of the records, what is encrypted before and afterwards never goes plain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from ipaddress import IPv4Network, ip_network
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cni_calico.deadline import Deadline
from cni_calico.model.host import PROTO_CALICO, HostRoute
from cni_calico.nodeagent.dataplane.delta import Changes, plan_routes
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption
from cni_calico.nodeagent.dataplane.encryption.order import OrderedRoutes, order_routes, widened
from cni_calico.nodeagent.dataplane.encryption.steps import throw
from tests.unit.nodeagent.dataplane.encryption.test_steps import NAME, Host, desired, key, peer
from tests.unit.nodeagent.fabric import FELIX

Owners = Mapping[IPv4Network, str]
POOL = ip_network("10.65.0.0/24")
NETWORKS = [IPv4Network((0x0A410000 + number * 64, 26)) for number in range(3)]
NETWORKS += [IPv4Network((0x0A410000 + number * 64 + 9, 32)) for number in range(3)]
PEERS = {2: "n2", 3: "n3"}
owned = st.fixed_dictionaries({network: st.sampled_from(("own", "n2", "n3", "plain", "")) for network in NETWORKS})


def of(owners: Owners, name: str) -> frozenset[IPv4Network]:
    return frozenset(network for network, owner in owners.items() if owner == name)


def wanted_of(owners: Owners, *, mandatory: bool) -> DesiredEncryption:
    peers = [replace(peer(number, node=node), networks=tuple(of(owners, node))) for number, node in PEERS.items()]
    prohibited = frozenset((POOL,)) if mandatory else frozenset()
    wanted = desired(*peers, plain_networks=of(owners, "plain"), mandatory=mandatory, prohibited=prohibited)
    return replace(wanted, own=of(owners, "own"))


def main_of(owners: Owners) -> frozenset[HostRoute]:
    """The main table; a route's device is its node, "own" for a pod of this one's."""

    def route(network: IPv4Network, owner: str) -> HostRoute:
        if owner == "own" and network.prefixlen < 32:
            return HostRoute(network, kind="blackhole", protocol=PROTO_CALICO)
        return HostRoute(network, owner, protocol=PROTO_CALICO)

    return frozenset(route(network, owner) for network, owner in owners.items() if owner)


def is_inside(address: Any, network: Any) -> bool:
    return bool(address.subnet_of(network))


def longest(routes: Iterable[HostRoute], address: IPv4Network) -> HostRoute | None:
    around = (route for route in routes if is_inside(address, route.dst))
    return max(around, key=lambda route: route.dst.prefixlen, default=None)


def writes(routes: frozenset[HostRoute], changes: Changes[HostRoute]) -> Iterator[frozenset[HostRoute]]:
    """What a table has after each of them."""
    for one in changes.add:
        routes = frozenset(route for route in routes if route.dst != one.dst) | {one}
        yield routes
    for one in changes.remove:
        routes -= {one}
        yield routes


class Node:
    """Both tables and the device."""

    def __init__(self) -> None:
        self.host = Host()
        self.main: frozenset[HostRoute] = frozenset()

    def moments(self, owners: Owners, *, mandatory: bool) -> Iterator[None]:
        """After each write on the way to these owners."""
        host, wanted = self.host, wanted_of(owners, mandatory=mandatory)
        steps = host.stepping.plan(wanted, host.kernel.devices[NAME], host.routes, host.now)
        ordered = order_routes(steps.routes, host.routes, partial=False)
        if steps.change is not None:
            host.kernel.change_device(NAME, steps.change, Deadline.after(5))
            yield
        for routes in writes(host.routes, ordered.before):
            host.routes = routes
            yield
        for routes in writes(self.main, plan_routes(main_of(owners), self.main, FELIX)):
            self.main = routes
            yield
        for routes in writes(host.routes, ordered.after):
            host.routes = routes
            yield
        if steps.removals is not None:
            host.kernel.change_device(NAME, steps.removals, Deadline.after(5))
            yield
        assert host.routes == set(steps.routes)

    def way(self, address: IPv4Network) -> str:
        """ "to" a node, "plain to" one, or why nowhere."""
        route = longest(self.host.routes, address)
        if route is not None and route.kind == "prohibit":
            return "prohibited"
        if route is not None and route.device:
            allowed = [
                (network.prefixlen, one.public_key[0])
                for one in self.host.kernel.devices[NAME].peers
                for network in one.allowed
                if is_inside(address, network)
            ]
            return f"to {PEERS[max(allowed)[1]]}" if allowed else "no peer takes it"
        route = longest(self.main, address)
        if route is None or not route.device:
            return "no route"
        return "here" if route.device == "own" else f"plain to {route.device}"


def owner_of(owners: Owners, address: IPv4Network) -> tuple[str, int]:
    """And the length of what it is in."""
    around = [(network.prefixlen, owner) for network, owner in owners.items() if owner and address.subnet_of(network)]
    return max(around)[::-1] if around else ("", 0)


NOBODYS = dict.fromkeys(NETWORKS, "")
LENT = {**NOBODYS, NETWORKS[0]: "n2", NETWORKS[3]: "own"}


@given(before=owned, after=owned, mandatory=st.booleans())
@example(before=LENT, after={**LENT, NETWORKS[3]: ""}, mandatory=False)
@example(before={**LENT, NETWORKS[3]: ""}, after=LENT, mandatory=False)
@example(before={**LENT, NETWORKS[3]: "n3"}, after={**LENT, NETWORKS[3]: ""}, mandatory=False)
@settings(max_examples=100, deadline=None)
def test_never_plain_between_two_writes(before: Owners, after: Owners, mandatory: bool) -> None:
    node = Node()
    for _ in node.moments(before, mandatory=mandatory):
        pass
    for number in PEERS:
        node.host.kernel.shake(NAME, key(number), 50)
    for _ in node.moments(before, mandatory=mandatory):
        pass
    addresses = [IPv4Network((int(network[-1]), 32)) for network in NETWORKS]
    owners = {address: (owner_of(before, address), owner_of(after, address)) for address in addresses}
    known = {address: node.way(address) for address in addresses}
    for _ in node.moments(after, mandatory=mandatory):
        for address, (was, will) in owners.items():
            way = node.way(address)
            if "plain" not in (was[0], will[0]):
                assert not way.startswith("plain"), (address, was, will, way)
            if was == will:
                assert way == known[address], (address, was, way)
    for address, (_, (will, length)) in owners.items():
        here = "here" if length == 32 else "no route"
        plain = "prohibited" if mandatory else "plain to plain"
        none = "prohibited" if mandatory else "no route"
        if not (mandatory and will == "plain"):
            assert node.way(address) == {"own": here, "plain": plain, "": none}.get(will, f"to {will}")


def test_what_is_partial_loses_nothing() -> None:
    there = frozenset((throw(NETWORKS[3]), HostRoute(NETWORKS[0], NAME)))
    assert order_routes((), there, partial=True) == OrderedRoutes()
    assert order_routes((), there, partial=False).after.remove == (HostRoute(NETWORKS[0], NAME), throw(NETWORKS[3]))


def test_what_the_main_table_does_not_have_yet_waits() -> None:
    """And only that."""
    lost, kept = HostRoute(NETWORKS[0], NAME), HostRoute(NETWORKS[1], NAME)
    ordered = order_routes((), (lost, kept), partial=False)
    assert ordered.without([NETWORKS[3]]).after.remove == (kept,)
    assert ordered.without([ip_network("fd65::/64")]) == ordered.without(()) == ordered


def test_networks_that_a_peer_keeps_meanwhile() -> None:
    """Those that nobody else is to have."""
    first, second, third = NETWORKS[:3]
    wanted: Any = {key(2): frozenset((first,)), key(3): frozenset((third,))}
    there: Any = {key(2): frozenset((first, second, third)), key(9): frozenset((third,))}
    assert widened(wanted, there) == {key(2): {first, second}}
