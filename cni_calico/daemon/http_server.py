"""A few small pages over HTTP, for anyone who can reach the port: probes, Prometheus, and any pod.

Rule: the number of connections is limited, and each is kept for a few seconds at most, unless what answers it keeps it
longer. A connection that has not sent its request waits in one thread and costs a descriptor; when the limit is reached
the oldest is closed, so that idle connections cannot keep probes out. Nothing about a single connection is logged.
"""

from __future__ import annotations

import queue
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

Page = Callable[[], tuple[int, str, bytes]]  # status, content type, body

TEXT = "text/plain; charset=utf-8"
PLACES = 64  # connections whose request has not arrived yet; as many again may wait for their answer
WORKERS = 4
REQUEST_S, ANSWER_S = 5.0, 5.0
CLOSE_S = 0.5
REQUEST_BYTES = 8192
_PAUSE_S = 0.1  # while there are no descriptors, the listener stays readable
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}
_PAIRS = {"localhost": ("127.0.0.1", "::1"), "": ("0.0.0.0", "::")}


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """What serves over TLS (PEM). ``clients``: "required", "optional" or "none", their certificates; ``ca``: who must
    have signed these, "" for the system's authorities.
    """

    certificate: str
    key: str
    ca: str = ""
    clients: str = "required"


class Tls(Protocol):
    """How connections are secured (server_tls.py)."""

    def wrap(self, connection: socket.socket) -> socket.socket:
        """The connection, whose handshake is done by ``receive``. Raises OSError."""

    def receive(self, connection: socket.socket, size: int) -> bytes:
        """Raises BlockingIOError while nothing has come, OSError."""


@dataclass(slots=True)
class _Waiting:
    """A connection whose request is being read; ``until`` is when it is given up."""

    until: float
    data: bytearray = field(default_factory=bytearray)
    size: int = 0  # of the whole request, once its head has come


class RequestServer:
    """Has ``answer`` called in a thread with each connection and its request: its head, and a body of at most
    ``body_bytes``. "localhost" means 127.0.0.1 and ::1, "" every address of both families.

    Without IPv6 the IPv4 address alone is enough; ``missing`` then says why. With ``tls`` only those are answered whose
    handshake succeeds; it counts as part of the request.
    """

    def __init__(
        self,
        host: str,
        port: int,
        answer: Callable[[socket.socket, bytes], None],
        workers: int = WORKERS,
        tls: Tls | None = None,
        body_bytes: int = 0,
    ) -> None:
        """Raises OSError if the address cannot be used."""
        self.missing = ""
        self._tls = tls
        self._body_bytes = body_bytes
        self._answer_to = answer
        self._listeners = self._listen(host, port)
        self._waiting: dict[socket.socket, _Waiting] = {}  # in the order of their arrival
        self._complete: queue.Queue[tuple[socket.socket, bytes] | None] = queue.Queue(PLACES)
        self._stopping = threading.Event()
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._threads = [threading.Thread(target=self._run, name=f"http-{self.port}", daemon=True)]
        self._threads += [
            threading.Thread(target=self._answer, name=f"http-{self.port}-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def port(self) -> int:
        return int(self._listeners[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening, and drop what has not been answered."""
        self._stopping.set()
        self._stop_writer.close()
        limit = time.monotonic() + CLOSE_S
        for thread in self._threads:  # a thread may still be sending; it ends with the process
            thread.join(max(0.0, limit - time.monotonic()))

    def _listen(self, host: str, port: int) -> list[socket.socket]:
        pair = _PAIRS.get(host)
        if pair is None:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return [_bound(socket.AddressFamily(family), str(address[0]), port)]
        first = _bound(socket.AF_INET, pair[0], port)
        try:
            return [first, _bound(socket.AF_INET6, pair[1], int(first.getsockname()[1]))]
        except OSError as e:
            self.missing = f"[{pair[1]}]: {e.strerror or e}"
            return [first]

    # -- one thread reads all requests --------------------------------------------------------------------------------

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for listener in (*self._listeners, self._stop_reader):
                selector.register(listener, selectors.EVENT_READ)
            while not self._stopping.is_set():
                for key, _ in selector.select(self._patience()):
                    found = key.fileobj
                    assert isinstance(found, socket.socket)
                    if found in self._listeners:
                        self._accept(found, selector)
                    elif found in self._waiting:  # otherwise it was closed in this round
                        self._read(found, selector)
                now = time.monotonic()
                for connection in [c for c, waiting in self._waiting.items() if waiting.until <= now]:
                    self._drop(connection, selector)
            for connection in list(self._waiting):
                self._drop(connection, selector)
        for listener in (*self._listeners, self._stop_reader):
            listener.close()
        for _ in self._threads[1:]:
            self._complete.put(None)

    def _patience(self) -> float | None:
        first = next(iter(self._waiting.values()), None)
        return None if first is None else max(0.0, first.until - time.monotonic())

    def _accept(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            self._stopping.wait(_PAUSE_S)
            return
        if len(self._waiting) >= PLACES:
            self._drop(next(iter(self._waiting)), selector)
        connection.setblocking(False)
        if self._tls is not None:
            try:
                connection = self._tls.wrap(connection)
            except OSError:
                connection.close()
                return
        self._waiting[connection] = _Waiting(time.monotonic() + REQUEST_S)
        selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        waiting = self._waiting[connection]
        data = waiting.data
        try:
            part = connection.recv(REQUEST_BYTES) if self._tls is None else self._tls.receive(connection, REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        data += part
        waiting.size = waiting.size or _size_of(data, self._body_bytes)
        if not part or len(data) > (waiting.size if waiting.size > REQUEST_BYTES else REQUEST_BYTES):
            self._drop(connection, selector)
        elif waiting.size and len(data) >= waiting.size:
            selector.unregister(connection)
            del self._waiting[connection]
            try:
                self._complete.put_nowait((connection, bytes(data)))
            except queue.Full:
                connection.close()

    def _drop(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        selector.unregister(connection)
        del self._waiting[connection]
        connection.close()

    # -- a few threads answer -----------------------------------------------------------------------------------------

    def _answer(self) -> None:
        while (item := self._complete.get()) is not None:
            connection, request = item
            with connection, suppress(OSError):
                connection.settimeout(ANSWER_S)
                self._answer_to(connection, request)


class PageServer(RequestServer):
    """Serves ``pages`` by path."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page], tls: Tls | None = None) -> None:
        """Raises OSError if the address cannot be used."""
        self._pages = pages
        super().__init__(host, port, lambda connection, request: connection.sendall(self._render(request)), tls=tls)

    def _render(self, request: bytes) -> bytes:
        words = request.partition(b"\n")[0].split()
        if len(words) < 2:
            return _render(400, TEXT, b"bad request\n", "")
        method = words[0].decode("latin-1")
        page = self._pages.get(words[1].decode("latin-1").partition("?")[0])
        if method not in ("GET", "HEAD"):
            return _render(405, TEXT, b"only GET\n", method)
        if page is None:
            return _render(404, TEXT, b"not found\n", method)
        try:
            return _render(*page(), method)
        except Exception as e:  # the agent continues, and the client gets the reason
            return _render(500, TEXT, f"{type(e).__name__}: {e}\n".encode(), method)


def _size_of(data: bytearray, body_bytes: int) -> int:
    """How long the request is with its body; 0 while its head is incomplete, or if the body is too long."""
    ends = [place + len(mark) for mark in (b"\r\n\r\n", b"\n\n") if (place := data.find(mark)) >= 0]
    if not ends:
        return 0
    head = min(ends)
    if not body_bytes:
        return head
    length = re.search(rb"\n(?i:content-length):[ \t]*(\d{1,9})[ \t]*\r?\n", data[:head])
    size = int(length[1]) if length else 0
    return head + size if size <= body_bytes else head


def _bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(PLACES)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _render(code: int, kind: str, body: bytes, method: str) -> bytes:
    head = f"HTTP/1.1 {code} {_REASONS.get(code, 'Service Unavailable')}\r\nContent-Type: {kind}\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode("latin-1") + (b"" if method == "HEAD" else body)
