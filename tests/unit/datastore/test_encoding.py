"""Stored bytes as documents: what JSON allows around a value is no reason to refuse it, and nothing else is taken."""

from __future__ import annotations

import pytest

from cni_calico.datastore.encoding import decode_document


@pytest.mark.parametrize("raw", [b'{"a":[1]}', b' \n{"a":[1]}', b'{"a":[1]}\r\n\t ', b'\t{ "a" : [ 1 ] }\n'])
def test_blanks_around_a_document_mean_nothing(raw: bytes) -> None:
    assert decode_document(raw) == {"a": [1]}


def test_no_bytes_are_an_empty_document() -> None:
    assert decode_document(b"") == {}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"a":1} x', "Extra data: line 1 column 9"),
        (b'{"a":1}{}', "Extra data: line 1 column 8"),
        (b'{"a":', "Expecting value: line 1 column 6"),
        (b" ", "Expecting value"),
        (b"\xff{}", "codec can't decode"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b" [1]", "a JSON object is expected, not list"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_document_is_said(raw: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode_document(raw)
