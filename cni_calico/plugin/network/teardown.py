"""Removes a pod's network. What is gone already counts as removed; a failure does not stop the rest; all failures are
reported.

Rule: deleting the veth is enough, because the kernel removes every address, neighbour and route of both ends with it.
The kernel waits about 18 ms for each deletion, so a resident server deletes many together. An interface that does not
belong to the claim (ownership.py) stays, and that is no failure.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, KernelError, LinkGone, TeardownIncomplete
from cni_calico.kernel import netns
from cni_calico.kernel.netlink import links
from cni_calico.kernel.netlink.links import Link
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.plugin.network.host import Host, Site, is_joined, read_link
from cni_calico.plugin.network.ownership import RECORDED, Claim, may_remove, may_remove_pod_end

_FIRST_GROUP = 65537  # numbers below this are for groups that administrators name in /etc/iproute2/group


class LinkRemoval(NamedTuple):
    """An interface of the host, by name, and who wants it removed."""

    name: str
    claim: Claim


class PodEnds(NamedTuple):
    """The ends of an attachment's veth: their names, and the pod's namespace (None: it is gone).

    With ``host_ifname`` "" only the pod's side is removed: the host's interface of that name belongs to another
    sandbox.
    """

    host_ifname: str
    pod_ifname: str
    netns_fd: int | None


def remove_pod_network(host: Host, ends: PodEnds, deadline: Deadline, claim: Claim) -> None:
    """Remove the attachment's interfaces and host route. Raises TeardownIncomplete."""
    failures: list[CalicoError] = []
    if ends.host_ifname:
        try:
            _remove_veth(host.rtnl, ends.host_ifname, deadline, claim)
        except CalicoError as e:
            failures.append(e)
    if ends.netns_fd is not None:
        try:
            _remove_pod_end(Site(host, ends.netns_fd), ends.pod_ifname, deadline, claim)
        except CalicoError as e:
            failures.append(e)
    _report(failures)


def _remove_pod_end(site: Site, name: str, deadline: Deadline, claim: Claim) -> None:
    with netns.inside(site.netns_fd, site.host.home):
        pod = Rtnl()
    with pod:
        # usually gone with the host's end; an interface of another kind is another plugin's
        link = read_link(pod, name, deadline)
        if link is not None and link.kind == "veth" and may_remove_pod_end(_host_end(site, link, deadline), claim):
            _delete(pod, link, deadline)


def _host_end(site: Site, link: Link, deadline: Deadline) -> Link | None:
    """The other end of a pod's veth; None if it is not an interface of the host."""
    end = read_link(site.host.rtnl, link.peer, deadline) if link.peer else None
    return end if is_joined(site, end, link, deadline) else None


def _remove_veth(rtnl: Rtnl, name: str, deadline: Deadline, claim: Claim) -> None:
    link = read_link(rtnl, name, deadline)
    if link is not None and _is_claimed(link, claim):
        _delete(rtnl, link, deadline)


def _is_claimed(link: Link, claim: Claim) -> bool:
    """Raises KernelError if a record names an interface that cannot be a pod's."""
    if claim.record == RECORDED:
        _require_veth(link)
    return link.kind == "veth" and may_remove(link, claim)


def _require_veth(link: Link) -> None:
    if link.kind != "veth":
        kind = link.kind or "physical"
        raise KernelError(f"cannot delete interface {link.name}: it is a {kind} interface, not a pod's")


def _delete(rtnl: Rtnl, link: Link, deadline: Deadline) -> None:
    try:
        rtnl.run((links.delete_link(link.ifindex, link.name),), deadline)
    except LinkGone:
        pass


def _report(failures: Sequence[CalicoError]) -> None:
    if failures:
        cause = failures[0] if len(failures) == 1 else ExceptionGroup("teardown", failures)
        raise TeardownIncomplete("; ".join(error.message for error in failures)) from cause


def remove_links_together(host: Host, removals: Sequence[LinkRemoval], deadline: Deadline) -> None:
    """Delete these veths with one wait in the kernel; absent ones are fine. Raises TeardownIncomplete.

    The kernel deletes a whole link group at once. Ours gets a random unused number, and its members are counted before
    it is deleted.
    """
    failures: list[CalicoError] = []
    found: list[Link] = []
    outcomes = host.rtnl.submit([links.get_link(each.name) for each in removals], deadline) if removals else []
    for each, outcome in zip(removals, outcomes, strict=False):
        try:
            if outcome.error is not None:
                raise outcome.error
            link = links.decode_link(outcome.replies[0])
            if _is_claimed(link, each.claim) and link not in found:
                found.append(link)
        except LinkGone:
            pass
        except CalicoError as e:
            failures.append(e)
    try:
        if len(found) == 1 or (found and not _delete_as_group(host.rtnl, found, deadline)):
            failures += _delete_each(host.rtnl, found, deadline)
    except CalicoError as e:
        failures.append(e)
    _report(failures)


def _delete_as_group(rtnl: Rtnl, found: Sequence[Link], deadline: Deadline) -> bool:
    """False if it could not be done this way and nothing was deleted."""
    group = _FIRST_GROUP + int.from_bytes(os.urandom(4), "little") % (2**31 - _FIRST_GROUP)
    for outcome in rtnl.submit([links.set_link(link.ifindex, link.name, group=group) for link in found], deadline):
        if outcome.error is not None and not isinstance(outcome.error, LinkGone):
            return False
    listed = (links.decode_group(reply) for reply in rtnl.dump(links.list_links(), deadline))
    members = {index for index, its_group in listed if its_group == group}
    if not members <= {link.ifindex for link in found}:
        return False  # another process drew the same number at this moment
    return not members or rtnl.submit((links.delete_group(group),), deadline)[0].error is None


def _delete_each(rtnl: Rtnl, found: Sequence[Link], deadline: Deadline) -> list[CalicoError]:
    failures: list[CalicoError] = []
    for link in found:
        try:
            _delete(rtnl, link, deadline)
        except CalicoError as e:
            failures.append(e)
    return failures
