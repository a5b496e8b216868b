"""The reading side of CHECK: reads a pod's network from the kernel and compares it with the plan."""

from __future__ import annotations

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError, LinkGone
from cni_calico.kernel import netns, sysctl
from cni_calico.kernel.netlink import addresses, routes
from cni_calico.kernel.netlink.links import Link
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.model.resources import Address
from cni_calico.plugin.network import host_routes as hostroutes
from cni_calico.plugin.network.differences import Difference, LinkState, Observed, select_differences
from cni_calico.plugin.network.host import Borrowed, Host, Site, is_joined, read_link, read_routes
from cni_calico.plugin.network.plan import (
    PodPlan,
    PodRoute,
    Sysctl,
    desired_host_sysctls,
    desired_pod_sysctls,
    format_mac,
    host_network,
)


def find_differences(
    plan: PodPlan, netns_fd: int, deadline: Deadline, *, host: Host | None = None
) -> tuple[Difference, ...]:
    """Every difference between the pod's network and what ADD leaves behind. Raises KernelError, DeadlineExceeded."""
    with Borrowed(host) as host:
        return select_differences(plan, observe(plan, netns_fd, deadline, host))


def observe(plan: PodPlan, netns_fd: int, deadline: Deadline, host: Host) -> Observed:
    with netns.inside(netns_fd, host.home):
        pod_sysctls = _read_sysctls(desired_pod_sysctls(plan))
        pod = Rtnl()
    with pod:
        theirs = read_link(pod, plan.pod_ifname, deadline)
        index = theirs.ifindex if theirs is not None else -1
        pod_addresses = _read_addresses(pod, index, deadline)
        pod_routes = _read_routes(pod, index, deadline)
        neighbours = _read_neighbours(pod, index, deadline)
    ours = read_link(host.rtnl, plan.host_ifname, deadline)
    joined = is_joined(Site(host, netns_fd), ours, theirs, deadline)
    holders = {address: _holder(host.rtnl, address, ours, deadline) for address in plan.addresses}
    return Observed(
        host=_state(ours, joined),
        pod=_state(theirs, joined),
        addresses=pod_addresses,
        pod_routes=pod_routes,
        host_routes={address: holder for address, holder in holders.items() if holder is not None},
        neighbours=neighbours,
        host_sysctls=_read_sysctls(desired_host_sysctls(plan)),
        pod_sysctls=pod_sysctls,
    )


def _state(link: Link | None, joined: bool) -> LinkState | None:
    return None if link is None else LinkState(link.up, format_mac(link.mac), link.mtu, joined)


def _read_sysctls(wanted: tuple[Sysctl, ...]) -> dict[tuple[str, ...], str]:
    found = ((name, sysctl.read(name)) for name, _ in wanted)
    return {name: value for name, value in found if value is not None}


def _read_addresses(pod: Rtnl, index: int, deadline: Deadline) -> frozenset[Address]:
    listed = (addresses.decode_address(reply) for reply in pod.dump(addresses.list_addresses(0), deadline))
    return frozenset(
        entry.address
        for entry in listed
        if entry.ifindex == index and entry.prefix_length == entry.address.max_prefixlen
    )


def _read_routes(pod: Rtnl, index: int, deadline: Deadline) -> frozenset[PodRoute]:
    return frozenset(
        PodRoute(route.dst, route.gateway)
        for version in (4, 6)
        for route in read_routes(pod, version, deadline)
        if route.oif == index and route.kind == routes.RTN_UNICAST
    )


def _read_neighbours(pod: Rtnl, index: int, deadline: Deadline) -> dict[Address, str]:
    listed = (addresses.decode_neighbour(reply) for reply in pod.dump(addresses.list_neighbours(), deadline))
    return {entry.address: format_mac(entry.mac) for entry in listed if entry.ifindex == index and entry.permanent}


def _holder(rtnl: Rtnl, address: Address, ours: Link | None, deadline: Deadline) -> str | None:
    """The interface that the address's own host route leads to: "" for a route without interface, None for no such
    route.
    """
    try:
        found = [routes.decode_route(rtnl.one(routes.match_route(address), deadline))]
    except LinkGone:
        raise
    except KernelError:
        found = []  # no route at all, or one that rejects packets
    if not found or found[0].dst != host_network(address):
        found = hostroutes.list_exact(rtnl, address, deadline)
    if not found:
        return None
    if ours is not None and any(route.oif == ours.ifindex for route in found):
        return ours.name
    link = read_link(rtnl, found[0].oif, deadline) if found[0].oif else None
    return link.name if link is not None else ""
