"""``calicoctl encryption rotate NODE|--all``: a new WireGuard key for a node, or for all, one after the other.

Rule: the next node is asked only when the one before has told its new key, and its peers have had time to follow, so
that never two keys are new at once. A node that does not answer is named, and nothing else is asked.
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
from cni_calico.model.wireguard import ROTATE

ANSWER_S, LOOK_S, FOLLOW_S = 30.0, 0.5, 5.0


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
        if done:
            time.sleep(FOLLOW_S)
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
        now = _keys(*read_nodes(session)).get(name, {})
        if all(now.get(family, "") != text for family, text in before.items() if text):
            return
        if deadline.remaining_s() <= LOOK_S:
            raise CommandFailed(f"node {name} has told no new key within {ANSWER_S:.0f} s: does its agent run?")
        time.sleep(LOOK_S)
