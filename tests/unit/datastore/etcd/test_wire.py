"""Messages in protobuf's wire format, against protobuf's own library."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.datastore.etcd import wire
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.spans import Span

KEYS = st.binary(max_size=300)
REVISIONS = st.integers(0, 2**63 - 1)
RECORDS = st.builds(
    pb.KeyValue,
    key=KEYS,
    create_revision=REVISIONS,
    mod_revision=REVISIONS,
    version=REVISIONS,
    value=st.binary(max_size=300),
    lease=st.integers(-(2**63), 2**63 - 1),
)
HEADERS = st.builds(
    pb.ResponseHeader, cluster_id=st.integers(0, 2**64 - 1), member_id=st.integers(0, 2**64 - 1), revision=REVISIONS
)
# what a later etcd might add: one field of each wire type
UNKNOWN = b"\xf8\x01\x7f" + b"\xf9\x01" + bytes(8) + b"\xfa\x01\x02ab" + b"\xfd\x01" + bytes(4)


@given(st.builds(Span, KEYS, KEYS, st.integers(0, 2**31), REVISIONS))
def test_what_is_asked_for(span: Span) -> None:
    read = pb.RangeRequest.FromString(wire.render_range(span))
    assert (read.key, read.range_end, read.limit, read.revision) == (span.start, span.end, span.limit, span.revision)
    assert read == pb.RangeRequest(key=span.start, range_end=span.end, limit=span.limit, revision=span.revision)


@given(st.text(max_size=200), st.text(max_size=200))
def test_a_login(name: str, password: str) -> None:
    read = pb.AuthenticateRequest.FromString(wire.render_login(name, password))
    assert read == pb.AuthenticateRequest(name=name, password=password)


@given(HEADERS, st.lists(RECORDS, max_size=5), st.booleans(), st.integers(0, 2**40), st.sampled_from([b"", UNKNOWN]))
def test_what_is_answered(header: object, records: list, more: bool, count: int, unknown: bytes) -> None:
    message = pb.RangeResponse(header=header, kvs=records, more=more, count=count).SerializeToString() + unknown
    if more and not records:
        with pytest.raises(ValueError, match="more"):
            wire.parse_page(message)
        return
    page = wire.parse_page(message)
    assert (page.revision, page.more) == (header.revision, more)
    found = [(record.key, record.value, record.mod_revision) for record in page.records]
    assert found == [(kv.key, kv.value, kv.mod_revision) for kv in records]


@given(HEADERS, st.text("abc.123", max_size=300))
def test_a_token(header: object, token: str) -> None:
    message = pb.AuthenticateResponse(header=header, token=token).SerializeToString()
    assert wire.parse_token(message) == token


@pytest.mark.parametrize(
    "message",
    [
        *(b"\x12", b"\x12\x05ab", b"\x0a\x01", b"\x80", b"\xff" * 11),  # cut off
        *(b"\x08\x01", b"\x1a\x01a"),  # the header as a number, `more` as bytes
        *(b"\x13", b"\x14"),  # groups, which nobody uses any more
        *(b"\x12\x02\x08\x01", b"\x12\x03\x1a\x01a"),  # a record whose key is a number, whose revision is bytes
    ],
)
def test_what_is_no_answer(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"field|number|bytes"):
        wire.parse_page(message)
