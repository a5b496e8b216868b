"""Answers an API server's admission reviews over TLS: ``/rbac``, ``/cluster-info``; and ``/readyz`` for the kubelet.

Rule: anybody who can reach the port may send anything; he gets a short refusal, and costs no more than a connection and
a body of BODY_BYTES for a few seconds (``daemon.http_server``). What cannot be read or decided is refused, so the API
server writes nothing.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Callable

from cni_calico.controllers.admission.certificates import KeyPair, serving_context
from cni_calico.controllers.admission.decisions import TierAuthorizer, decide_cluster_information
from cni_calico.controllers.admission.reviews import (
    AdmissionAnswer,
    UnreadableReview,
    WriteReview,
    parse_review,
    render_answer,
)
from cni_calico.daemon.http_server import RequestServer
from cni_calico.daemon.server_tls import ContextTls
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.log import Log

PORT = 6443
BODY_BYTES = 4 * 1024 * 1024  # an object is at most 1.5 MiB, and an update has two
DECIDE_S = 4.0  # the API server waits for 5
WORKERS = 8
_REASONS = {
    200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    411: "Length Required", 413: "Content Too Large",
}  # fmt: skip
_LINE = re.compile(rb"([A-Z]+) (/[!-~]*) HTTP/1\.[01]\r?\n")
_LENGTH = re.compile(rb"\n(?i:content-length):[ \t]*(\d{1,9})[ \t]*\r?\n")


class ReviewServer:
    """Listens from its first certificate on."""

    def __init__(self, port: int, tiers: TierAuthorizer, namespace: str, log: Log, client_ca: str = "") -> None:
        """``client_ca``: a file (PEM); reviews are taken of clients alone whose certificates are signed there."""
        self._wanted_port, self._client_ca, self._log = port, client_ca, log
        self._tls: ContextTls | None = None
        self._server: RequestServer | None = None
        self._deciders: dict[str, Callable[[WriteReview], AdmissionAnswer]] = {
            "/rbac": lambda review: tiers.decide(review, Deadline.after(DECIDE_S)),
            "/cluster-info": lambda review: decide_cluster_information(review, namespace),
        }

    @property
    def port(self) -> int:
        """0 before the first certificate."""
        return 0 if self._server is None else self._server.port

    def serve_with(self, pair: KeyPair) -> None:
        """Use a certificate from the next connection on. Raises OSError: it is none, or the port is taken."""
        context = serving_context(pair, self._client_ca)
        if self._tls is not None:
            self._tls.context = context
            return
        tls = ContextTls(context)
        self._server = RequestServer("", self._wanted_port, self._answer, WORKERS, tls, BODY_BYTES)
        self._tls = tls

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _answer(self, connection: socket.socket, request: bytes) -> None:
        known = not self._client_ca or (isinstance(connection, ssl.SSLSocket) and bool(connection.getpeercert()))
        code, kind, body = self.respond(request, has_certificate=known)
        head = f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)

    def respond(self, request: bytes, *, has_certificate: bool = True) -> tuple[int, str, bytes]:
        """The status, type and content that answer a request of HTTP/1.1."""
        mark = b"\r\n\r\n" if b"\r\n\r\n" in request else b"\n\n"
        head, _, body = request.partition(mark)
        head += b"\n"
        line = _LINE.match(head)
        if line is None:
            return _refusal(400, "it is no request of HTTP/1.1")
        method, path = line[1].decode(), line[2].decode().partition("?")[0]
        if path == "/readyz":
            return (200, "text/plain", b"ok\n") if method in ("GET", "HEAD") else _refusal(405, "only GET")
        decide = self._deciders.get(path)
        if decide is None:
            return _refusal(404, "there are /rbac, /cluster-info and /readyz")
        if method != "POST":
            return _refusal(405, "only POST")
        if not has_certificate:
            return _refusal(403, "show a certificate that --client-ca-file has signed")
        length = _LENGTH.search(head)
        if length is None:
            return _refusal(411, "Content-Length is missing")
        if int(length[1]) > BODY_BYTES:
            return _refusal(413, f"at most {BODY_BYTES} bytes are read")
        try:
            review = parse_review(body[: int(length[1])])
        except UnreadableReview as e:
            return _refusal(400, f"cannot read the review: {e}")
        return 200, "application/json", json.dumps(render_answer(review.uid, self._decided(decide, review))).encode()

    def _decided(self, decide: Callable[[WriteReview], AdmissionAnswer], review: WriteReview) -> AdmissionAnswer:
        try:
            answer = decide(review)
        except UnreadableReview as e:
            answer = AdmissionAnswer(f"cannot read the object: {e}", 422, "Invalid")
        except CalicoError as e:
            answer = AdmissionAnswer(f"cannot tell whether it is allowed: {e}", 500, "InternalError")
        if answer.why:
            self._log.info(f"denied to {review.asker.user}: {answer.why}")
        return answer


def _refusal(code: int, why: str) -> tuple[int, str, bytes]:
    return code, "text/plain", f"{why}\n".encode()
