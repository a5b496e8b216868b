"""The host side of a pod's network: the namespace of the calling thread, its netlink socket, and the veths it holds.

Rule: nothing here changes anything.
"""

from __future__ import annotations

import os
from errno import ENOENT
from typing import NamedTuple

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError, LinkGone
from cni_calico.kernel import netns
from cni_calico.kernel.netlink import links, routes
from cni_calico.kernel.netlink.links import Link
from cni_calico.kernel.netlink.routes import Route
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.log import SILENT, Log
from cni_calico.model.resources import Address
from cni_calico.plugin.network.plan import PodPlan


class Host:
    """One thread's access to the host's namespace; a resident server keeps one per worker. Close it."""

    __slots__ = ("home", "rtnl")

    def __init__(self) -> None:
        self.home = netns.open_own()
        try:
            self.rtnl = Rtnl()
        except BaseException:
            os.close(self.home)
            raise

    def close(self) -> None:
        self.rtnl.close()
        os.close(self.home)

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Borrowed:
    """``with Borrowed(host) as host``: the caller's Host, or if there is none a new one for the duration."""

    __slots__ = ("given", "own")

    def __init__(self, given: Host | None) -> None:
        self.given = given
        self.own: Host | None = None

    def __enter__(self) -> Host:
        if self.given is not None:
            return self.given
        self.own = Host()
        return self.own

    def __exit__(self, *_: object) -> None:
        if self.own is not None:
            self.own.close()


class Site(NamedTuple):
    """Where a pod's network is: the host's side, the pod's namespace (which stays open meanwhile), and the log."""

    host: Host
    netns_fd: int
    log: Log = SILENT


class Pair(NamedTuple):
    """The interfaces with the two names of a plan; ``joined``: they are the two ends of one veth."""

    host: Link | None
    pod: Link | None
    joined: bool


def read_link(rtnl: Rtnl, which: str | int, deadline: Deadline) -> Link | None:
    """None if there is no such interface."""
    try:
        return links.decode_link(rtnl.one(links.get_link(which), deadline))
    except LinkGone:
        return None


def read_routes(rtnl: Rtnl, version: int, deadline: Deadline, *, table: int = routes.TABLE_MAIN) -> list[Route]:
    """The routes of one table; a table that does not exist counts as empty."""
    try:
        replies = rtnl.dump(routes.list_routes(version, table=table), deadline)
    except KernelError as e:
        if e.errno == ENOENT:
            return []
        raise
    return [route for reply in replies if (route := routes.decode_route(reply)).table == table]


def read_addresses_behind(rtnl: Rtnl, link: Link, deadline: Deadline) -> set[Address]:
    """The single addresses that are routed to an interface. Raises KernelError."""
    found = (route for version in (4, 6) for route in read_routes(rtnl, version, deadline))
    ours = (route.dst for route in found if route.oif == link.ifindex)
    return {net.network_address for net in ours if net.prefixlen == net.max_prefixlen}


def read_pair(site: Site, plan: PodPlan, deadline: Deadline) -> Pair:
    ours = read_link(site.host.rtnl, plan.host_ifname, deadline)
    with netns.inside(site.netns_fd, site.host.home), Rtnl() as pod:
        theirs = read_link(pod, plan.pod_ifname, deadline)
    return Pair(ours, theirs, is_joined(site, ours, theirs, deadline))


def is_joined(site: Site, ours: Link | None, theirs: Link | None, deadline: Deadline) -> bool:
    """Whether an interface of the host and one of the pod's namespace are the two ends of one veth."""
    if ours is None or theirs is None or not ours.kind == theirs.kind == "veth":
        return False
    if (ours.peer, theirs.peer) != (theirs.ifindex, ours.ifindex):
        return False
    return ours.peer_netns == links.decode_netns_id(site.host.rtnl.one(links.get_netns_id(site.netns_fd), deadline))
