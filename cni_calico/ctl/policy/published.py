"""A published port in ``calicoctl policy explain --to HOST:PORT``: what the connection becomes on this host.

Rule: what was looked at is said with the answer. Rules of other programs are known of this host alone, and to root; of
another host's ports it is said that they were not seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address

from cni_calico import directories
from cni_calico.ctl.addresses import addresses_of_node
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.nft import has_table
from cni_calico.kernel.filter.published_ports import read_nat
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.model.documents.codec import decode_node
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Address
from cni_calico.netfilter.nat import NatConnection, Translation
from cni_calico.nodeagent.policing.tables.touched import NAME
from cni_calico.nodeagent.status import file as agent_status
from cni_calico.policy.explain import Packet


@dataclass(frozen=True, slots=True)
class SeenTranslation:
    """``becomes``: None if nothing that was seen translates the connection. ``judged_from``: what was looked at, one
    sentence each.
    """

    becomes: Translation | None
    judged_from: tuple[str, ...]


def read_address(session: Session, host: str) -> Address:
    """Raises CommandFailed for what is neither an address nor a node with one."""
    try:
        return ip_address(host)
    except ValueError:
        found = session.store.get(ResourceKey("Node", host), session.deadline)
    if found is None:
        raise CommandFailed(
            f"cannot explain: {host} is no address, and there is no node {host}",
            details="a workload's own port is asked for with --port: --to WORKLOAD --port 80",
        )
    addresses = addresses_of_node(decode_node(ResourceKey("Node", host), found.value))
    if not addresses:
        raise CommandFailed(
            f"cannot explain: the record of node {host} has no address",
            details="write one of that host's addresses in the place of its name",
        )
    return addresses[0]


def look_here(session: Session, packet: Packet, warn: Callable[[object], None]) -> SeenTranslation:
    """How this host translates a connection, and whether it enforces policies. Raises CalicoError."""
    shown = f"[{packet.destination}]" if packet.destination.version == 6 else str(packet.destination)
    shown = f"{shown}:{packet.destination_port}"
    own = {address.ip for link in read_interfaces(session.deadline) for address in link.addresses}
    if packet.destination not in own and not packet.destination.is_loopback:
        text = (
            f"the records alone: {packet.destination} is no address of this host ({os.uname().nodename}), so whether "
        )
        return SeenTranslation(None, (f"{text}{shown} is published cannot be seen here; ask on that host, as root",))
    if os.geteuid() != 0:
        text = f"the records alone: it takes root to read the rules that may translate {shown} on this host"
        return SeenTranslation(None, (text,))
    is_own = packet.source in own or packet.source.is_loopback
    connection = NatConnection(
        packet.source, packet.destination, packet.protocol, packet.destination_port, is_local=True, from_host=is_own
    )
    seen = read_nat(packet.destination.version, session.deadline)
    becomes, by, is_certain = None, ", ".join(table.by for table in seen.tables) or "none", not seen.unread
    for text in seen.unread:
        warn(f"rules of this host that are not read may translate {shown}: {text}")
    for table in seen.tables:
        becomes, passed = table.translate(connection)
        is_certain = is_certain and not passed
        for text in passed:
            warn(f"a rule of this host may translate {shown}, and cannot be judged: {text}")
        if becomes is not None:
            by = table.by
            break
    by = f"this host's rules ({by}):"
    if becomes is None:
        by += " nothing translates" if is_certain else " nothing that is read and understood translates"
    to = "" if becomes is None else f" becomes {becomes.address} port {becomes.port}"
    return SeenTranslation(
        becomes, (f"{by} {shown}{to}", _enforced(packet.destination.version, session.deadline, warn))
    )


def _enforced(version: int, deadline: Deadline, warn: Callable[[object], None]) -> str:
    """Whether our own rules are in force here; they stay when the agent ends."""
    fields = agent_status.read_status(directories.run_dir(os.environ))
    policing = fields.get("policing") or {}
    if why := agent_status.why_not_live(fields, agent_status.since_boot()):
        is_there = has_table("ip" if version == 4 else "ip6", NAME, deadline)
        here = "still has the rules of before" if is_there else "has no rules of ours that are known"
        return f"the stored policies; this host {here}: {why}"
    if policing.get("in_force"):
        return "the stored policies, which are in force on this host"
    warn(
        f"no policy is in force on this host, so it lets through what policies deny: {policing.get('sentence') or '?'}"
    )
    return "the stored policies, which are NOT in force on this host"
