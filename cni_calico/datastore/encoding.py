"""How keys and documents are encoded on stores with plain keys and bytes (etcd, the embedded store).

Rule: what cannot be encoded faithfully is a ValueError before anything is written; what cannot be decoded is a
ValueError that the backend turns into CorruptRecord.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import JSONDecoder, JSONEncoder
from typing import Any

from cni_calico.datastore.interface import Document, Write
from cni_calico.errors import CorruptRecord
from cni_calico.model.keys import NAMESPACED_KINDS, AffinityKey, HandleKey, Key, ResourceKey, etcd_path

WRITING = ("create", "update", "put")
OPERATIONS = (*WRITING, "delete", "remove", "expect")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


_encode = JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain).encode
_decoder = JSONDecoder(parse_constant=_refuse_constant)


def encode_document(document: Document) -> str:
    """The JSON text of a document (ASCII). Raises ValueError for what JSON cannot express."""
    if not isinstance(document, Mapping):
        raise ValueError(f"a document is a mapping, not {type(document).__name__}")
    try:
        return _encode(document)
    except TypeError as e:
        raise ValueError(str(e)) from e


def decode_document(raw: bytes) -> dict[str, Any]:
    """The document in stored bytes; no bytes at all read as {} (upstream's empty affinity). Raises ValueError."""
    try:
        document = _decode(raw.decode()) if raw else {}
    except RecursionError as e:
        raise ValueError("nested too deeply") from e
    if not isinstance(document, dict):
        raise ValueError(f"a JSON object is expected, not {type(document).__name__}")
    return document


def _decode(text: str) -> Any:
    """Nearly all texts end with their value: looking for blanks around it takes as long as a small document."""
    try:
        found, end = _decoder.raw_decode(text)
    except ValueError:
        end = -1
    return found if end == len(text) else _decoder.decode(text)


def read_document(key: Key, raw: bytes) -> dict[str, Any]:
    """As decode_document. Raises CorruptRecord."""
    try:
        return decode_document(raw)
    except ValueError as e:
        raise corrupt_record(key, e) from e


def corrupt_record(key: Key, why: object) -> CorruptRecord:
    """The error for a record that cannot be read."""
    return CorruptRecord(f"cannot read {etcd_path(key)}: {why}")


def record_path(key: Key) -> str:
    """The stored key of a record. Raises ValueError for an identity that could not be read back from it."""
    if isinstance(key, ResourceKey):
        scoped = key.kind in NAMESPACED_KINDS
        if not key.name or "/" in key.name or "/" in key.namespace or scoped != bool(key.namespace):
            raise ValueError(f"{key} cannot be stored: empty name, '/' in a name, or a namespace where none belongs")
    elif isinstance(key, AffinityKey):
        if not key.node or "/" in key.node:
            raise ValueError(f"{key} cannot be stored: the node name is empty or contains '/'")
    elif isinstance(key, HandleKey) and not key.handle_id:
        raise ValueError("a handle without an ID cannot be stored")
    return etcd_path(key)


def plan_commit(writes: Sequence[Write], max_commit: int) -> tuple[list[str], list[str | None]]:
    """Stored keys and texts of a commit's members. Raises ValueError for a commit that violates the contract."""
    if not 0 < len(writes) <= max_commit:
        raise ValueError(f"a commit has 1 to {max_commit} members, not {len(writes)}")
    paths = [record_path(write.key) for write in writes]
    if len(set(paths)) != len(paths):
        raise ValueError("a key occurs twice in one commit")
    texts: list[str | None] = []
    for write in writes:
        if write.op not in OPERATIONS:
            raise ValueError(f"{write.op!r} is not an operation of a commit")
        if (write.op in WRITING) != (write.value is not None):
            raise ValueError(f"{write.op} of {write.key} with {'no' if write.value is None else 'a'} document")
        texts.append(None if write.value is None else encode_document(write.value))
    return paths, texts


def prefix_end(prefix: str) -> str:
    """The first key after every key that starts with ``prefix`` (which ends in an ASCII character)."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
