"""Resources in the datastore: create, replace, apply, delete, patch, label; each a compare-and-swap.

Rule: ``resourceVersion`` is never stored; a document that carries one only replaces exactly that version. The stored
UID and creation time are kept; invalid resources are refused before anything is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.ctl.listing import read_kind
from cni_calico.ctl.resources.derived import plan_stored
from cni_calico.ctl.session import (
    OperationNotSupported,
    ResourceExists,
    ResourceMissing,
    Session,
    UpdateConflict,
    shown_key,
)
from cni_calico.datastore.cas import update
from cni_calico.datastore.interface import Document, Versioned
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.codec import decode_pool, decode_resource
from cni_calico.model.documents.default_allow import DEFAULT_ALLOW, default_allow
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.documents.tiers import TIERED_KINDS, TIERS
from cni_calico.model.keys import Key, ResourceKey
from cni_calico.model.resources import IPPool
from cni_calico.model.validation.defaults import as_shown, with_defaults
from cni_calico.model.validation.report import Problem

_UNCHANGEABLE = {
    "apply": "apply",
    "create": "create or apply",
    "replace": "apply or replace",
    "delete": "delete",
}


def _ignore(problem: Problem) -> None:
    """For callers that drop warnings."""


@dataclass(frozen=True, slots=True)
class Checks:
    """Where warnings go, and whether unknown fields may be stored."""

    warn: Callable[[Problem], None] = _ignore
    allow_unknown: bool = False


PLAIN = Checks()


def require_changeable(operation: str, key: ResourceKey) -> None:
    """Raises OperationNotSupported, in upstream's words, for resources that only calico-node may write, and for those
    that are never stored.
    """
    if key.kind == "ClusterInformation":
        reason = "resource is readonly" if operation == "apply" else ""
        raise OperationNotSupported(_UNCHANGEABLE[operation], "ClusterInformation", reason)
    if key == DEFAULT_ALLOW:
        raise OperationNotSupported(_UNCHANGEABLE[operation], shown_key(key), "it is built in")


def shown_document(found: Versioned) -> dict[str, Any]:
    """A stored resource as users see it: with its resourceVersion and upstream's defaults. Raises CorruptRecord."""
    return as_shown(_named_document(found))


def _named_document(found: Versioned) -> dict[str, Any]:
    assert isinstance(found.key, ResourceKey)
    named = decode_resource(found.key, found.value).metadata
    metadata = {"name": named.name, **({"namespace": named.namespace} if named.namespace else {})}
    metadata |= {**(found.value.get("metadata") or {}), "resourceVersion": str(found.revision)}
    return {"apiVersion": API_VERSION, "kind": found.key.kind, **found.value, "metadata": metadata}


def is_storable(key: ResourceKey) -> bool:
    """Whether a resource can have this name at all: "a/b" is part of another key's path."""
    return key.name not in (".", "..") and not any(char in "/?#%" or char < " " for char in key.name + key.namespace)


COMPLETED_KINDS = frozenset(("Profile", "Tier"))  # those of which a listing is more than what is stored, in its order


def complete_listing(kind: str, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A listing as upstream shows it: with what every cluster has but does not store, and tiers by their order."""
    if kind == "Profile" and not any(d["metadata"]["name"] == DEFAULT_ALLOW.name for d in documents):
        return [shown_document(Versioned(DEFAULT_ALLOW, default_allow(), 0)), *documents]
    if kind == "Tier":
        return sorted(documents, key=_tier_order)
    return documents


def _tier_order(document: Mapping[str, Any]) -> tuple[float, str]:
    order = (document.get("spec") or {}).get("order")
    number = float(order) if isinstance(order, (int, float)) and not isinstance(order, bool) else math.inf
    return number, str(document["metadata"]["name"])


def read_resource(session: Session, key: ResourceKey) -> Versioned:
    """Raises ResourceMissing."""
    if key == DEFAULT_ALLOW:
        return Versioned(key, default_allow(), 0)
    found = session.store.get(key, session.deadline) if is_storable(key) else None
    if found is None:
        raise ResourceMissing(key)
    return found


def read_pools(session: Session) -> list[IPPool]:
    """The stored pools, without those that cannot be read."""
    return [pool for _, pool in read_kind(session, "IPPool", decode_pool)]


def require_filters(session: Session, key: ResourceKey, document: Mapping[str, Any]) -> None:
    """Raises InvalidConfig for a BGPPeer whose filters do not exist: it would announce and accept everything."""
    names = (document.get("spec") or {}).get("filters") or ()
    if not isinstance(names, (list, tuple)):
        return  # validation reports it
    keys = [ResourceKey("BGPFilter", name) for name in names if isinstance(name, str)]
    for wanted, found in zip(keys, session.store.get_many(keys, session.deadline), strict=True):
        if found is None:
            raise InvalidConfig(
                f"cannot store {shown_key(key)}: {shown_key(wanted)} does not exist",
                details="create the BGPFilter first, in the same file before the peer or by itself",
            )


def require_tier(session: Session, key: ResourceKey, document: Mapping[str, Any], old: Document | None) -> None:
    """Raises InvalidConfig for a policy in a tier that does not exist, unless it is stored in that tier already."""
    tier = (document.get("spec") or {}).get("tier")
    if tier in TIERS or (old is not None and (old.get("spec") or {}).get("tier") == tier):
        return
    wanted = ResourceKey("Tier", str(tier))
    if session.store.get(wanted, session.deadline) is None:
        raise InvalidConfig(
            f"cannot store {shown_key(key)}: {shown_key(wanted)} does not exist",
            details="create the Tier first, in the same file before the policy or by itself",
        )


# -- what is written --------------------------------------------------------------------------------------------------


def placed(key: ResourceKey, document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the namespace of its key and without its resourceVersion."""
    metadata = dict(document.get("metadata") or {})
    metadata.pop("resourceVersion", None)
    if key.namespace:
        metadata["namespace"] = key.namespace
    return {**document, "metadata": metadata}


def plan_new(session: Session, key: ResourceKey, document: Mapping[str, Any]) -> dict[str, Any]:
    new = with_defaults(placed(key, document))
    new["metadata"] = {**new["metadata"], "uid": session.uid(), "creationTimestamp": session.now()}
    return new


def plan_replacement(key: ResourceKey, document: Mapping[str, Any], old: Document) -> dict[str, Any]:
    """The document as it replaces a stored one, whose identity and status are kept."""
    new = with_defaults(placed(key, document))
    stored = old.get("metadata") or {}
    for field in ("uid", "creationTimestamp"):
        if field in stored:
            new["metadata"][field] = stored[field]
        else:
            new["metadata"].pop(field, None)
    if "status" in old and "status" not in new:
        new["status"] = old["status"]
    return new


def _require_version(key: ResourceKey, document: Mapping[str, Any], current: Versioned) -> None:
    metadata = document.get("metadata") or {}
    wanted, uid = metadata.get("resourceVersion"), metadata.get("uid")
    if wanted and str(wanted) != str(current.revision):
        raise UpdateConflict(key)
    # a file that kubectl wrote has the custom resource's own
    if uid and uid not in ((current.value.get("metadata") or {}).get("uid", uid), current.uid):
        raise UpdateConflict(key)


def _has_version(document: Mapping[str, Any]) -> bool:
    return bool((document.get("metadata") or {}).get("resourceVersion"))


class _Writer:
    """One write of a resource; after a conflict the functions are called again with what is stored then."""

    def __init__(self, session: Session, key: ResourceKey, checks: Checks) -> None:
        self.session = session
        self.key = key
        self.checks = checks
        self.pools: list[IPPool] | None = None
        self.warned = False

    def checked(self, document: Mapping[str, Any], old: Document | None) -> Mapping[str, Any]:
        from cni_calico.model.validation.check import require_valid  # reading alone does not need it

        if old is not None:
            decode_resource(self.key, old)  # what cannot be read is never overwritten
        if self.key.kind == "IPPool" and self.pools is None:
            self.pools = read_pools(self.session)
        allow_unknown = self.checks.allow_unknown
        if self.key.kind == "BGPPeer":
            require_filters(self.session, self.key, document)
        for problem in require_valid(document, old=old, pools=self.pools or (), allow_unknown=allow_unknown):
            if not self.warned:
                self.checks.warn(problem)
        self.warned = True
        if self.key.kind in TIERED_KINDS:
            require_tier(self.session, self.key, document, old)
        return document

    def replacement(self, document: Mapping[str, Any], old: Document, *, complete: bool) -> Mapping[str, Any]:
        """``complete``: the document is the stored one, changed."""
        wanted = self.checked(plan_replacement(self.key, document, old), old)
        if self.session.store.kind == "kubernetes":
            return plan_stored(self.key, wanted, old, complete=complete)
        return wanted

    def write(self, change: Callable[[Versioned | None], Document | None]) -> Versioned | None:
        if not is_storable(self.key):
            raise ResourceMissing(self.key)
        written = update(self.session.store, self.key, change, self.session.deadline)
        self.session.written.append(self.key)
        return written


# -- operations -------------------------------------------------------------------------------------------------------


def create(session: Session, key: ResourceKey, document: Mapping[str, Any], checks: Checks = PLAIN) -> None:
    """Raises ResourceExists, InvalidResource, OperationNotSupported, DatastoreError."""
    require_changeable("create", key)
    if (document.get("metadata") or {}).get("resourceVersion"):
        raise InvalidConfig(
            f"cannot create {key.kind} {key.name}: metadata.resourceVersion must not be set for a new resource"
        )
    writer = _Writer(session, key, checks)
    new = writer.checked(plan_new(session, key, document), None)

    def change(current: Versioned | None) -> Document:
        if current is None:
            return new
        if current.value == new:  # our own write, whose answer was lost
            return current.value
        raise ResourceExists(key)

    writer.write(change)


def replace(session: Session, key: ResourceKey, document: Mapping[str, Any], checks: Checks = PLAIN) -> None:
    """Raises ResourceMissing, UpdateConflict, InvalidResource, OperationNotSupported, DatastoreError."""
    require_changeable("replace", key)
    _write(session, key, document, checks, may_create=False)


def apply(session: Session, key: ResourceKey, document: Mapping[str, Any], checks: Checks = PLAIN) -> None:
    """Replace, or create if there is none.

    Raises UpdateConflict, InvalidResource, OperationNotSupported, DatastoreError.
    """
    require_changeable("apply", key)
    _write(session, key, document, checks, may_create=True)


def _write(
    session: Session, key: ResourceKey, document: Mapping[str, Any], checks: Checks, *, may_create: bool
) -> None:
    writer = _Writer(session, key, checks)
    new = plan_new(session, key, document)
    if not is_storable(key):
        writer.checked(new, None)  # reports what is wrong with the name
    done: list[Mapping[str, Any]] = []

    def change(current: Versioned | None) -> Document:
        if current is not None and any(current.value == wanted for wanted in done):
            return current.value  # our own write, whose answer was lost
        if current is None:
            if not may_create:
                raise ResourceMissing(key)
            wanted = writer.checked(new, None)
        else:
            _require_version(key, document, current)
            wanted = writer.replacement(document, current.value, complete=_has_version(document))
        done.append(wanted)
        return wanted

    writer.write(change)


def modify(
    session: Session, key: ResourceKey, plan: Callable[[Document], Mapping[str, Any]], checks: Checks = PLAIN
) -> None:
    """Store what ``plan`` makes of the stored document. Raises ResourceMissing, InvalidResource, and what it raises."""
    writer = _Writer(session, key, checks)

    def change(current: Versioned | None) -> Document:
        if current is None:
            raise ResourceMissing(key)
        planned = plan(_named_document(current))
        metadata = planned.get("metadata")
        if planned.get("kind") != key.kind or not isinstance(metadata, Mapping) or metadata.get("name") != key.name:
            raise InvalidConfig(f"cannot change {key.kind} {key.name}: its kind and name must stay")
        _require_version(key, planned, current)
        return writer.replacement(planned, current.value, complete=True)

    writer.write(change)


def delete(session: Session, key: ResourceKey) -> None:
    """Raises ResourceMissing, DatastoreError."""
    if not is_storable(key):
        raise ResourceMissing(key)
    remove_record(session, key, lambda: ResourceMissing(key))


def remove_record(session: Session, key: Key, missing: Callable[[], Exception]) -> None:
    seen = False

    def change(current: Versioned | None) -> None:
        nonlocal seen
        if current is None and not seen:
            raise missing()
        seen = True

    update(session.store, key, change, session.deadline)
