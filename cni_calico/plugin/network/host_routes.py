"""Host routes to pods: one per address, and what to do if the same address already has another route.

Rule: a route through a living pod's interface is never replaced, whatever IPAM says: its datastore may have been lost.
If IPAM says that the address now belongs to this attachment, a route that our agent made or that leads to a dead
workload's interface is removed, and the log says which interface it led to. Otherwise the call fails and names both
interfaces.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import EEXIST, ESRCH

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError, RouteConflict
from cni_calico.kernel.netlink import routes
from cni_calico.kernel.netlink.links import Link
from cni_calico.kernel.netlink.routes import Route
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.kernel.netlink.wire import Request
from cni_calico.log import Log
from cni_calico.model import names
from cni_calico.model.resources import Address
from cni_calico.plugin.network.host import read_link, read_routes
from cni_calico.plugin.network.plan import host_network


def add_request(address: Address, index: int, label: str) -> Request:
    return routes.add_route(_route(address, index), label)


def delete_request(address: Address, index: int, label: str) -> Request:
    return routes.delete_route(_route(address, index), label)


def _route(address: Address, index: int) -> Route:
    scope = routes.SCOPE_LINK if address.version == 4 else routes.SCOPE_UNIVERSE
    return routes.Route(host_network(address), index, scope=scope)


def leads_to(payload: bytes, address: Address, index: int) -> bool:
    """Whether the answer to routes.match_route is the address's own route on interface ``index``."""
    found = routes.decode_route(payload)
    return found.oif == index and found.dst == host_network(address) and found.kind == routes.RTN_UNICAST


def is_taken(rtnl: Rtnl, payload: bytes, address: Address, index: int, deadline: Deadline) -> bool:
    """Whether the answer to routes.match_route is the address's own route on another workload's interface: that of the
    agent has a metric, so that adding ours would not fail, and take its place.
    """
    found = routes.decode_route(payload)
    if found.dst != host_network(address) or found.oif in (0, index):
        return False
    link = read_link(rtnl, found.oif, deadline)
    return link is not None and is_workload(link)


def list_exact(rtnl: Rtnl, address: Address, deadline: Deadline) -> list[Route]:
    """Every route to exactly this address in the tables main and local."""
    wanted = host_network(address)
    return [
        route
        for table in (routes.TABLE_LOCAL, routes.TABLE_MAIN)
        for route in read_routes(rtnl, address.version, deadline, table=table)
        if route.dst == wanted
    ]


def ensure_route(
    rtnl: Rtnl, address: Address, index: int, label: str, deadline: Deadline, owned: Callable[[Address], bool], log: Log
) -> None:
    """Make the address's route lead to interface ``index`` (named ``label``). Raises RouteConflict, KernelError."""
    found = list_exact(rtnl, address, deadline)
    # the kernel adds routes by itself only for addresses of interfaces here
    for route in found:
        if route.protocol == routes.PROTO_KERNEL and route.kind in (routes.RTN_LOCAL, routes.RTN_UNICAST):
            raise RouteConflict(
                f"cannot add route {route.dst} through {label}: the address is this host's own, on interface "
                f"{_holder(rtnl, route, deadline)}",
                errno=EEXIST,
                details="remove the address from the host, or reserve it with an IPReservation",
            )
    main = [route for route in found if route.table == routes.TABLE_MAIN]
    for route in main:
        if route.oif == index:
            continue
        link = _link_of(rtnl, route, deadline)
        holder = _named(link)
        if not owned(address) or not _is_stale(route, link):
            raise RouteConflict(
                f"cannot add route {route.dst} through {label}: it exists through {holder}",
                errno=EEXIST,
                details=f"find out whose interface {holder} is; delete the route if nobody needs it; if it is a living "
                "pod's, the datastore has lost its address: run 'calicoctl ipam check'",
            )
        log.warning(f"removing the route {route.dst} through {holder}: the address is now assigned to {label}")
        _remove(rtnl, route, holder, deadline)
    if not any(route.oif == index for route in main):
        rtnl.run((add_request(address, index, label),), deadline)


def _remove(rtnl: Rtnl, route: Route, holder: str, deadline: Deadline) -> None:
    try:
        rtnl.run((routes.delete_route(route, holder),), deadline)
    except KernelError as e:
        if e.errno != ESRCH:
            raise
        # removed meanwhile, or it has a next-hop object and cannot be matched by interface
        found = rtnl.submit((routes.delete_route(route._replace(oif=0, gateway=None), holder),), deadline)[0]
        if found.error is not None and found.error.errno != ESRCH:
            raise found.error from e


def _is_stale(route: Route, link: Link | None) -> bool:
    """Whether a route is one of Calico's with no living workload behind it."""
    if link is not None and is_workload(link):
        return not link.up
    from cni_calico.model.host import PROTO_CALICO  # rarely needed

    return route.protocol == PROTO_CALICO


def is_workload(link: Link) -> bool:
    """Whether an interface of the host is a pod's, whatever prefix its name has."""
    named = link.name.startswith(names.DEFAULT_PREFIX) or names.digest_in(link.alias) != ""
    return named or (link.kind == "veth" and link.mac == names.HOST_MAC_BYTES)


def _holder(rtnl: Rtnl, route: Route, deadline: Deadline) -> str:
    return _named(_link_of(rtnl, route, deadline))


def _named(link: Link | None) -> str:
    return link.name if link is not None else "no interface"


def _link_of(rtnl: Rtnl, route: Route, deadline: Deadline) -> Link | None:
    return read_link(rtnl, route.oif, deadline) if route.oif else None
