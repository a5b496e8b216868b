"""``calicoctl datastore migrate-policy-names``: what versions before 3.32 stored as policy "default.NAME" becomes NAME.

Rule: a policy's new record is written together with the removal of the old one, so it is enforced without a gap; one
that changes meanwhile is read again, and one whose new name is taken stays as it is and is reported. In Kubernetes the
object "default.NAME" is policy NAME already, so nothing has to be renamed there.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from cni_calico.ctl.session import CommandFailed, Session, shown_key
from cni_calico.datastore.interface import CommitConflict, Versioned, Write
from cni_calico.errors import TryAgain
from cni_calico.model.documents.tiers import TIERED_KINDS
from cni_calico.model.keys import CLUSTER, ResourceKey, ResourceList

PREFIX = "default."
RENAMED, GONE, TAKEN = "renamed", "gone", "taken"
_ATTEMPTS = 10


def migrate(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed if names are taken, after all others have been renamed."""
    outcomes = [(item, _rename(session, item)) for item in _old_policies(session)]
    taken = [
        f"{shown_key(_key(item))} keeps its name: {shown_key(_new_key(item))} exists"
        for item, outcome in outcomes
        if outcome == TAKEN
    ]
    renamed = sum(outcome == RENAMED for _, outcome in outcomes)
    done = f"Policy name migration complete, migrated {renamed} policies.\n"
    if taken:
        raise CommandFailed("\n".join(taken), output=done)
    return done


def _old_policies(session: Session) -> list[Versioned]:
    if session.store.kind == "kubernetes":
        session.store.get(CLUSTER, session.deadline)  # a datastore that does not answer is an error here, too
        return []
    found = [item for kind in TIERED_KINDS for item in session.store.list(ResourceList(kind), session.deadline).items]
    return [item for item in found if _is_old(item)]


def _is_old(item: Versioned) -> bool:
    """Whether the policy's name has the prefix and its tier is the prefix's (older versions stored no tier)."""
    name, spec = _key(item).name, item.value.get("spec")
    tier = spec.get("tier") if isinstance(spec, Mapping) else None
    return name.startswith(PREFIX) and len(name) > len(PREFIX) and tier in (None, "", "default")


def _key(item: Versioned) -> ResourceKey:
    assert isinstance(item.key, ResourceKey)
    return item.key


def _new_key(item: Versioned) -> ResourceKey:
    key = _key(item)
    return ResourceKey(key.kind, key.name.removeprefix(PREFIX), key.namespace)


def _rename(session: Session, item: Versioned) -> str:
    """RENAMED, GONE or TAKEN. Raises TryAgain."""
    target = _new_key(item)
    current: Versioned | None = item
    for _ in range(_ATTEMPTS):
        if current is None or not _is_old(current):
            return GONE
        try:
            session.store.commit(
                [Write.create(target, _renamed(current.value, target.name)), Write.delete(current)], session.deadline
            )
            return RENAMED
        except CommitConflict:
            if session.store.get(target, session.deadline) is not None:
                return TAKEN
            current = session.store.get(item.key, session.deadline)
    raise TryAgain(f"cannot rename {shown_key(_key(item))}: it keeps changing")


def _renamed(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**document, "metadata": {**(document.get("metadata") or {}), "name": name}}
