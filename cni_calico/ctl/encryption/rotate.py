"""``calicoctl encryption rotate NODE|--all``: a new WireGuard key for a node, or for all, one after the other.

Rule: the next node is asked only when the one before has told its new key, and says that all peers have followed that
had a handshake before, so that never two keys are new at once. Who does not is named, and nothing else is asked.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from cni_calico.ctl.encryption.keys import read_nodes
from cni_calico.ctl.session import CommandFailed, ResourceMissing, Session
from cni_calico.datastore.ensure import ensure_record
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.model.documents.codec import decode_node
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Node
from cni_calico.model.wireguard import MADE, ROTATE, awaited_by, published_key

ANSWER_S, LOOK_S = 30.0, 0.5


def rotate(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed, with what was done; ResourceMissing, DatastoreError."""
    if bool(arguments.node) == arguments.all:
        raise CommandFailed("expected the name of a node, or --all")
    nodes, unread = read_nodes(session)
    if arguments.node and arguments.node not in {*nodes, *unread}:
        raise ResourceMissing(ResourceKey("Node", arguments.node))
    if arguments.node in unread:
        raise CommandFailed(unread[arguments.node])
    asked = {name: _keys(nodes[name]) for name in sorted(nodes) if arguments.node in ("", name)}
    having = {name: keys for name, keys in asked.items() if any(keys.values())}
    if not having:
        raise CommandFailed("there is no WireGuard key to be replaced: encryption is not enabled")
    done: list[str] = []
    for name, before in having.items():
        try:
            _rotate_one(session, name, before)
        except CalicoError as e:
            raise CommandFailed(f"{e}; no other node was asked", output="".join(done)) from e
        done.append(f"Node {name} has a new key.\n")
    return "".join(done)


def _keys(node: Node) -> dict[int, str]:
    return {family: published_key(node, family) for family in MADE}


def _rotate_one(session: Session, name: str, before: Mapping[int, str]) -> None:
    key, deadline = ResourceKey("Node", name), Deadline.after(ANSWER_S)  # of this node: there may be a thousand

    def asked(document: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if document is None:
            return None
        metadata = dict(document.get("metadata") or {})
        metadata["annotations"] = {**(metadata.get("annotations") or {}), ROTATE: session.now()}
        return {**document, "metadata": metadata}

    ensure_record(session.store, key, asked, deadline)
    while True:
        found = session.store.get(key, deadline)
        if found is None:
            raise ResourceMissing(key)
        node = decode_node(key, found.value)
        kept = [family for family, text in _keys(node).items() if text and text == before[family]]
        awaited = {one for family in MADE for one in awaited_by(node, family)}
        if not kept and not awaited:
            return
        if deadline.remaining_s() <= LOOK_S:
            if kept:
                raise CommandFailed(f"node {name} has told no new key within {ANSWER_S:.0f} s: does its agent run?")
            late = ", ".join(sorted(awaited))
            raise CommandFailed(
                f"node {name} has a new key, which {late} did not follow within {ANSWER_S:.0f} s: do their agents run?"
            )
        time.sleep(LOOK_S)
