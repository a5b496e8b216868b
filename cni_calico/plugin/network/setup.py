"""Puts a PodPlan into the kernel: first the links, which need no address, then the addresses once they are committed.

Rule: every function is idempotent and registers its undo before it acts, so that an effect whose answer was lost is
undone too. A healthy link is kept, a link of another attachment is never touched. plan.py decides what a pod's network
looks like. The host side is the namespace that the calling thread is in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from errno import EADDRNOTAVAIL, EEXIST, ENOENT, ESRCH
from typing import NamedTuple

from cni_calico.deadline import Deadline
from cni_calico.errors import InterfaceTaken, KernelError, LinkConflict, LinkGone
from cni_calico.kernel import netns, sysctl
from cni_calico.kernel.netlink import addresses, links, routes
from cni_calico.kernel.netlink.links import Link
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.kernel.netlink.wire import Request
from cni_calico.model import names
from cni_calico.model.resources import Address
from cni_calico.plugin.network import host_routes as hostroutes
from cni_calico.plugin.network.host import Host, Pair, Site, is_joined, read_link, read_pair
from cni_calico.plugin.network.inside import apply_pod
from cni_calico.plugin.network.ownership import another_workload, belongs_to_another, is_proven
from cni_calico.plugin.network.plan import (
    PodPlan,
    desired_host_sysctls,
    desired_pod_sysctls,
    format_mac,
    optional_sysctl,
)

_MAC_READ_BACK_S = 5.0
_MAC_INTERVAL_S = 0.01
_UNDO_S = 5.0  # an undo must not fail because the call's own deadline has passed


class Links(NamedTuple):
    """Both ends of an attachment's veth; ``created`` says whether this call made them, ``mac`` is the pod's."""

    host_index: int
    pod_index: int
    mac: str
    created: bool
    undo: ExitStack


# -- phase 1 ----------------------------------------------------------------------------------------------------------


class Existing(NamedTuple):
    """What may be done about interfaces that exist already.

    ``may_replace``: the host's interface of that name belongs to this attachment or to nobody. ``may_keep``: a veth
    between host and pod is the one that the plan describes. ``named_after_pod``: the interface of an earlier sandbox
    has the same name. ``rivals``: asked for the other workloads of this node whose records name the interface, if it
    exists and its alias names no workload.
    """

    may_replace: bool = True
    may_keep: bool = True
    named_after_pod: bool = True
    rivals: Callable[[], Collection[str]] = tuple


ANY = Existing()


def create_links(plan: PodPlan, site: Site, undo: ExitStack, deadline: Deadline, existing: Existing = ANY) -> Links:
    """Create the veth and set the sysctls of both sides; nothing is up and no address exists yet.

    The pod's namespace stays open until ``undo`` has run. Raises LinkConflict, InterfaceTaken, KernelError,
    DeadlineExceeded, and what ``existing.rivals`` raises.
    """
    creation = _Creation(plan, site)
    undo.callback(creation.undo)
    link = creation.create(deadline)
    if link is None and not existing.may_keep:
        raise LinkConflict(f"cannot create interface {plan.host_ifname}: it or {plan.pod_ifname} exists", errno=EEXIST)
    link = link or _settle_links(creation, deadline, existing)
    created = creation.outcome == "created"
    mac = plan.mac
    with netns.inside(site.netns_fd, site.host.home):
        for name, value in desired_pod_sysctls(plan):
            sysctl.ensure(name, value)
        if not created or mac is None:
            with Rtnl() as pod:
                mac = _repair_pod_end(pod, plan, link.peer, deadline)
    _ensure_host_sysctls(plan, link)
    if not created and link.mtu != plan.mtu:
        site.host.rtnl.run((links.set_link(link.ifindex, link.name, mtu=plan.mtu),), deadline)
    return Links(link.ifindex, link.peer, format_mac(mac), created, undo)


class _Creation:
    """The creation of the veth and its undo. ``outcome``: "kept" (nothing made), "unknown", or "created"."""

    def __init__(self, plan: PodPlan, site: Site) -> None:
        self.plan = plan
        self.site = site
        self.outcome = "kept"

    def create(self, deadline: Deadline) -> Link | None:
        """The host's end; None if an interface with one of the two names exists."""
        plan = self.plan
        request = links.create_veth(
            plan.host_ifname,
            plan.pod_ifname,
            self.site.netns_fd,
            mtu=plan.mtu,
            mac=names.HOST_MAC_BYTES,
            peer_mac=plan.mac,
            queues=plan.num_queues,
        )
        self.outcome = "unknown"
        outcomes = self.site.host.rtnl.submit((request, links.get_link(plan.host_ifname)), deadline)
        failure = outcomes[0].error
        if failure is not None and failure.errno == EEXIST:
            self.outcome = "kept"
            return None
        if failure is not None:
            raise failure
        self.outcome = "created"
        if outcomes[1].error is not None:
            raise outcomes[1].error
        return links.decode_link(outcomes[1].replies[0])

    def undo(self) -> None:
        if self.outcome == "kept":
            return
        deadline = Deadline.after(_UNDO_S)
        with Host() as host:
            pair = read_pair(Site(host, self.site.netns_fd), self.plan, deadline)
            # if the answer was lost, a link that is up is an older one: a new one is not up yet
            if pair.joined and pair.host is not None and (self.outcome == "created" or not pair.host.up):
                host.rtnl.run((links.delete_link(pair.host.ifindex, pair.host.name),), deadline)


def _settle_links(creation: _Creation, deadline: Deadline, existing: Existing) -> Link:
    """An interface with one of the two names exists: keep it if both ends are there, replace it if that is allowed,
    otherwise refuse.
    """
    plan, site, may_replace = creation.plan, creation.site, existing.may_replace
    pair = read_pair(site, plan, deadline)
    if pair.joined and pair.host is not None:
        return pair.host
    if pair.host is not None and may_replace:
        _require_not_taken(pair.host, plan, existing.rivals)
        may_replace = existing.named_after_pod or not belongs_to_another(pair.host, *plan.digests)
    for link in _select_stale(creation, pair, deadline, may_replace):
        site.log.warning(f"replacing interface {link.name}, left over from an earlier attachment")
        try:
            site.host.rtnl.run((links.delete_link(link.ifindex, link.name),), deadline)
        except LinkGone:
            pass
    made = creation.create(deadline)
    if made is None:
        raise LinkConflict(
            f"cannot create interface {plan.host_ifname} (peer {plan.pod_ifname}): another process just did",
            errno=EEXIST,
        )
    return made


def _require_not_taken(link: Link, plan: PodPlan, rivals: Callable[[], Collection[str]]) -> None:
    """Raises InterfaceTaken if the interface is another workload's. Every attachment that could want its name waits for
    this one meanwhile (Attachment.veth_label).
    """
    if not plan.owner or is_proven(link, plan.digests):
        return
    other = another_workload(link, plan.owner)
    if other or not names.owner_in(link.alias):
        taken = (names.shown_owner(other),) if other else tuple(sorted(rivals()))
        if taken:
            own, others = names.shown_owner(plan.owner), " and ".join(taken)
            raise InterfaceTaken(
                f"cannot create interface {link.name} for {own}: {others} has it, the names of both give the same "
                "interface name",
                errno=EEXIST,
                details="give one of the two another name",
            )


def _select_stale(creation: _Creation, pair: Pair, deadline: Deadline, may_replace: bool) -> tuple[Link, ...]:
    """The host's interfaces that must be removed. Raises LinkConflict if one of them is not this attachment's."""
    plan, site = creation.plan, creation.site
    stale: dict[int, Link] = {}
    if pair.pod is not None:
        end = read_link(site.host.rtnl, pair.pod.peer, deadline) if pair.pod.peer else None
        # the MAC distinguishes Calico's interfaces from those of other plugins
        ours = is_joined(site, end, pair.pod, deadline)
        if end is None or not ours or end.mac != names.HOST_MAC_BYTES:
            raise LinkConflict(
                f"cannot create interface {plan.pod_ifname} in the pod: it exists and is not this network's",
                errno=EEXIST,
                details="another plugin made this interface; delete it, or give the attachment another interface name",
            )
        stale[end.ifindex] = end
    if pair.host is not None and pair.host.ifindex not in stale:
        if pair.host.kind != "veth" or not may_replace:
            raise LinkConflict(
                f"cannot create interface {plan.host_ifname}: it exists and belongs to another attachment", errno=EEXIST
            )
        stale[pair.host.ifindex] = pair.host
    return tuple(stale.values())


def _ensure_host_sysctls(plan: PodPlan, link: Link) -> None:
    """Write only what the kernel's description of the link does not already show as wanted; reads no file."""
    for name, value in desired_host_sysctls(plan):
        if name[1] == "conf" and str(links.devconf(link, name[0], name[-1])) == value:
            continue
        sysctl.write(name, value, optional=optional_sysctl(plan, name))


def _repair_pod_end(pod: Rtnl, plan: PodPlan, index: int, deadline: Deadline) -> bytes:
    """The MAC of the pod's end, after giving that end the settings that a new one would have been created with."""
    link = links.decode_link(pod.one(links.get_link(index), deadline))
    if link.mtu != plan.mtu or plan.mac not in (None, link.mac):
        pod.run((links.set_link(index, plan.pod_ifname, mtu=plan.mtu, mac=plan.mac),), deadline)
    return plan.mac or link.mac


# -- phase 2 ----------------------------------------------------------------------------------------------------------


def apply_addresses(
    plan: PodPlan, made: Links, site: Site, deadline: Deadline, *, owned: Callable[[Address], bool]
) -> None:
    """Put the addresses into use; call this only once they are committed.

    ``plan`` may have other addresses than at creation (of the same families). ``owned(address)`` says whether IPAM
    allocated the address to this attachment: only then is any other route to it stale. Raises RouteConflict,
    KernelError, DeadlineExceeded.
    """
    with netns.inside(site.netns_fd, site.host.home):
        pod = Rtnl()
    with pod:
        if not made.created:
            _prepare_kept(site, pod, plan, made, deadline)
        _apply_host(site, plan, made, deadline, owned)
        apply_pod(pod, plan, made.pod_index, deadline)


def _apply_host(site: Site, plan: PodPlan, made: Links, deadline: Deadline, owned: Callable[[Address], bool]) -> None:
    rtnl = site.host.rtnl
    index, name = made.host_index, plan.host_ifname
    before = [links.set_link(index, name, up=True, alias=plan.alias), *map(routes.match_route, plan.routed_addresses)]
    up, *found = rtnl.submit(before, deadline)
    if up.error is not None:
        raise up.error
    for address, matched in zip(plan.routed_addresses, found, strict=False):
        if matched.replies and hostroutes.is_taken(rtnl, matched.replies[0], address, index, deadline):
            hostroutes.ensure_route(rtnl, address, index, name, deadline, owned, site.log)
    batch: list[Request] = [hostroutes.add_request(address, index, name) for address in plan.routed_addresses]
    batch += [routes.match_route(address) for address in plan.routed_addresses]
    batch.append(links.get_link(index))
    outcomes = rtnl.submit(batch, deadline)
    count = len(plan.routed_addresses)
    for address, added, matched in zip(plan.routed_addresses, outcomes, outcomes[count:], strict=False):
        if added.error is not None and added.error.errno != EEXIST:
            raise added.error
        if not (matched.replies and hostroutes.leads_to(matched.replies[0], address, index)):
            hostroutes.ensure_route(rtnl, address, index, name, deadline, owned, site.log)
    if outcomes[-1].error is not None:
        raise outcomes[-1].error
    _ensure_host_mac(rtnl, links.decode_link(outcomes[-1].replies[0]), deadline)


def _ensure_host_mac(rtnl: Rtnl, link: Link, deadline: Deadline) -> None:
    """Pods have this MAC in their neighbour tables, so it must be set; on a busy node that may take several
    attempts.
    """
    limit = deadline.sooner(_MAC_READ_BACK_S)
    while link.mac != names.HOST_MAC_BYTES:
        if limit.expired():
            raise KernelError(
                f"cannot set the MAC of {link.name} to {names.HOST_MAC}: it reads back as {format_mac(link.mac)}",
                details="another program (udev, NetworkManager) may be managing this interface; exempt it there",
            )
        request = links.set_link(link.ifindex, link.name, mac=names.HOST_MAC_BYTES)
        replies = rtnl.run((request, links.get_link(link.ifindex)), limit)
        link = links.decode_link(replies[1][0])
        if link.mac != names.HOST_MAC_BYTES:
            time.sleep(_MAC_INTERVAL_S)


# -- a link that was kept ---------------------------------------------------------------------------------------------


def _prepare_kept(site: Site, pod: Rtnl, plan: PodPlan, made: Links, deadline: Deadline) -> None:
    """Remove what an earlier attempt with other addresses left, and register the undo of what is added now."""
    listed = [addresses.decode_address(reply) for reply in pod.dump(addresses.list_addresses(made.pod_index), deadline)]
    present = {
        entry.address
        for entry in listed
        if entry.ifindex == made.pod_index and entry.prefix_length == entry.address.max_prefixlen
    }
    stale = [address for address in present if address not in plan.addresses]
    label = plan.host_ifname
    _remove_all(site.host.rtnl, [hostroutes.delete_request(a, made.host_index, label) for a in stale], deadline)
    _remove_all(pod, [addresses.delete_address(made.pod_index, plan.pod_ifname, a) for a in stale], deadline)
    added = [address for address in plan.addresses if address not in present]
    if added:
        made.undo.callback(_undo_addresses, plan, made, site.netns_fd, added)


def _undo_addresses(plan: PodPlan, made: Links, netns_fd: int, added: list[Address]) -> None:
    deadline = Deadline.after(_UNDO_S)
    with Host() as host:
        _remove_all(
            host.rtnl, [hostroutes.delete_request(a, made.host_index, plan.host_ifname) for a in added], deadline
        )
        with netns.inside(netns_fd, host.home):
            pod = Rtnl()
        with pod:
            requests = [addresses.delete_address(made.pod_index, plan.pod_ifname, address) for address in added]
            _remove_all(pod, requests, deadline)


def _remove_all(rtnl: Rtnl, requests: list[Request], deadline: Deadline) -> None:
    """Remove each; absent is success."""
    if not requests:
        return
    for outcome in rtnl.submit(requests, deadline):
        if outcome.error is not None and outcome.error.errno not in (ESRCH, ENOENT, EADDRNOTAVAIL):
            raise outcome.error
