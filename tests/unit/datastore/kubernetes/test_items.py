"""Lists taken apart while they arrive: the same as parsing the whole text, wherever it is cut."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.datastore.kubernetes.items import ItemParser, unpacked

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["kind", "metadata", "apiVersion", "more"]), VALUES)


def cut(data: bytes, places) -> list[bytes]:
    edges = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(edges)]


def parse(pieces) -> tuple[list, dict]:
    parser, items = ItemParser(), []
    for piece in pieces:
        items += parser.feed(piece)
    return items, parser.finish()


@given(DOCUMENTS, st.lists(VALUES, max_size=6), st.integers(0, 4), st.lists(st.integers(0, 400)), st.booleans())
def test_as_the_whole_text(rest, items, place, places, blanks) -> None:
    members = list(rest.items())
    members.insert(place, ("items", items))
    text = json.dumps(dict(members), ensure_ascii=False, indent=1 if blanks else None)
    assert parse(cut(text.encode("utf-8", "surrogatepass"), places)) == (items, rest)


def test_byte_by_byte() -> None:
    text = (
        '{"kind":"NodeList","items":[{"a":"\u00e4\U0001f600"},{"b":[1,2]}],"metadata":{"resourceVersion":"7"},"n":12}'
    )
    data = text.encode()
    items, rest = parse(data[i : i + 1] for i in range(len(data)))
    whole = json.loads(text)
    assert (items, rest) == (whole.pop("items"), whole)


def test_items_that_are_none() -> None:
    assert parse([b'{"items":null,"kind":"x"}']) == ([], {"items": None, "kind": "x"})
    assert parse([b" {} "]) == ([], {})


@pytest.mark.parametrize("text", ["[1]", "7", '{"a":1}{', '{"a" 1}', '{"items":[x]}', '{"a":x,'])
def test_what_is_no_list(text) -> None:
    with pytest.raises(ValueError):
        parse([text.encode()])


@pytest.mark.parametrize("text", ["", "{", '{"items":[{"a":1}', '{"items":[{"a":1},{"b', '{"items":[]', '{"a":12'])
def test_what_ends_too_early(text) -> None:
    with pytest.raises(ValueError, match="too early"):
        parse([text.encode()])


def test_what_was_taken_is_not_kept() -> None:
    parser = ItemParser()
    list(parser.feed(b'{"items":['))
    for number in range(1000):
        [item] = parser.feed(b'{"padding":"%s","n":%d},' % (b"x" * 1000, number))
        assert item["n"] == number
        assert len(parser._text) < 2000


def test_what_is_packed_is_unpacked_in_pieces_of_a_limited_size() -> None:
    text = json.dumps({"items": [{"n": "x" * 100} for _ in range(20_000)]}).encode()
    packed = gzip.compress(text)
    pieces = list(unpacked(packed[i : i + 7000] for i in range(0, len(packed), 7000)))
    assert b"".join(pieces) == text
    assert max(map(len, pieces)) <= 256 * 1024
    with pytest.raises(ValueError, match="it is not gzip"):
        list(unpacked([b"plain"]))
