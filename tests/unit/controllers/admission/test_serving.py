"""Requests to the webhook, over TLS and as bytes."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.controllers.admission.certificates import DAY_S, make_certificate
from cni_calico.controllers.admission.decisions import TierAuthorizer
from cni_calico.controllers.admission.serving import BODY_BYTES, ReviewServer
from cni_calico.daemon.http_server import PLACES
from cni_calico.log import Log
from tests.deadlines import until
from tests.unit.controllers.admission.test_decisions import PSEUDO, SEE, RoleServer
from tests.unit.controllers.admission.test_reviews import request_of

PAIR = make_certificate(["localhost"], DAY_S)
NOBODY = make_certificate(["client"], DAY_S)
DOCUMENT = request_of(userInfo={"username": "alice", "groups": ["dev"]})


def server_of(rights: Any, client_ca: str = "") -> ReviewServer:
    return ReviewServer(0, TierAuthorizer(rights), "kube-system", Log("none"), client_ca)


@pytest.fixture
def reviewing() -> Iterator[ReviewServer]:
    made = server_of(RoleServer(SEE, ("create", PSEUDO, "sec.*"), sec={}))
    assert made.port == 0
    made.serve_with(PAIR)
    yield made
    made.close()


def ask(
    reviewing: ReviewServer, path: str, body: bytes | None = None, *, trusted: bytes = PAIR.certificate
) -> tuple[int, bytes]:
    context = ssl.create_default_context(cadata=trusted.decode())
    connection = http.client.HTTPSConnection("localhost", reviewing.port, timeout=60, context=context)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def is_allowed(answer: Any) -> bool:
    assert answer[0] == 200
    response = json.loads(answer[1])["response"]
    assert response["uid"] == "u1"
    return bool(response["allowed"])


def test_reviews_of_any_size_up_to_the_limit(reviewing: ReviewServer) -> None:
    assert ask(reviewing, "/readyz") == (200, b"ok\n")
    assert is_allowed(ask(reviewing, "/rbac?timeout=5s", json.dumps(DOCUMENT).encode()))
    large = request_of(userInfo={"username": "alice", "groups": ["dev"]})
    large["request"]["object"]["spec"]["selector"] = "x" * 1_500_000
    assert is_allowed(ask(reviewing, "/rbac", json.dumps(large).encode()))
    assert not is_allowed(ask(reviewing, "/cluster-info", json.dumps(DOCUMENT).encode()))


def test_a_new_certificate_counts_at_the_next_connection(reviewing: ReviewServer) -> None:
    other = make_certificate(["localhost"], DAY_S)
    reviewing.serve_with(other)
    assert ask(reviewing, "/readyz", trusted=other.certificate) == (200, b"ok\n")
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(reviewing, "/readyz")


def test_those_who_only_connect_keep_nobody_out(reviewing: ReviewServer) -> None:
    idle = [socket.create_connection(("127.0.0.1", reviewing.port)) for _ in range(PLACES + 10)]
    try:
        assert is_allowed(ask(reviewing, "/rbac", json.dumps(DOCUMENT).encode()))
    finally:
        for each in idle:
            each.close()


def head(method: str = "POST", path: str = "/rbac", length: str | int | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *([] if length is None else [f"Content-Length: {length}"])]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"POST /rbac\r\n\r\n", 400),
        (head("GET"), 405),
        (head("PUT", "/readyz"), 405),
        (head("GET", "/metrics"), 404),
        (head(), 411),
        (head(length=BODY_BYTES + 1), 413),
        (head(length="many"), 411),
        (head(length=2) + b"{}", 400),
        (head(length=4) + b"null", 400),
        (head(length=0), 400),
    ],
)
def test_what_is_no_review_is_refused(request_bytes: bytes, status: int) -> None:
    code, _, said = server_of(RoleServer()).respond(request_bytes)
    assert code == status and said.endswith(b"\n")


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_answered_and_allow_nothing(tail: bytes, whole: bool) -> None:
    code, _, _ = server_of(RoleServer()).respond(head(length=len(tail)) + tail if whole else tail)
    assert 400 <= code < 500


def test_what_cannot_be_decided_is_denied() -> None:
    rights = RoleServer()
    rights.away = True
    for kind in ("GlobalNetworkPolicy", "Secret"):
        body = json.dumps(request_of(kind={"kind": kind})).encode()
        code, _, answer = server_of(rights).respond(head(length=len(body)) + body)
        status = json.loads(answer)["response"]["status"]
        assert code == 200 and status["code"] in (422, 500) and status["message"].startswith("cannot ")


def test_with_a_clients_authority_reviews_need_its_certificate(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(NOBODY.certificate)
    rights = RoleServer(SEE, ("create", PSEUDO, "sec.*"), sec={})
    made = server_of(rights, str(tmp_path / "ca.crt"))
    made.serve_with(PAIR)
    body = json.dumps(DOCUMENT).encode()
    try:
        assert ask(made, "/readyz") == (200, b"ok\n")
        assert ask(made, "/rbac", body)[0] == 403
        until(lambda: rights.asked == 0, "nobody was asked", 1)
        assert is_allowed(made.respond(head(length=len(body)) + body)[::2])
    finally:
        made.close()
