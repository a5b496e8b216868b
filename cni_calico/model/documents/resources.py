"""PURE: converts API resources from and to their documents: what all kinds have in common.

Rule: ``extra`` of a record with its own class holds the unknown fields of its spec and remembers the whole document, so
that unknown fields beside the spec survive too. The kinds' own tables are in kinds.py.
"""

from __future__ import annotations

from typing import Any

from cni_calico.model.documents.fields import (
    JSON,
    Field,
    Table,
    Unknown,
    Wrong,
    attributes_of,
    decode_fields,
    encode_fields,
    parse_object,
    parse_text,
    parse_text_map,
    source_of,
    text,
)
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource

API_VERSION = "projectcalico.org/v3"

METADATA: Table = (
    text("name", "name"),
    text("namespace", "namespace"),
    text("uid", "uid"),
    text("creationTimestamp", "creation_timestamp"),
    text("deletionTimestamp", "deletion_timestamp"),
    Field("labels", "labels", parse_text_map, {}),
    Field("annotations", "annotations", parse_text_map, {}),
)
_TOP = frozenset(("apiVersion", "kind", "metadata", "spec", "status"))


class SpecUnknown(Unknown):
    """Unknown fields of a spec; ``document`` is the whole document the record was read from."""

    __slots__ = ("document",)

    def __init__(self, unknown: Unknown, document: JSON) -> None:
        super().__init__(unknown, unknown.source)
        self.document = document


def document_of(extra: JSON) -> JSON | None:
    """The document that a record with this ``extra`` was read from; None for a new record."""
    return extra.document if isinstance(extra, SpecUnknown) else None


def read_metadata(raw: JSON, key: ResourceKey) -> Metadata:
    """Raises Wrong, also if the document says that it is another resource than its key."""
    values, extra = decode_fields(raw, METADATA, "metadata")
    for attr, expected in (("name", key.name), ("namespace", key.namespace)):
        if values[attr] and values[attr] != expected:
            raise Wrong(f"metadata.{attr}", f'"{expected}" as in its key' if expected else "none", values[attr])
        values[attr] = expected
    return Metadata(**values, extra=extra)


def encode_metadata(metadata: Metadata) -> dict[str, Any]:
    out = encode_fields(attributes_of(metadata, METADATA), METADATA, metadata.extra)
    source = source_of(metadata.extra)
    if source is not None:
        for name in ("name", "namespace"):
            if not source.get(name):
                out.pop(name, None)
                if name in source:
                    out[name] = source[name]
    return out


def read_head(raw: JSON, key: ResourceKey) -> tuple[Metadata, JSON, JSON | None]:
    """(metadata, spec, status) of a resource's document. Raises Wrong."""
    if raw.get("kind") not in (None, key.kind):
        raise Wrong("kind", f'"{key.kind}"', raw["kind"])
    if parse_text(raw.get("apiVersion") or API_VERSION, "apiVersion") != API_VERSION:
        raise Wrong("apiVersion", f'"{API_VERSION}" (a newer release may have written this)', raw["apiVersion"])
    metadata, spec, status = raw.get("metadata"), raw.get("spec"), raw.get("status")
    return (
        read_metadata({} if metadata is None else parse_object(metadata, "metadata"), key),
        {} if spec is None else parse_object(spec, "spec"),
        None if status is None else parse_object(status, "status"),
    )


def unknown_top(raw: JSON) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in _TOP}


def build_document(
    kind: str, metadata: Metadata, spec: JSON, status: JSON | None, extra: JSON, document: JSON | None
) -> dict[str, Any]:
    """The document of a resource; ``extra`` are its unknown top-level fields, ``document`` is what it was read from."""
    out: dict[str, Any] = {**extra}
    if document is None:
        out.update(apiVersion=API_VERSION, kind=kind, metadata=encode_metadata(metadata), spec=dict(spec))
    else:
        out.update({name: document[name] for name in ("apiVersion", "kind") if name in document})
        for name, value in (("metadata", encode_metadata(metadata)), ("spec", dict(spec))):
            if value or document.get(name) is not None:
                out[name] = value
            elif name in document:
                out[name] = None
    if status is not None:
        out["status"] = status
    elif document is not None and "status" in document and document["status"] is None:
        out["status"] = None
    return out


def read_resource(raw: JSON, key: ResourceKey) -> Resource:
    metadata, spec, status = read_head(raw, key)
    return Resource(key.kind, metadata, spec, status, Unknown(unknown_top(raw), raw))


def encode_resource(resource: Resource) -> dict[str, Any]:
    return build_document(
        resource.kind,
        resource.metadata,
        resource.spec,
        resource.status,
        resource.extra,
        source_of(resource.extra),
    )
