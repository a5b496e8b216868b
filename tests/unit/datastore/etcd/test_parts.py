"""The pure parts of the etcd backend: endpoints, what errors mean."""

from __future__ import annotations

import pytest

from cni_calico.datastore.etcd.config import EtcdConfig, EtcdEndpoint, parse_endpoint, parse_endpoints
from cni_calico.datastore.etcd.errors import error_for, meaning_of, short_reason
from cni_calico.errors import (
    Compacted,
    DatastoreDenied,
    DatastoreError,
    DatastoreForbidden,
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
        ("PERMISSION_DENIED", "something else", DatastoreDenied),
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


def test_a_missing_right_names_the_command_that_prints_them() -> None:
    text = "etcdserver: permission denied"
    made = error_for(meaning_of("PERMISSION_DENIED", text), "read /calico/x", text)
    assert type(made) is DatastoreForbidden
    assert str(made) == (
        f"cannot read /calico/x: {text}; 'calicoctl datastore etcd-roles' prints the rights that each program needs"
    )


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
