"""The pure parts of the etcd backend: endpoints, what errors mean, DNS messages."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.datastore.etcd.config import EtcdConfig, EtcdEndpoint, parse_endpoint, parse_endpoints
from cni_calico.datastore.etcd.dns import SrvService, parse_answer, parse_nameservers, render_query
from cni_calico.datastore.etcd.errors import error_for, meaning_of, short_reason
from cni_calico.errors import (
    Compacted,
    DatastoreDenied,
    DatastoreError,
    DatastoreUnavailable,
    DatastoreUnsupported,
    InvalidConfig,
    OutcomeUnknown,
)


@pytest.mark.parametrize(
    ("text", "tls", "endpoint", "shown"),
    [
        ("http://10.0.0.1:2379", True, EtcdEndpoint("10.0.0.1", 2379, False), "http://10.0.0.1:2379"),
        (" https://etcd.example:443/ ", False, EtcdEndpoint("etcd.example", 443, True), "https://etcd.example:443"),
        ("HTTPS://etcd", False, EtcdEndpoint("etcd", 2379, True), "https://etcd:2379"),
        ("10.0.0.1:1", True, EtcdEndpoint("10.0.0.1", 1, True), "https://10.0.0.1:1"),
        ("10.0.0.1", False, EtcdEndpoint("10.0.0.1", 2379, False), "http://10.0.0.1:2379"),
        ("http://[fd00::1]:5", False, EtcdEndpoint("fd00::1", 5, False), "http://[fd00::1]:5"),
        ("[fd00::1]", True, EtcdEndpoint("fd00::1", 2379, True), "https://[fd00::1]:2379"),
        ("fd00::1", False, EtcdEndpoint("fd00::1", 2379, False), "http://[fd00::1]:2379"),
    ],
)
def test_endpoints(text: str, tls: bool, endpoint: EtcdEndpoint, shown: str) -> None:
    assert parse_endpoint(text, tls=tls) == endpoint
    assert str(endpoint) == shown


@pytest.mark.parametrize(
    "text",
    ["ftp://a", "unix:///run/etcd", "http://", "http://:1", "a:0", "a:65536", "a:x", "a:", "http://a/b", "http://a?b",
     "a b", "[::1", "[::1]2", "[nonsense]:1", "1:2:3", "a:²"],
)  # fmt: skip
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(InvalidConfig):
        parse_endpoint(text, tls=False)


def test_passwords_in_endpoints_are_not_repeated() -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_endpoint("http://user:s3cret@host:1", tls=False)
    assert "s3cret" not in str(caught.value) + caught.value.details


def test_lists_of_endpoints() -> None:
    config = EtcdConfig(("http://a:1, http://b:2", "http://a:1", " "))
    assert [str(e) for e in parse_endpoints(config)] == ["http://a:1", "http://b:2"]
    assert parse_endpoints(EtcdConfig(("a",), ca_file="/ca"))[0].tls
    assert parse_endpoints(EtcdConfig(discovery_srv="example.org")) == ()
    with pytest.raises(InvalidConfig, match="no etcd endpoints specified"):
        parse_endpoints(EtcdConfig((" ",)))
    with pytest.raises(InvalidConfig, match="client certificate"):
        parse_endpoints(EtcdConfig(("a",), cert_file="/cert"))
    assert "pa55" not in repr(EtcdConfig(("a",), username="u", password="pa55"))


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: ...", DatastoreUnavailable),
        ("UNAVAILABLE", "etcdserver: no leader", DatastoreUnavailable),
        ("PERMISSION_DENIED", "etcdserver: permission denied", DatastoreDenied),
        ("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password", DatastoreDenied),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", DatastoreDenied),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", Compacted),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision", Compacted),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", DatastoreUnavailable),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", DatastoreError),
        ("INVALID_ARGUMENT", "etcdserver: something new", DatastoreError),
        ("UNIMPLEMENTED", "", DatastoreUnsupported),
    ],
)
def test_what_certain_failures_mean(status: str, text: str, error: type[DatastoreError]) -> None:
    made = error_for(meaning_of(status, text), "write x", text)
    assert type(made) is error and not isinstance(made, OutcomeUnknown)
    assert str(made) == f"cannot write x: {text}"


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ("UNAVAILABLE", "Socket closed"),
        ("UNAVAILABLE", "etcdserver: request timed out"),
        ("UNAVAILABLE", "recvmsg:Connection reset by peer; failed to connect to all addresses"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded"),
        ("CANCELLED", "Channel closed!"),
        ("UNKNOWN", "etcdserver: server stopped"),
        ("INTERNAL", ""),
    ],
)
def test_everything_else_may_have_been_applied(status: str, text: str) -> None:
    assert meaning_of(status, text) == "lost"


def test_reasons_are_short() -> None:
    nested = (
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:1: Failed to connect to remote host: no"
    )
    assert short_reason("UNAVAILABLE", nested) == "ipv4:1.2.3.4:1: no"
    assert short_reason("DEADLINE_EXCEEDED", "Deadline Exceeded") == "no answer in time"
    assert short_reason("INTERNAL", "") == "INTERNAL"
    assert len(short_reason("INTERNAL", "x\n" * 900)) <= 200


def test_name_servers() -> None:
    text = "# nameserver 9.9.9.9\nsearch a b\nnameserver 10.0.0.1\n\tnameserver fd00::1 # theirs\nnameserver\n"
    assert parse_nameservers(text) == ["10.0.0.1", "fd00::1"]
    assert parse_nameservers("") == ["127.0.0.1"]


def test_queries() -> None:
    query = render_query("_etcd-client._tcp.example.org.", 0x1234)
    assert query == bytes.fromhex("123401000001000000000000") + (
        b"\x0c_etcd-client\x04_tcp\x07example\x03org\0\x00\x21\x00\x01"
    )
    for name in ("a..b", "x" * 64 + ".org", "a." * 200 + "org", ""):
        with pytest.raises(ValueError):
            render_query(name, 1)


def answer(*records: bytes, flags: int = 0x8180, ident: int = 7) -> bytes:
    question = b"\x01a\x03org\0\x00\x21\x00\x01"
    return struct.pack("!6H", ident, flags, 1, len(records), 0, 0) + question + b"".join(records)


SRV = b"\xc0\x0c\x00\x21\x00\x01\0\0\0\x3c\x00\x0b\x00\x01\x00\x02\x09\x4b\x02e1\xc0\x0e"
CNAME = b"\xc0\x0c\x00\x05\x00\x01\0\0\0\x3c\x00\x02\xc0\x0c"


def test_answers() -> None:
    assert parse_answer(answer(CNAME, SRV), 7) == ([SrvService(1, 2, 2379, "e1.org")], False)
    assert parse_answer(answer(flags=0x8383), 7) == ([], True)
    for wrong, ident in ((answer(SRV), 8), (answer(SRV, flags=0x0180), 7), (answer(flags=0x8182), 7)):
        with pytest.raises(ValueError):
            parse_answer(wrong, ident)
    loop = answer(b"\xc0\x13" + SRV[2:])[:19] + b"\xc0\x13\x00\x21\x00\x01"
    with pytest.raises(ValueError):
        parse_answer(loop, 7)


@given(st.binary(max_size=80), st.integers(0, 60))
def test_broken_answers_are_value_errors(noise: bytes, cut: int) -> None:
    good = answer(SRV)
    for broken in (good[:cut], good[:cut] + noise, good[:12] + noise):
        try:
            records, _ = parse_answer(broken, 7)
        except ValueError:
            continue
        assert all(isinstance(r, SrvService) for r in records)
