"""Puts a PodPlan into the kernel: links while the datastore write is in flight, addresses once it is committed.

Rule: every function is idempotent and registers its undo before it acts, so that an effect whose answer was lost is
taken back too. A healthy link is kept, a link of another attachment is never touched. What a pod's network looks like
is decided in plan.py.

The host side is the namespace that the calling thread is in.
"""

from __future__ import annotations

from dataclasses import dataclass
from errno import EEXIST

from cni_calico import names
from cni_calico.deadline import Deadline
from cni_calico.errors import LinkConflict, LinkGone
from cni_calico.kernel import links, netns, sysctl
from cni_calico.kernel.rtnl import Rtnl
from cni_calico.plugin import plan
from cni_calico.plugin.plan import Address, PodPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from cni_calico.kernel.links import Link
    from cni_calico.kernel.wire import Request

_MAC_READ_BACK_S = 5.0
_UNDO_S = 5.0  # an undo must not fail because the call's own deadline has passed


class Host:
    """The host side of one thread: its socket, its namespace, and where notices go. Close it."""

    __slots__ = ("home", "notice", "rtnl")

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.home = netns.open_own()
        self.notice = notice
        try:
            self.rtnl = Rtnl()
        except BaseException:
            _close(self.home)
            raise

    def close(self) -> None:
        self.rtnl.close()
        _close(self.home)

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(fd: int) -> None:
    import os

    os.close(fd)


@dataclass(slots=True)
class Links:
    """Both ends of an attachment's veth; ``created`` says whether this call made them. ``pod`` is a socket in the
    pod's namespace; apply_addresses closes it, and so does create_links' undo.
    """

    host_index: int
    pod_index: int
    created: bool
    pod: Rtnl


# -- phase 1 ----------------------------------------------------------------------------------------------------------


def create_links(
    host: Host,
    wanted: PodPlan,
    netns_fd: int,
    undo: ExitStack,
    deadline: Deadline,
    *,
    may_replace: Callable[[str], bool],
) -> Links:
    """The veth and the sysctls of both sides; nothing is up and no address exists yet.

    ``may_replace(name)`` says whether an existing host interface of that name is this attachment's or nobody's; it is
    asked only when there is one that does not lead to this pod. Raises LinkConflict, KernelError, DeadlineExceeded.
    """
    creation = _Creation(host, wanted, netns_fd)
    undo.callback(creation.undo)
    link = creation.create(deadline)
    if link is None:
        link = _settle_links(creation, deadline, may_replace)
    with netns.inside(netns_fd, host.home):
        pod = Rtnl()
        undo.callback(pod.close)
        for name, value in plan.desired_pod_sysctls(wanted):
            sysctl.ensure(name, value)
    _ensure_host_sysctls(wanted, link)
    made = Links(link.ifindex, link.peer, creation.outcome == "created", pod)
    if not made.created:
        _repair_ends(host, wanted, link, pod, deadline)
    return made


class _Creation:
    """The creation of the veth and its undo. ``outcome``: "unknown" while nobody can tell, "created", or "kept"."""

    def __init__(self, host: Host, wanted: PodPlan, netns_fd: int) -> None:
        self.host = host
        self.wanted = wanted
        self.netns_fd = netns_fd
        self.outcome = "kept"

    def create(self, deadline: Deadline) -> Link | None:
        """The host's end; None when an interface of one of the two names exists."""
        wanted = self.wanted
        request = links.create_veth(
            wanted.host_ifname,
            wanted.pod_ifname,
            self.netns_fd,
            mtu=wanted.mtu,
            mac=names.HOST_MAC_BYTES,
            peer_mac=wanted.mac,
            queues=wanted.num_queues,
        )
        self.outcome = "unknown"
        made, read = self.host.rtnl.submit((request, links.get_link(wanted.host_ifname)), deadline)
        if made.error is not None:
            if made.error.errno != EEXIST:
                raise made.error
            self.outcome = "kept"
            return None
        self.outcome = "created"
        if read.error is not None:
            raise read.error
        return links.decode_link(read.replies[0])

    def undo(self) -> None:
        if self.outcome == "kept":
            return
        deadline = Deadline.after(_UNDO_S)
        link, _, joined = read_pair(self.host, self.wanted, self.netns_fd, deadline)
        # with the answer lost, a link that is up is an older one: a new one has not been upped yet
        if link is not None and joined and (self.outcome == "created" or not link.up):
            self.host.rtnl.run((links.delete_link(link.ifindex, link.name),), deadline)


def read_link(rtnl: Rtnl, which: str | int, deadline: Deadline) -> Link | None:
    """None when there is none."""
    try:
        return links.decode_link(rtnl.one(links.get_link(which), deadline))
    except LinkGone:
        return None


def read_pair(host: Host, wanted: PodPlan, netns_fd: int, deadline: Deadline) -> tuple[Link | None, Link | None, bool]:
    """The interfaces of the plan's names on host and pod side, and whether they are each other's ends."""
    ours = read_link(host.rtnl, wanted.host_ifname, deadline)
    pod_id = links.decode_netns_id(host.rtnl.one(links.get_netns_id(netns_fd), deadline))
    with netns.inside(netns_fd, host.home), Rtnl() as pod:
        theirs = read_link(pod, wanted.pod_ifname, deadline)
    joined = ours is not None and theirs is not None and _joined(ours, theirs, pod_id)
    return ours, theirs, joined


def _joined(ours: Link, theirs: Link, pod_id: int) -> bool:
    return (
        ours.kind == theirs.kind == "veth"
        and (ours.peer, theirs.peer) == (theirs.ifindex, ours.ifindex)
        and ours.peer_netns == pod_id
    )


def _settle_links(creation: _Creation, deadline: Deadline, may_replace: Callable[[str], bool]) -> Link:
    """One of the two names exists: keep the pair if it is whole, replace what may be replaced, refuse the rest."""
    host, wanted = creation.host, creation.wanted
    ours, theirs, joined = read_pair(host, wanted, creation.netns_fd, deadline)
    if joined and ours is not None:
        return ours
    stale = []
    if theirs is not None:
        stale.append(_other_end(host, wanted, creation.netns_fd, theirs, deadline))
    if ours is not None and ours not in stale:
        stale.append(ours)
    for link in stale:
        if link.kind != "veth" or not may_replace(link.name):
            raise LinkConflict(
                f"cannot create interface {wanted.host_ifname} (peer {wanted.pod_ifname}): interface {link.name} is in "
                "the way and belongs to another attachment",
                errno=EEXIST,
            )
        host.notice(f"replacing interface {link.name}, left over from an earlier attachment")
        host.rtnl.run((links.delete_link(link.ifindex, link.name),), deadline)
    made = creation.create(deadline)
    if made is None:
        raise LinkConflict(
            f"cannot create interface {wanted.host_ifname} (peer {wanted.pod_ifname}): somebody else just did",
            errno=EEXIST,
        )
    return made


def _other_end(host: Host, wanted: PodPlan, netns_fd: int, theirs: Link, deadline: Deadline) -> Link:
    """The host's end of the pod interface that stands in the way. Raises LinkConflict when it has none here."""
    pod_id = links.decode_netns_id(host.rtnl.one(links.get_netns_id(netns_fd), deadline))
    ours = read_link(host.rtnl, theirs.peer, deadline) if theirs.kind == "veth" and theirs.peer else None
    if ours is None or not _joined(ours, theirs, pod_id):
        raise LinkConflict(
            f"cannot create interface {wanted.pod_ifname} in the pod: it exists and does not lead to this host",
            errno=EEXIST,
            details="another plugin made this interface; delete it, or give the attachment another interface name",
        )
    return ours


def _ensure_host_sysctls(wanted: PodPlan, link: Link) -> None:
    """Only what the kernel's description of the link does not already show is written: no reads of files."""
    for name, value in plan.desired_host_sysctls(wanted):
        if name[1] == "conf" and str(links.devconf(link, name[0], name[-1])) == value:
            continue
        sysctl.write(name, value, optional=plan.optional_sysctl(wanted, name))


def _repair_ends(host: Host, wanted: PodPlan, link: Link, pod: Rtnl, deadline: Deadline) -> None:
    """What creation would have given the two ends of a link that was kept."""
    if link.mtu != wanted.mtu or link.mac != names.HOST_MAC_BYTES:
        repair = links.set_link(link.ifindex, link.name, mtu=wanted.mtu, mac=names.HOST_MAC_BYTES)
        host.rtnl.run((repair,), deadline)
    theirs = links.decode_link(pod.one(links.get_link(link.peer), deadline))
    if theirs.mtu != wanted.mtu or wanted.mac not in (None, theirs.mac):
        pod.run((links.set_link(theirs.ifindex, theirs.name, mtu=wanted.mtu, mac=wanted.mac),), deadline)


# -- phase 2 ----------------------------------------------------------------------------------------------------------


def apply_addresses(
    host: Host,
    wanted: PodPlan,
    made: Links,
    undo: ExitStack,
    deadline: Deadline,
    *,
    owned: Callable[[Address], bool],
) -> bytes:
    """Everything that makes the addresses live; call it only once they are committed. Answers the pod's MAC.

    ``wanted`` may have other addresses than at creation (of the same families). ``owned(address)`` says whether IPAM
    gave the address to this attachment: only then is somebody else's route to it a stale one. Raises RouteConflict,
    KernelError, DeadlineExceeded.
    """
    try:
        if not made.created:
            _remove_stale_addresses(host, wanted, made, deadline)
        _apply_host(host, wanted, made, undo, deadline, owned)
        return _apply_pod(wanted, made, undo, deadline)
    finally:
        made.pod.close()


def _apply_host(
    host: Host, wanted: PodPlan, made: Links, undo: ExitStack, deadline: Deadline, owned: Callable[[Address], bool]
) -> None:
    batch: list[Request] = [links.set_link(made.host_index, wanted.host_ifname, up=True)]
    ...
