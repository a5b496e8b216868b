"""PURE: the head of a watch's event: everything before its object's spec, which may be long.

Rule: a head says what the whole event says, or there is none (None), and the event is read as a whole: servers write an
object's kind and metadata first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from json import JSONDecoder, loads
from typing import Any

from cni_calico.datastore.unread import UnreadDocument
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import describe
from cni_calico.model.keys import Key

UNREAD = "unread"  # a member of an event of which only the head was read: its line, as bytes, which JSON has not
_ABOUT_EVENT, _ABOUT_OBJECT = ("path", "type"), ("apiVersion", "kind", "metadata")
_CHANGES = ("ADDED", "MODIFIED", "DELETED")
_decode_value = JSONDecoder().raw_decode
_pass_space = re.compile(r"[ \t\r]*").match
ReadsObject = Callable[[Mapping[str, Any]], tuple[Key, Mapping[str, Any]] | None]


def read_head(line: bytes) -> dict[str, Any] | None:
    """The event with no more of its object than ``apiVersion``, ``kind`` and ``metadata``; None if it has no head."""
    try:
        text = line.decode()
        event, at = _members(text, 0, _ABOUT_EVENT)
        name, at = _name(text, at)
        if name != "object" or event.get("type") not in _CHANGES:
            return None
        obj, _ = _members(text, at, _ABOUT_OBJECT)
    except (ValueError, IndexError, RecursionError):
        return None
    return {**event, "object": obj} if isinstance(obj.get("metadata"), dict) else None


def _members(text: str, at: int, names: tuple[str, ...]) -> tuple[dict[str, Any], int]:
    """The first members of the object at ``at``, as long as they have these names, and where the next name begins.
    Raises ValueError, IndexError, RecursionError.
    """
    found: dict[str, Any] = {}
    at = _after(text, at, "{")
    while True:
        name, value_at = _name(text, at)
        if name not in names:
            return found, at
        if name in found:
            raise ValueError(f"{name} is there twice")
        found[name], at = _decode_value(text, value_at)
        at = _after(text, at, ",")


def _name(text: str, at: int) -> tuple[str, int]:
    """A member's name, and where its value begins."""
    name, at = _decode_value(text, at)
    if not isinstance(name, str):
        raise ValueError("a name is expected")
    return name, _after(text, at, ":")


def _after(text: str, at: int, sign: str) -> int:
    """Where the next value begins, after ``sign``."""
    at = _space(text, at)
    if text[at] != sign:
        raise ValueError(f"{sign} is expected")
    return _space(text, at + 1)


def _space(text: str, at: int) -> int:
    found = _pass_space(text, at)
    assert found is not None
    return found.end()


def put_aside(line: bytes, read: ReadsObject, key: Key) -> UnreadDocument:
    """The document of the object in an event whose head says that it is ``key``."""
    return UnreadDocument(len(line), partial(_read_document, line, read, key))


def _read_document(line: bytes, read: ReadsObject, key: Key) -> Mapping[str, Any]:
    """Raises CorruptRecord."""
    try:
        found = read(loads(line)["object"])
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise CorruptRecord(f"cannot read {describe(key)}: the event that brought it is not JSON") from e
    if found is None or found[0] != key:
        raise CorruptRecord(f"cannot read {describe(key)}: the event that brought it is about another record")
    return found[1]


class LineParts:
    """The beginning of a line whose end has not arrived yet; ``size`` in bytes."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []

    def split(self, piece: bytes) -> list[bytes]:
        """The lines that end in ``piece``."""
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts, self.size = [], 0
        self._parts.append(rest)
        self.size += len(rest)
        return lines
