"""Plain HTTP on loopback in front of a real API server: what a test says goes wrong, everything else goes through.

Rule: ``rule(method, path)`` is asked for every request and answers None (pass it on), ``(status, document)`` or
``(status, document, {header: value})`` (answer that instead), a number (pass it on after so many seconds), "close" (end
the connection unasked), "lose" (pass it on and end the connection before the answer), "keep" (end the connection, and
pass it on only with ``deliver``), or ("cut", seconds) (pass it on and end the answer, a watch's, after so long).
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.fakes.tcp import TcpFake, end_connection

Rule = Callable[[str, str], Any]
TOO_MANY = {"kind": "Status", "reason": "TooManyRequests", "message": "too many requests", "code": 429}
_HOP_BY_HOP = ("transfer-encoding", "content-length", "connection", "date")


def passing(method: str, path: str) -> None:
    """Everything goes through."""


class Front(TcpFake):
    """``requests`` are (method, path) of all that came, ``answers`` (method, path, status) of all that was answered
    behind; ``rule`` may be replaced at any time.
    """

    def __init__(self, host: str, port: int, ca: str) -> None:
        self.rule: Rule = passing
        self.requests: list[tuple[str, str]] = []
        self.answers: list[tuple[str, str, int]] = []
        self._kept: list[tuple[str, str, dict[str, str], bytes]] = []
        self._behind = (host, port, ssl.create_default_context(cafile=ca))
        self._streams: set[socket.socket] = set()
        self._closed = threading.Event()
        super().__init__()

    def close(self) -> None:
        self._closed.set()
        super().close()

    def end_streams(self) -> None:
        """End every watch that is under way."""
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.shutdown(socket.SHUT_RDWR)

    def deliver(self) -> list[int]:
        """Pass on what was kept; the statuses of its answers."""
        statuses = []
        while self._kept:
            behind, answer = self._ask(*self._kept.pop(0))
            answer.read()
            statuses.append(answer.status)
            behind.close()
        return statuses

    def count(self, method: str, part: str) -> int:
        """How many requests there were of a method with ``part`` in their path."""
        return sum(1 for seen, path in self.requests if seen == method and part in path)

    def serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        try:
            while self._one(connection, stream):
                pass
        except (OSError, ValueError, http.client.HTTPException):
            pass
        finally:
            stream.close()
            self.done(connection)

    def _one(self, connection: socket.socket, stream: Any) -> bool:
        line = stream.readline().decode()
        if not line:
            return False
        headers = {}
        while text := stream.readline().decode().strip():
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.pop("content-length", 0)))
        method, path, _ = line.split(" ")
        self.requests.append((method, path))
        step = self.rule(method, path)
        if step == "close":
            return False
        if step == "keep":
            self._kept.append((method, path, headers, body))
            return False
        if isinstance(step, tuple) and step[0] != "cut":
            status, document, *more = step
            _answer(connection, status, more[0] if more else {}, json.dumps(document).encode())
            return True
        if isinstance(step, int | float) and self._closed.wait(step):
            return False
        return self._pass(connection, method, path, headers, body, step)

    def _pass(
        self, connection: socket.socket, method: str, path: str, headers: dict[str, str], body: bytes, step: Any
    ) -> bool:
        behind, answer = self._ask(method, path, headers, body)
        try:
            if step == "lose":
                answer.read()
                return False
            if "watch=1" in path and answer.status == 200:
                return self._stream(connection, behind, answer, step)
            own = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
            _answer(connection, answer.status, own, answer.read())
            return True
        finally:
            behind.close()

    def _ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
        """The connection behind, to be closed, and its answer."""
        host, port, context = self._behind
        behind = http.client.HTTPSConnection(host, port, context=context, timeout=120)
        try:
            behind.request(method, path, body=body or None, headers={**headers, "host": f"{host}:{port}"})
            answer = behind.getresponse()
            self.answers.append((method, path, answer.status))
            return behind, answer
        except BaseException:
            behind.close()
            raise

    def _stream(self, connection: socket.socket, behind: Any, answer: http.client.HTTPResponse, step: Any) -> bool:
        timer = threading.Timer(step[1], end_connection, (behind.sock,)) if isinstance(step, tuple) else None
        if timer is not None:
            timer.start()
        with self._lock:
            self._streams.add(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while data := answer.read1(65536):
                connection.sendall(b"%x\r\n" % len(data) + data + b"\r\n")
        except (OSError, ValueError, http.client.HTTPException):
            pass  # cut
        finally:
            with self._lock:
                self._streams.discard(connection)
            if timer is not None:
                timer.cancel()
        return False


def _answer(connection: socket.socket, status: int, headers: dict[str, str], body: bytes) -> None:
    lines = [f"HTTP/1.1 {status} Answer", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + body)


@contextmanager
def front_of(host: str, port: int, ca: str) -> Iterator[Front]:
    made = Front(host, port, ca)
    try:
        yield made
    finally:
        made.close()
