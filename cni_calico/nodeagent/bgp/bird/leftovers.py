"""Finds and removes routes that BIRD leaves in the kernel when a destination's metric changes.

Rule: only BIRD's own routes; while it runs, only destinations with several routes in the kernel, and of those only
routes whose metric differs from the one BIRD reports. With ``metric 0`` a route has its own metric, and in IPv4 BIRD 2
has the kernel replace routes in place, which does not replace a route of another metric; BIRD's scan mistakes the
second route for one it has already seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink.routes import TABLE_MAIN, Route, decode_route, delete_route, list_routes
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.nodeagent.bgp.bird.control import BirdControl, BirdReply
from cni_calico.nodeagent.bgp.bird.process import RTPROT_BIRD

_LABEL = "BIRD"
_ATTRIBUTE = "Kernel.metric:"
_ABSENT = (2, 3, 101)  # ENOENT, ESRCH, ENETUNREACH: another program has removed it already


def select_several(routes: Iterable[Route]) -> dict[IPv4Network, list[Route]]:
    """BIRD's IPv4 routes by destination, for destinations with several."""
    by_destination: defaultdict[IPv4Network, list[Route]] = defaultdict(list)
    for route in routes:
        if route.protocol == RTPROT_BIRD and route.table == TABLE_MAIN and isinstance(route.dst, IPv4Network):
            by_destination[route.dst].append(route)
    return {dst: several for dst, several in by_destination.items() if len(several) > 1}


def select_leftovers(several: Mapping[IPv4Network, list[Route]], wanted: Mapping[IPv4Network, int]) -> list[Route]:
    """The routes to remove; BIRD's own scan removes those of destinations that it does not want at all."""
    return [
        route
        for dst, routes in several.items()
        for route in routes
        if dst in wanted and route.metric != wanted[dst] and any(r.metric == wanted[dst] for r in routes)
    ]


def parse_metric(reply: BirdReply) -> int | None:
    """The metric of the one route in a reply to ``show route ... export``; None if BIRD exports none."""
    if not any(code == 1008 for code, _ in reply.lines):  # 1008: a route's type, one for each route
        return None
    texts = [text.strip() for _, text in reply.lines]
    metrics = [text.removeprefix(_ATTRIBUTE).strip() for text in texts if text.startswith(_ATTRIBUTE)]
    return int(metrics[0]) if metrics and metrics[0].isdecimal() else 0


def remove_leftovers(socket: str, deadline: Deadline) -> int:
    """Remove them; returns how many there were. Raises BirdUnavailable, KernelError, DeadlineExceeded."""
    with Rtnl() as rtnl:
        several = select_several(decode_route(payload) for payload in rtnl.dump(list_routes(4), deadline))
        if not several:
            return 0
        wanted = {}
        with BirdControl(socket, deadline) as control:
            for dst in several:
                metric = parse_metric(control.ask(f"show route {dst} export kernel_v4 all", deadline))
                if metric is not None:
                    wanted[dst] = metric
        return sum(_remove(rtnl, route, deadline) for route in select_leftovers(several, wanted))


def remove_all(deadline: Deadline) -> int:
    """Remove every route that a BIRD has left; returns how many there were. Raises KernelError, DeadlineExceeded."""
    removed = 0
    with Rtnl() as rtnl:
        for version in (4, 6):
            found = [decode_route(payload) for payload in rtnl.dump(list_routes(version), deadline)]
            for route in found:
                if route.protocol == RTPROT_BIRD and route.table == TABLE_MAIN:
                    removed += _remove(rtnl, route, deadline)
    return removed


def _remove(rtnl: Rtnl, route: Route, deadline: Deadline) -> int:
    try:
        rtnl.one(delete_route(route, _LABEL), deadline)
    except KernelError as e:
        if e.errno not in _ABSENT:
            raise
        return 0
    return 1
