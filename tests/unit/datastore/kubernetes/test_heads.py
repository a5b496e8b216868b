"""The head of an event says what the whole event says, or there is none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.datastore.kubernetes.heads import LineParts, put_aside, read_head
from cni_calico.errors import CorruptRecord
from cni_calico.model.keys import Key, ResourceKey

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(("apiVersion", "kind", "metadata", "spec", "status", "type", "object", "path", "x"))
OBJECTS = st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES, max_size=3), max_size=5)
TYPES = st.sampled_from(("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")) | VALUES
EVENTS = st.fixed_dictionaries({"type": TYPES, "object": OBJECTS | VALUES}, optional={"path": VALUES, "more": VALUES})
ABOUT = ("apiVersion", "kind", "metadata")


@given(EVENTS | OBJECTS | VALUES, st.booleans(), st.booleans())
def test_a_head_is_the_beginning_of_its_event(event: Any, is_spaced: bool, is_ascii: bool) -> None:
    separators = (" , ", " :\t") if is_spaced else (",", ":")
    line = json.dumps(event, separators=separators, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    head = read_head(line)
    if head is not None:
        about = {name: value for name, value in event["object"].items() if name in head["object"]}
        assert head == {name: about if name == "object" else event[name] for name in head}
        assert set(about) <= set(ABOUT) and isinstance(about["metadata"], dict)
        assert head["type"] in ("ADDED", "MODIFIED", "DELETED")


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), VALUES, st.sampled_from(("", "/p")))
def test_what_servers_send_has_one(metadata: dict[str, Any], spec: Any, path: str) -> None:
    for order in (("apiVersion", "kind", "metadata"), ("kind", "apiVersion", "metadata")):
        obj = {name: metadata if name == "metadata" else name for name in order}
        event = {**({"path": path} if path else {}), "type": "ADDED", "object": {**obj, "spec": spec}}
        assert read_head(json.dumps(event).encode()) == {**event, "object": obj}


@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:type objectADDED', max_size=60).map(str.encode))
def test_anything_else_has_none(line: bytes) -> None:
    head = read_head(line)
    assert head is None or isinstance(head["object"]["metadata"], dict)


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"ADDED","object":{"spec":{},"metadata":{}}}',  # what is long comes first
        b'{"type":"ADDED","type":"DELETED","object":{"metadata":{},"spec":1}}',
        b'{"type":"ADDED","object":{"metadata":{},"metadata":{},"spec":1}}',
        b'{"object":{"metadata":{},"spec":1},"type":"ADDED"}',
        b'{"type":"BOOKMARK","object":{"metadata":{},"spec":1}}',
        b'{"type":"ADDED","object":{"metadata":[],"spec":1}}',
        b'{"type":"ADDED","object":{"metadata":' + b"[" * 100_000,
        b"\xff",
        b"",
    ],
)
def test_what_is_read_as_a_whole(line: bytes) -> None:
    assert read_head(line) is None


@given(st.lists(st.binary(max_size=6).map(lambda raw: raw.replace(b"\0", b"\n")), max_size=10))
def test_lines_are_those_of_all_pieces_together(pieces: list[bytes]) -> None:
    parts = LineParts()
    lines = [line for piece in pieces for line in parts.split(piece)]
    *expected, rest = b"".join(pieces).split(b"\n")
    assert lines == expected and parts.size == len(rest)
    assert parts.split(b"\n") == [rest]


def test_what_turns_out_to_be_about_another_record_is_corrupt() -> None:
    def read(obj: Mapping[str, Any]) -> tuple[Key, Mapping[str, Any]] | None:
        return (ResourceKey("Tier", obj["name"]), obj) if "name" in obj else None

    key = ResourceKey("Tier", "a")
    assert put_aside(b'{"object":{"name":"a","x":1}}', read, key).read() == {"name": "a", "x": 1}
    for line in (b'{"object":{"name":"b"}}', b'{"object":{}}', b'{"object":1}', b'{"object"', b"[]", b"[" * 100_000):
        with pytest.raises(CorruptRecord):
            put_aside(line, read, key).read()
