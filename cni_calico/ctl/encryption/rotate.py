"""``calicoctl encryption rotate NODE|--all``: a new WireGuard key for a node, or for all, one after the other.

Rule: the next node is asked only when the one before has told its new key, and says that all peers have followed that
had a handshake before, so that never two keys are new at once. Who does not is named, and nothing else is asked.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cni_calico.ctl.encryption.keys import judge_keys, read_nodes
from cni_calico.ctl.session import CommandFailed, ResourceMissing, Session
from cni_calico.datastore.ensure import ensure_record
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Node
from cni_calico.model.wireguard import ROTATE, awaited_by

ANSWER_S, LOOK_S = 30.0, 0.5


def rotate(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed, with what was done; ResourceMissing, DatastoreError."""
    if bool(arguments.node) == arguments.all:
        raise CommandFailed("expected the name of a node, or --all")
    nodes, unread = read_nodes(session)
    if arguments.node and arguments.node not in {*nodes, *unread}:
        raise ResourceMissing(ResourceKey("Node", arguments.node))
    keys = _keys(nodes, unread)
    having = {name: its for name, its in keys.items() if any(its.values()) and arguments.node in ("", name)}
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


def _keys(nodes: Mapping[str, Node], unread: Mapping[str, str]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for family in (4, 6):
        for one in judge_keys(nodes, unread, family):
            found.setdefault(one.node, {})[family] = one.key
    return found


def _rotate_one(session: Session, name: str, before: Mapping[int, str]) -> None:
    key, deadline = ResourceKey("Node", name), Deadline.after(ANSWER_S)  # of this node: there may be a thousand
    session = replace(session, deadline=deadline)

    def asked(document: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if document is None:
            return None
        metadata = dict(document.get("metadata") or {})
        metadata["annotations"] = {**(metadata.get("annotations") or {}), ROTATE: session.now()}
        return {**document, "metadata": metadata}

    ensure_record(session.store, key, asked, session.deadline)
    while True:
        nodes, unread = read_nodes(session)
        now = _keys(nodes, unread).get(name, {})
        kept = [family for family, text in before.items() if text and now.get(family, "") == text]
        awaited = {one for family in (4, 6) if name in nodes for one in awaited_by(nodes[name], family)}
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
