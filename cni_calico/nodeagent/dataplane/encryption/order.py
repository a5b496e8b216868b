"""PURE: which changes of WireGuard's tables and peers come before the plain routes' (the main table's), which after.

Rule: between two writes a packet finds what was before or what will be, never the plain route to a node that it is
encrypted for before and afterwards. So what leads to WireGuard, or forbids, comes before the plain route to the same
place, and goes after it; what lets packets go to the main table comes when that has the place, and goes before it does.
A network that has two owners meanwhile is the new one's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from cni_calico.model.host import HostRoute
from cni_calico.model.resources import Network
from cni_calico.nodeagent.dataplane.delta import Changes, plan_set


@dataclass(frozen=True, slots=True)
class OrderedRoutes:
    """``before`` and ``after`` the plain routes, each with its additions in their order, then its removals."""

    before: Changes[HostRoute] = field(default_factory=Changes)
    after: Changes[HostRoute] = field(default_factory=Changes)

    def without(self, unsettled: Collection[Network]) -> OrderedRoutes:
        """What does not touch these networks: those whose plain routes are not yet as they are to be."""
        if not unsettled:
            return self

        def settled(routes: Iterable[HostRoute]) -> tuple[HostRoute, ...]:
            return tuple(route for route in routes if not any(_touch(route.dst, one) for one in unsettled))

        return replace(self, after=Changes(settled(self.after.add), settled(self.after.remove)))


def _touch(first: Network, second: Network) -> bool:
    return first.version == second.version and first.overlaps(second)


def order_routes(wanted: Collection[HostRoute], present: Collection[HostRoute], *, partial: bool) -> OrderedRoutes:
    """``partial``: nothing is taken away."""
    planned = plan_set(wanted, present)
    added = {route.dst for route in planned.add}
    # one with the same destination is replaced by adding the other
    removed = () if partial else tuple(route for route in planned.remove if route.dst not in added)
    if not planned.add and not removed:
        return OrderedRoutes()
    now, then = RoutesAround(present), RoutesAround(wanted)

    def opens(route: HostRoute) -> bool:
        """What is forbidden or led to WireGuard now goes to the main table with it."""
        return _lets_go(route) and now.leads(route.dst)

    def closes(route: HostRoute) -> bool:
        """What goes to the main table by it does not any more without it."""
        return _lets_go(route) and then.leads(route.dst)

    # what is an exception from a larger network's route is there before that, and goes after it
    add = sorted(planned.add, key=lambda route: not _lets_go(route))
    remove = sorted(removed, key=_lets_go)
    return OrderedRoutes(
        Changes(tuple(route for route in add if not opens(route)), tuple(route for route in remove if closes(route))),
        Changes(tuple(route for route in add if opens(route)), tuple(route for route in remove if not closes(route))),
    )


def _lets_go(route: HostRoute) -> bool:
    return route.kind == "throw"


class RoutesAround:
    """Routes by their destinations, for the one that packets to a network take."""

    def __init__(self, routes: Iterable[HostRoute]) -> None:
        self._routes = {(route.dst.prefixlen, int(route.dst.network_address)): route for route in routes}
        self._lengths = sorted({length for length, _ in self._routes}, reverse=True)

    def leads(self, network: Network) -> bool:
        """Whether packets to it go by this table, or nowhere."""
        route = next(self._around(network), None)
        return route is not None and not _lets_go(route)

    def _around(self, network: Network) -> Iterator[HostRoute]:
        first, bits = int(network.network_address), network.max_prefixlen
        for length in self._lengths:
            if length <= network.prefixlen:
                route = self._routes.get((length, first >> (bits - length) << (bits - length)))
                if route is not None:
                    yield route


def widened(
    wanted: Mapping[bytes, Set[Network]], there: Mapping[bytes, Set[Network]]
) -> dict[bytes, frozenset[Network]]:
    """By key, the networks that a peer has while the routes are changed, where these are more than it is to have: what
    it has and nobody is to have.
    """
    more = {
        key: extra
        for key, networks in wanted.items()
        if (held := there.get(key)) is not None and held != networks and (extra := held - networks)
    }
    if not more:
        return {}
    owned = {network for networks in wanted.values() for network in networks}
    return {key: frozenset((*wanted[key], *rest)) for key, extra in more.items() if (rest := extra - owned)}
