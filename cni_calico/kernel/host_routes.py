"""Routes of one table, usually the main one, as HostRoute values: read, added, removed; many at a time.

Rule: above this module interfaces are identified by name. A failure of one route does not stop the others, and all
failures are reported. It uses the hand-encoded netlink of the call path: thousands of routes are read in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from errno import ENODEV, ENOENT, ESRCH
from ipaddress import ip_address, ip_network

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError, LinkGone
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.links import decode_link, decode_listed, get_link, list_links
from cni_calico.kernel.netlink.routes import (
    RTN_UNICAST,
    TABLE_MAIN,
    Route,
    add_route,
    decode_route,
    delete_route,
    list_routes,
    match_route,
)
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.kernel.netlink.wire import Request
from cni_calico.model.host import V6_DEFAULT_METRIC, HostRoute
from cni_calico.model.resources import Address

KINDS = {1: "unicast", 6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw"}
_KIND_NUMBERS = {name: number for number, name in KINDS.items()}
_SCOPES = {0: "global", 253: "link", 254: "host", 255: "nowhere"}
_SCOPE_NUMBERS = {name: number for number, name in _SCOPES.items()}
RTA_PREFSRC = 7
RTNH_F_ONLINK = 4
RTM_F_CLONED = 0x200
_FLAGS_AT = 8
_BATCH = 100


def read_host_routes(
    deadline: Deadline,
    *,
    table: int = TABLE_MAIN,
    families: Iterable[int] = (4, 6),
    names: Mapping[int, str] | None = None,
) -> list[HostRoute]:
    """Every route of the tables with this number, except local, broadcast and multicast routes. ``names``: those of the
    interfaces by index, if somebody has just read them; an interface that is not among them is looked for.
    """
    routes = []
    with Rtnl() as rtnl:
        known = _names(rtnl, deadline) if names is None else names
        for version in families:
            try:
                payloads = rtnl.dump(list_routes(version, table=table), deadline)
            except KernelError as e:
                if version == 4 and e.errno != ENOENT:
                    raise
                continue  # a kernel without IPv6, or a table that nobody has used yet
            for payload in payloads:
                route = _decode(payload, known, table)
                if route is not None and not route.device and route.kind == KINDS[1] and known is names:
                    known = _names(rtnl, deadline)
                    route = _decode(payload, known, table)
                if route is not None:
                    routes.append(route)
    return routes


def _names(rtnl: Rtnl, deadline: Deadline) -> dict[int, str]:
    links = (decode_listed(payload) for payload in rtnl.dump(list_links(), deadline))
    return {link.ifindex: link.name for link in links}


def _decode(payload: bytes, names: Mapping[int, str], table: int) -> HostRoute | None:
    route = decode_route(payload)
    flags = int.from_bytes(payload[_FLAGS_AT : _FLAGS_AT + 4], "little")
    if route.kind not in KINDS or route.table != table or flags & RTM_F_CLONED:
        return None
    v6 = route.dst.version == 6
    source = wire.attributes(payload, 12).get(RTA_PREFSRC)
    unicast = route.kind == 1
    return HostRoute(
        dst=route.dst,
        device=names.get(route.oif, "") if unicast else "",  # IPv6 shows "lo" for a blackhole route
        via=route.gateway,
        kind=KINDS[route.kind],
        onlink=bool(flags & RTNH_F_ONLINK),
        scope="global" if v6 else _SCOPES.get(route.scope, str(route.scope)),
        protocol=route.protocol,
        source=None if source is None else ip_address(source),
        metric=0 if v6 and route.metric == V6_DEFAULT_METRIC else route.metric,
    )


def apply_host_routes(
    add: Sequence[HostRoute], remove: Sequence[HostRoute], deadline: Deadline, *, table: int = TABLE_MAIN
) -> list[tuple[HostRoute, KernelError]]:
    """Replace or add, then remove; returns (route, error) for each that failed. Removing an absent route is success."""
    failures: list[tuple[HostRoute, KernelError]] = []
    with Rtnl() as rtnl:
        indexes = {name: index for index, name in _names(rtnl, deadline).items()}
        for routes, build, tolerated in ((add, _addition, ()), (remove, _removal, (ESRCH, ENOENT, ENODEV))):
            failures += _carry_out(rtnl, routes, build, tolerated, indexes, deadline, table)
    return failures


def _carry_out(
    rtnl: Rtnl,
    routes: Sequence[HostRoute],
    build: object,
    tolerated: Iterable[int],
    indexes: dict[str, int],
    deadline: Deadline,
    table: int,
) -> list[tuple[HostRoute, KernelError]]:
    failures: list[tuple[HostRoute, KernelError]] = []
    ready: list[tuple[HostRoute, Request]] = []
    for route in routes:
        if route.device and route.device not in indexes:
            if build is _addition:
                failures.append((route, KernelError(f"cannot add route {route}: no such interface", errno=ENODEV)))
            continue
        ready.append(
            (route, _addition(route, indexes, table) if build is _addition else _removal(route, indexes, table))
        )
    for start in range(0, len(ready), _BATCH):
        batch = ready[start : start + _BATCH]
        outcomes = rtnl.submit([request for _, request in batch], deadline)
        for (route, _), outcome in zip(batch, outcomes, strict=False):  # an injected fault ends a batch early
            if outcome.error is not None and outcome.error.errno not in tolerated:
                failures.append((route, outcome.error))
    return failures


def _kernel_route(route: HostRoute, indexes: dict[str, int], metric: int, table: int) -> Route:
    return Route(
        dst=route.dst,
        oif=indexes.get(route.device, 0),
        gateway=route.via,
        metric=metric,
        scope=_SCOPE_NUMBERS.get(route.scope, 0) if route.dst.version == 4 else 0,
        protocol=route.protocol,
        kind=_KIND_NUMBERS[route.kind],
        table=table,
    )


def _addition(route: HostRoute, indexes: dict[str, int], table: int) -> Request:
    made = _kernel_route(route, indexes, route.metric, table)
    request = add_route(made, route.device or route.kind, replace=True, onlink=route.onlink)
    if route.source is None:
        return request
    body = request.body + wire.attribute(RTA_PREFSRC, route.source.packed)
    return Request(request.kind, request.flags, body, request.doing, request.point)


def _removal(route: HostRoute, indexes: dict[str, int], table: int) -> Request:
    metric = V6_DEFAULT_METRIC if route.dst.version == 6 and not route.metric else route.metric
    return delete_route(_kernel_route(route, indexes, metric, table), route.device or route.kind)


def select_routed(
    addresses: Iterable[Address], interface: str, deadline: Deadline, *, fits: Callable[[str], bool] = lambda _: True
) -> frozenset[Address]:
    """The addresses that have a route of their own to an interface, which packets to them take now. Raises
    KernelError; none for an interface that does not exist, or whose alias does not fit.
    """
    found = []
    with Rtnl() as rtnl:
        try:
            link = decode_link(rtnl.one(get_link(interface), deadline))
        except LinkGone:
            return frozenset()
        if not fits(link.alias):
            return frozenset()
        for address in addresses:
            try:
                route = decode_route(rtnl.one(match_route(address), deadline))
            except KernelError:
                continue  # no route at all, or one that rejects packets
            if (route.oif, route.kind, route.dst) == (link.ifindex, RTN_UNICAST, ip_network(address)):
                found.append(address)
    return frozenset(found)
