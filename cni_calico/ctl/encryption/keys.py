"""What Nodes say of WireGuard: each one's key, and why others cannot encrypt for it; and what the parameters want.

Rule: a key is judged as the agents judge it (dataplane/encryption/desired.py): missing, unreadable, or another Node's,
too. A Node that cannot be read has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.ctl.listing import read_kind
from cni_calico.ctl.session import Session
from cni_calico.daemon.settings_table import FALSE
from cni_calico.model.documents.codec import decode_node
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Node
from cni_calico.model.wireguard import (
    MADE,
    parse_public_key,
    published_address,
    published_key,
)
from cni_calico.nodeagent.context.encryption import ANNOTATIONS
from cni_calico.nodeagent.dataplane.encapsulation import endpoint_of

SETTINGS, DEFAULT = "FelixConfiguration", "default"
ENABLED = {4: "wireguardEnabled", 6: "wireguardEnabledV6"}
STRICT, EXEMPT, _ = ANNOTATIONS


@dataclass(frozen=True, slots=True)
class NodeKey:
    """One Node and family. ``problem``: why other nodes do not encrypt for it, "" if they do; ``made``: when it was
    made, as RFC 3339, "": not known.
    """

    node: str
    family: int
    key: str
    problem: str
    made: str
    address: str


@dataclass(frozen=True, slots=True)
class WantedEncryption:
    """What the FelixConfiguration ``default`` says. ``mandatory``: as written, "": not. ``exempt``: names of nodes."""

    families: tuple[int, ...]
    mandatory: str
    exempt: tuple[str, ...]


def read_nodes(session: Session) -> tuple[dict[str, Node], dict[str, str]]:
    """The Nodes, and why the others could not be read. Raises DatastoreError."""
    unread: dict[str, str] = {}
    found = read_kind(session, "Node", decode_node, lambda key, error: unread.update({key.name: str(error)}))
    return {key.name: node for key, node in found}, unread


def read_wanted(session: Session) -> WantedEncryption:
    """Raises DatastoreError."""
    found = session.store.get(ResourceKey(SETTINGS, DEFAULT), session.deadline)
    return wanted_by({} if found is None else found.value)


def wanted_by(document: Mapping[str, Any]) -> WantedEncryption:
    """``document``: of the FelixConfiguration."""
    spec, annotations = document.get("spec"), (document.get("metadata") or {}).get("annotations")
    fields: Mapping[str, Any] = spec if isinstance(spec, Mapping) else {}
    said: Mapping[str, Any] = annotations if isinstance(annotations, Mapping) else {}
    strict = str(said.get(STRICT, ""))
    return WantedEncryption(
        families=tuple(family for family, name in ENABLED.items() if fields.get(name) is True),
        mandatory="" if strict.lower() in FALSE else strict,
        exempt=tuple(filter(None, map(str.strip, str(said.get(EXEMPT, "")).split(",")))),
    )


def judge_keys(nodes: Mapping[str, Node], unread: Mapping[str, str], family: int) -> Iterator[NodeKey]:
    """Sorted by name."""
    having: dict[str, list[str]] = {}
    for name, node in sorted(nodes.items()):
        having.setdefault(published_key(node, family), []).append(name)
    for name in sorted({*nodes, *unread}):
        found = nodes.get(name)
        if found is None:
            yield NodeKey(name, family, "", unread[name], "", "")
            continue
        key, address = published_key(found, family), published_address(found, family)
        other = next((one for one in having[key][:2] if one != name), "")
        yield NodeKey(
            node=name,
            family=family,
            key=key,
            problem=_problem(found, family, key, other),
            made=found.metadata.annotations.get(MADE[family], ""),
            address=str(address or ""),
        )


def _problem(node: Node, family: int, key: str, other: str) -> str:
    """``other``: a Node with the same key."""
    if endpoint_of(node, family) is None:
        return f"it has no IPv{family} address"
    if not key:
        return "it has no key: encryption is not enabled there, or not possible"
    try:
        parse_public_key(key)
    except ValueError as e:
        return f"its key cannot be used: {e}"
    return f"node {other} has the same key: neither is used" if other else ""
