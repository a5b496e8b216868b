"""An HTTP server that answers what a test tells it, request by request, on loopback.

A step is ``(status, body)``, ``(status, body, {header: value})``, "close" (end the connection without an answer),
"hang" (keep it open and say nothing) or a list of chunks: the events of a watch, "hang" among them keeps it open.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.tcp import TcpFake

REASONS = {200: "OK", 201: "Created"}


class Scripted(TcpFake):
    """Steps are taken in the order of the requests, then ``always`` again and again; ``requests`` are (method, path,
    headers, body). ``tls``: a certificate and its key.
    """

    def __init__(
        self,
        steps: Sequence[Any],
        *,
        always: Any = (500, {"message": "the script is over"}),
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self._tls = None if tls is None else _tls_context(tls)
        self.steps = list(steps)
        self.always = always
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        super().__init__()
        if tls is not None:
            self.url = f"https://127.0.0.1:{self.port}"

    def change_certificate(self, tls: tuple[Path, Path]) -> None:
        """Go on with another one; connections end."""
        self._tls = _tls_context(tls)
        self.drop()

    def serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self.keep(connection)
            stream = connection.makefile("rb")
            while self._one(connection, stream):
                pass
        except (OSError, ValueError):
            pass

    def _one(self, connection: socket.socket, stream: Any) -> bool:
        line = stream.readline()
        if not line:
            return False
        headers = {}
        while (header := stream.readline().decode().strip()) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.get("content-length", 0)))
        method, path, _ = line.decode().split(" ")
        with self._lock:
            self.requests.append((method, path, headers, body))
            step = self.steps.pop(0) if self.steps else self.always
        return self._answer(connection, step)

    def _answer(self, connection: socket.socket, step: Any) -> bool:
        if callable(step):
            step = step()
        if step == "hang":
            return True
        if step == "close":
            connection.shutdown(socket.SHUT_RDWR)
            return False
        if isinstance(step, bytes):
            connection.sendall(step)
            return True
        if isinstance(step, list):
            return self._stream(connection, step)
        status, body, *more = step
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'No')}", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in (more[0] if more else {}).items()]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + data)
        return True

    def _stream(self, connection: socket.socket, events: Sequence[Any]) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in events:
            if event == "hang":
                return True
            data = event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n"
            connection.sendall(b"%x\r\n" % len(data) + data + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        return True


def _tls_context(tls: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*tls)
    return context


@contextmanager
def scripted(*steps: Any, **options: Any) -> Iterator[Scripted]:
    server = Scripted(steps, **options)
    try:
        yield server
    finally:
        server.close()
