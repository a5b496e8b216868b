"""The pod's side of phase 2: interface up, addresses, routes, the permanent neighbour.

Rule: one exchange on the pod's socket if nothing conflicts; what is right already stays, and a route that leads
elsewhere is never replaced.
"""

from __future__ import annotations

from errno import EEXIST

from cni_calico.deadline import Deadline
from cni_calico.errors import RouteConflict
from cni_calico.kernel.netlink import addresses, links, routes
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.kernel.netlink.wire import Request
from cni_calico.model import names
from cni_calico.plugin.network.host import read_link, read_routes
from cni_calico.plugin.network.plan import GATEWAY_V4, PodPlan, PodRoute, desired_pod_routes


def apply_pod(pod: Rtnl, plan: PodPlan, index: int, deadline: Deadline) -> None:
    """Bring interface ``index`` of the namespace of ``pod`` to the plan. Raises RouteConflict, KernelError."""
    name = plan.pod_ifname
    batch: list[Request] = [links.set_link(index, name, up=True)]
    batch += [addresses.add_address(index, name, address) for address in plan.addresses]
    wanted = desired_pod_routes(plan)
    first_route = len(batch)
    batch += [routes.add_route(_kernel_route(route, index), name) for route in wanted]
    if plan.has_v4:
        batch.append(addresses.set_neighbour(index, name, GATEWAY_V4, names.HOST_MAC_BYTES))
    outcomes = pod.submit(batch, deadline)
    # an existing route can make later ones fail only if it leads elsewhere, and that is reported first
    for i, outcome in enumerate(outcomes):
        if outcome.error is None:
            continue
        at = i - first_route
        if outcome.error.errno != EEXIST or not 0 <= at < len(wanted):
            raise outcome.error
        _settle_route(pod, plan, wanted[at], index, deadline)


def _kernel_route(route: PodRoute, index: int) -> routes.Route:
    scope = routes.SCOPE_LINK if route.via is None and route.dst.version == 4 else routes.SCOPE_UNIVERSE
    return routes.Route(route.dst, index, route.via, scope=scope)


def _settle_route(pod: Rtnl, plan: PodPlan, wanted: PodRoute, index: int, deadline: Deadline) -> None:
    """A route to that destination exists: the wanted one, a wrong one on our own interface, or another interface's."""
    for found in read_routes(pod, wanted.dst.version, deadline):
        if found.dst != wanted.dst:
            continue
        if found.oif == index and found.gateway == wanted.via:
            return
        if found.oif != index:
            link = read_link(pod, found.oif, deadline) if found.oif else None
            holder = link.name if link is not None else "no interface"
            raise RouteConflict(
                f"cannot add route {wanted.dst} through {plan.pod_ifname} in the pod: it exists through {holder}",
                errno=EEXIST,
                details="two networks of one pod cannot both have this route, and calico gives a pod one interface: "
                "let a second one be macvlan, ipvlan or bridge (with ipam.type calico-ipam for addresses of Calico)",
            )
        pod.run((routes.delete_route(found, plan.pod_ifname),), deadline)
    pod.run((routes.add_route(_kernel_route(wanted, index), plan.pod_ifname),), deadline)
