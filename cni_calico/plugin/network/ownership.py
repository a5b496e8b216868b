"""PURE: who owns a host interface: the alias on the interface that proves it, and what may be removed without one.

Rule: an interface whose alias names another attachment is never removed, whatever its name or a record says: under
Kubernetes name and record belong to the pod, and the pod may have a new sandbox. An interface without an alias is
removed only if a record says that it is this attachment's, or if it was never up: then the process that made it died
before it could set the alias.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from cni_calico.kernel.netlink.links import Link
from cni_calico.model import names

RECORDED, UNKNOWN, UNREADABLE = "recorded", "unknown", "unreadable"


class Claim(NamedTuple):
    """An attachment that wants its interfaces removed.

    ``digests``: an alias with any of them proves that an interface is the attachment's. ``record``: RECORDED if a
    record says so, UNKNOWN if there is no record, UNREADABLE if the records cannot be read. ``interface_name``: the
    host interface that the record names.
    """

    digests: tuple[str, ...] = ()
    record: str = RECORDED
    interface_name: str = ""


def plan_claim(
    network: str,
    container_id: str,
    ifname: str,
    record: str,
    *,
    interface_name: str = "",
    former_networks: Iterable[str] = (),
) -> Claim:
    """``former_networks``: other names that the network had when this container's interface was made."""
    digests = tuple(d for name in (network, *former_networks) for d in plan_digests(name, container_id, ifname))
    return Claim(digests, record, interface_name)


def plan_digests(network: str, container_id: str, ifname: str) -> tuple[str, str]:
    """The digest in the alias that an ADD sets, and the one in those that the agent sets on interfaces without alias,
    whose network it does not know.
    """
    return names.attachment_digest(network, container_id, ifname), names.attachment_digest("", container_id, ifname)


def is_proven(host_end: Link, digests: Collection[str]) -> bool:
    """Whether the interface has an alias with one of ``digests``."""
    return names.digest_in(host_end.alias) in digests


def belongs_to_another(host_end: Link, *digests: str) -> bool:
    """Whether the interface has an alias of ours with none of ``digests``."""
    digest = names.digest_in(host_end.alias)
    return bool(digest) and digest not in digests


def was_never_up(host_end: Link) -> bool:
    """Whether the process that made the interface died before it could set the alias."""
    return not host_end.up and host_end.mac == names.HOST_MAC_BYTES


def another_workload(host_end: Link, owner: str) -> str:
    """The workload (owner_text()) that the alias names, if it is not ``owner``; "" otherwise."""
    named = names.owner_in(host_end.alias)
    return "" if named == owner else named


def may_remove(host_end: Link, claim: Claim) -> bool:
    """Whether the claim covers an interface of the host, a veth."""
    if is_proven(host_end, claim.digests):
        return True
    if belongs_to_another(host_end):
        return False
    return claim.record == RECORDED or was_never_up(host_end)


def may_remove_pod_end(host_end: Link | None, claim: Claim) -> bool:
    """Whether the interface in the namespace that a call names is the claim's.

    That may be the namespace of another container by now, so a record proves something only about the host interface
    that it names. ``host_end`` is the other end of the veth, None if that is not in the host's namespace: then nothing
    shows whose interface it is. If the records cannot be read, an interface of Calico's without an alias is removed
    together with the namespace that the runtime names.
    """
    if host_end is None:
        return False
    if claim.record == RECORDED and host_end.name != claim.interface_name:
        claim = claim._replace(record=UNKNOWN)
    if may_remove(host_end, claim):
        return True
    is_calicos = host_end.mac == names.HOST_MAC_BYTES and not belongs_to_another(host_end)
    return claim.record == UNREADABLE and is_calicos
