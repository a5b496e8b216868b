"""Resources in the datastore: create, replace, apply, delete, patch, label; each a compare-and-swap.

Rule: ``resourceVersion`` is never stored; a document that carries one is only written over exactly that version. The
UID and creation time of what is stored stay; what cannot be valid is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.ctl.derived import plan_stored
from cni_calico.ctl.session import ResourceExists, ResourceMissing, Session, UpdateConflict
from cni_calico.datastore.cas import update
from cni_calico.datastore.interface import Document, Versioned
from cni_calico.errors import CorruptRecord, InvalidConfig
from cni_calico.model.documents.codec import decode_pool, decode_resource
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import Key, ResourceKey, ResourceList
from cni_calico.model.resources import IPPool
from cni_calico.model.validation.check import Problem, require_valid, with_defaults

Warn = Callable[[Problem], None]


def ignore(problem: Problem) -> None:
    """For callers that do not pass warnings on."""


def shown_document(found: Versioned) -> dict[str, Any]:
    """A stored resource as users see it, with its resourceVersion. Raises CorruptRecord."""
    assert isinstance(found.key, ResourceKey)
    named = decode_resource(found.key, found.value).metadata
    metadata = {"name": named.name, **({"namespace": named.namespace} if named.namespace else {})}
    metadata |= {**(found.value.get("metadata") or {}), "resourceVersion": str(found.revision)}
    return {"apiVersion": API_VERSION, "kind": found.key.kind, **found.value, "metadata": metadata}


def read_resource(session: Session, key: ResourceKey) -> Versioned:
    """Raises ResourceMissing."""
    found = session.store.get(key, session.deadline)
    if found is None:
        raise ResourceMissing(key)
    return found


def read_pools(session: Session) -> list[IPPool]:
    """The stored pools; one that cannot be read overlaps with nothing."""
    pools = []
    for item in session.store.list(ResourceList("IPPool"), session.deadline).items:
        assert isinstance(item.key, ResourceKey)
        try:
            pools.append(decode_pool(item.key, item.value))
        except CorruptRecord:
            continue
    return pools


# -- what is written --------------------------------------------------------------------------------------------------


def _placed(key: ResourceKey, document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the namespace that its key says, and the resourceVersion it asks for taken out."""
    metadata = dict(document.get("metadata") or {})
    metadata.pop("resourceVersion", None)
    if key.namespace:
        metadata["namespace"] = key.namespace
    return {**document, "metadata": metadata}


def plan_new(session: Session, key: ResourceKey, document: Mapping[str, Any]) -> dict[str, Any]:
    placed = with_defaults(_placed(key, document))
    placed["metadata"] = {**placed["metadata"], "uid": session.uid(), "creationTimestamp": session.now()}
    return placed


def plan_replacement(key: ResourceKey, document: Mapping[str, Any], old: Document) -> dict[str, Any]:
    """The document over a stored one: identity and status of the stored one stay."""
    placed = with_defaults(_placed(key, document))
    stored = old.get("metadata") or {}
    for field in ("uid", "creationTimestamp"):
        if field in stored:
            placed["metadata"][field] = stored[field]
        else:
            placed["metadata"].pop(field, None)
    if "status" in old and "status" not in placed:
        placed["status"] = old["status"]
    return placed


def _require_version(key: ResourceKey, document: Mapping[str, Any], current: Versioned) -> None:
    metadata = document.get("metadata") or {}
    wanted, uid = metadata.get("resourceVersion"), metadata.get("uid")
    if wanted and str(wanted) != str(current.revision):
        raise UpdateConflict(key)
    if uid and uid != (current.value.get("metadata") or {}).get("uid", uid):
        raise UpdateConflict(key)


def _has_version(document: Mapping[str, Any]) -> bool:
    return bool((document.get("metadata") or {}).get("resourceVersion"))


class _Writer:
    """One write of a resource; the functions are called anew with whatever is stored after a conflict."""

    def __init__(self, session: Session, key: ResourceKey, warn: Warn) -> None:
        self.session = session
        self.key = key
        self.warn = warn
        self.pools: list[IPPool] | None = None
        self.warned = False

    def checked(self, document: Mapping[str, Any], old: Document | None) -> Mapping[str, Any]:
        if old is not None:
            decode_resource(self.key, old)  # what cannot be read is never overwritten
        if self.key.kind == "IPPool" and self.pools is None:
            self.pools = read_pools(self.session)
        for problem in require_valid(document, old=old, pools=self.pools or ()):
            if not self.warned:
                self.warn(problem)
        self.warned = True
        return document

    def replacement(self, document: Mapping[str, Any], old: Document, *, complete: bool) -> Mapping[str, Any]:
        """``complete``: the document is the stored one, changed."""
        wanted = self.checked(plan_replacement(self.key, document, old), old)
        if self.session.store.identity.startswith("kubernetes:"):
            return plan_stored(self.key, wanted, old, complete=complete)
        return wanted

    def write(self, change: Callable[[Versioned | None], Document | None]) -> Versioned | None:
        return update(self.session.store, self.key, change, self.session.deadline)


# -- operations -------------------------------------------------------------------------------------------------------


def create(session: Session, key: ResourceKey, document: Mapping[str, Any], warn: Warn = ignore) -> None:
    """Raises ResourceExists, InvalidResource, DatastoreError."""
    if (document.get("metadata") or {}).get("resourceVersion"):
        raise InvalidConfig(
            f"cannot create {key.kind} {key.name}: metadata.resourceVersion must not be set for a new resource"
        )
    writer = _Writer(session, key, warn)
    new = writer.checked(plan_new(session, key, document), None)

    def change(current: Versioned | None) -> Document:
        if current is None:
            return new
        if current.value == new:  # ours: the answer was lost
            return current.value
        raise ResourceExists(key)

    writer.write(change)


def replace(session: Session, key: ResourceKey, document: Mapping[str, Any], warn: Warn = ignore) -> None:
    """Raises ResourceMissing, UpdateConflict, InvalidResource, DatastoreError."""
    _write(session, key, document, warn, may_create=False)


def apply(session: Session, key: ResourceKey, document: Mapping[str, Any], warn: Warn = ignore) -> None:
    """Replace, or create when there is none. Raises UpdateConflict, InvalidResource, DatastoreError."""
    _write(session, key, document, warn, may_create=True)


def _write(session: Session, key: ResourceKey, document: Mapping[str, Any], warn: Warn, *, may_create: bool) -> None:
    writer = _Writer(session, key, warn)
    new = plan_new(session, key, document)
    done: list[Mapping[str, Any]] = []

    def change(current: Versioned | None) -> Document:
        if current is not None and any(current.value == wanted for wanted in done):
            return current.value  # ours: the answer was lost
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
    session: Session, key: ResourceKey, plan: Callable[[Document], Mapping[str, Any]], warn: Warn = ignore
) -> None:
    """Store what ``plan`` makes of the stored document. Raises ResourceMissing, InvalidResource, and what it raises."""
    writer = _Writer(session, key, warn)

    def change(current: Versioned | None) -> Document:
        if current is None:
            raise ResourceMissing(key)
        planned = plan(shown_document(current))
        metadata = planned.get("metadata")
        if planned.get("kind") != key.kind or not isinstance(metadata, Mapping) or metadata.get("name") != key.name:
            raise InvalidConfig(f"cannot change {key.kind} {key.name}: its kind and name must stay")
        _require_version(key, planned, current)
        return writer.replacement(planned, current.value, complete=True)

    writer.write(change)


def delete(session: Session, key: ResourceKey) -> None:
    """Raises ResourceMissing, DatastoreError."""
    remove_record(session, key, lambda: ResourceMissing(key))


def remove_record(session: Session, key: Key, missing: Callable[[], Exception]) -> None:
    seen = False

    def change(current: Versioned | None) -> None:
        nonlocal seen
        if current is None and not seen:
            raise missing()
        seen = True

    update(session.store, key, change, session.deadline)
