"""``calicoctl encryption status``: each Node's WireGuard key, and on a node, what its peers do.

Rule: what all Nodes say comes from the datastore. What a node's own interface does is asked where this runs, if that is
a node with an agent: no other node is asked.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cni_calico import directories
from cni_calico.ctl.encryption.keys import NodeKey, WantedEncryption, judge_keys, read_nodes, read_wanted
from cni_calico.ctl.output.values import TABLE, render_value, require_value_format
from cni_calico.ctl.session import CommandFailed, ResourceMissing, Session
from cni_calico.errors import KernelError
from cni_calico.model.keys import ResourceKey
from cni_calico.model.timestamps import parse_rfc3339
from cni_calico.nodeagent.status import file as agent_status
from cni_calico.nodeagent.status.peers import FamilyStanding, PeerStanding, count_guard_drops, read_families

SILENT_S = 180  # WireGuard shakes hands every two minutes while packets are sent


def show(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed, with the text, if encryption is enabled and a node has no usable key; ResourceMissing,
    DatastoreError.
    """
    require_value_format(arguments.output)
    wanted, (nodes, unread) = read_wanted(session), read_nodes(session)
    if arguments.node and arguments.node not in {*nodes, *unread}:
        raise ResourceMissing(ResourceKey("Node", arguments.node))
    keys = [one for family in (4, 6) for one in judge_keys(nodes, unread, family)]
    families = wanted.families or tuple({one.family: None for one in keys if one.key})
    keys = [one for one in keys if one.family in families and arguments.node in ("", one.node)]
    fields = agent_status.read_status(directories.run_dir(os.environ))
    here = str(fields.get("node", "")) if not agent_status.why_not_live(fields, agent_status.since_boot()) else ""
    standing: list[FamilyStanding] = []
    drops: int | None = None
    if here and arguments.node in ("", here):
        standing = list(read_families(fields.get("encryption"), nodes, session.deadline))
        if any(one.mandatory for one in standing):
            try:
                drops = count_guard_drops(session.deadline)
            except KernelError as e:  # only root may ask
                arguments.warn(e)
    if arguments.output == TABLE:
        text = "".join(_shown(arguments, wanted, keys, here, standing, drops))
    else:
        text = render_value(_document(wanted, keys, here, standing, drops), arguments.output)
    lacking = sorted({one.node for one in keys if one.problem and one.family in wanted.families} - {*wanted.exempt})
    failing = [f"IPv{one.family} on {here}: {one.failing}" for one in standing if one.failing]
    if lacking or failing:
        named = [f"packets to pods of {', '.join(lacking)} are not encrypted"] if lacking else []
        raise CommandFailed("; ".join(named + failing), output=text)
    return text


def _document(
    wanted: WantedEncryption, keys: Sequence[NodeKey], here: str, standing: Sequence[FamilyStanding], drops: int | None
) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "families": list(wanted.families),
        "mandatory": bool(wanted.mandatory),
        "exempt": list(wanted.exempt),
        "nodes": [asdict(one) for one in keys],
    }
    if here:
        shown |= {"here": here, "interfaces": [asdict(one) for one in standing], "guardDrops": drops}
    return shown


def _shown(
    arguments: Namespace,
    wanted: WantedEncryption,
    keys: Sequence[NodeKey],
    here: str,
    standing: Sequence[FamilyStanding],
    drops: int | None,
) -> Sequence[str]:
    families = " and ".join(f"IPv{family}" for family in wanted.families)
    said = [f"Encryption is enabled for {families}." if families else "Encryption is not enabled."]
    if wanted.mandatory:
        said.append("It is mandatory: what is not encrypted does not go between nodes.")
    if wanted.exempt:
        said.append(f"Exempt, so reached in plain text: {', '.join(wanted.exempt)}.")
    parts = [" ".join(said) + "\n"]
    if keys:
        rows = [
            (one.node, f"IPv{one.family}", one.key or "-", _age(one.made), one.address or "-", one.problem or "ok")
            for one in keys
        ]
        parts += ["\n", arguments.look.columns(("NODE", "FAMILY", "KEY", "AGE", "ADDRESS", "STATE"), rows)]
    for family in standing:
        head = f"{here}, IPv{family.family}: {family.device}, UDP port {family.port}, MTU {family.mtu}"
        said_of = f": NOT IN FORCE: {family.failing}" if family.failing else ""
        parts.append(f"{head}{said_of}\n" + (f"Its peers are not known: {family.unread}\n" if family.unread else ""))
        if family.peers:
            headings = ("PEER", "STATE", "ENDPOINT", "HANDSHAKE", "SENT", "RECEIVED")
            parts.append(arguments.look.columns(headings, list(map(_peer_row, family.peers))))
    if drops is not None:
        parts.append(f"Packets dropped here because they were not encrypted: {drops}\n")
    return parts


def _peer_row(peer: PeerStanding) -> tuple[str, ...]:
    if not peer.key:
        return peer.node, f"{peer.state}: {peer.why}", "-", "-", "-", "-"
    since = time.time() - peer.handshake_s if peer.handshake_s else None
    silent = peer.sent and (since is None or since > SILENT_S)
    handshake = "never" if since is None else f"{max(0, round(since))} s ago"
    state = peer.state + (": it does not answer; is its port open?" if silent else "")
    return peer.node or peer.key, state, peer.endpoint or "-", handshake, str(peer.sent), str(peer.received)


def _age(made: str) -> str:
    made_s = parse_rfc3339(made)
    if made_s is None:
        return "-"
    age_s = max(0, round(time.time() - made_s))
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        if age_s >= seconds:
            return f"{age_s // seconds}{unit}"
    return f"{age_s}s"
