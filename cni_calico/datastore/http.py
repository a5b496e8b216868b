"""HTTP/1.1 to one server, over TCP, TLS or a Unix socket: pooled connections, whole answers, streams, limited waits.

Rule: this file knows HTTP and nothing about Kubernetes. For every failure it says whether the request can have reached
the server (``Lost``) or not (``NotSent``), because a write may be repeated only in the second case.

Why not a library: importing urllib3 takes 60 ms and http.client 25, which a CNI call without the resident server would
pay each time; what the API server needs is the few lines below. Source: RFC 9112.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from ssl import SSLContext
from typing import Any

from cni_calico.datastore.dial import connect, connect_unix
from cni_calico.deadline import Deadline

CONNECT_TIMEOUT_S = 4.0
HEAD_LIMIT = 64 * 1024
BODY_LIMIT = 512 * 1024 * 1024
_CHUNK = 64 * 1024
_DIGITS_MAX = 16
_SWITCHING = 101


class HTTPFailure(OSError):
    """No usable answer; the text is the cause."""


class NotSent(HTTPFailure):
    """The server cannot have processed the request."""


class Lost(HTTPFailure):
    """The request was sent, at least in part; it is unknown whether the server processed it."""


class Server:
    """Where requests go. ``tls`` None: plain HTTP. ``proxy``: (host, port) of an HTTP proxy that can CONNECT. ``path``:
    of a Unix socket, in the place of host and port.

    ``peer``: a common name and a URI; the server's certificate must have one of them. ("", ""): it must have the host's
    name.
    """

    __slots__ = ("base", "host", "path", "peer", "port", "proxy", "proxy_authorization", "server_name", "tls")

    def __init__(
        self,
        host: str,
        port: int,
        *,
        base: str = "",
        tls: SSLContext | None = None,
        server_name: str = "",
        peer: tuple[str, str] = ("", ""),
        proxy: tuple[str, int] | None = None,
        proxy_authorization: str = "",
        path: str = "",
    ) -> None:
        self.host = host
        self.path = path
        self.port = port
        self.base = base
        self.tls = tls
        self.server_name = server_name or host
        self.peer = peer
        self.proxy = proxy
        self.proxy_authorization = proxy_authorization

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class HttpAnswer:
    """A whole answer. Header names are lower case."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class Connection:
    """One connection, one request at a time."""

    def __init__(self, server: Server, deadline: Deadline) -> None:
        self._buffer = b""
        self.reusable = True
        self.gzipped = self._is_last = False  # of the answer that is being read; nothing may be asked after the last
        try:
            self._socket, self._decrypted = _connect(server, deadline)
        except TimeoutError as e:
            cause = "" if e.errno is not None or str(e) == "timed out" else f": {e}"
            raise NotSent(f"no connection to {server.authority} in time{cause}") from e
        except OSError as e:
            raise NotSent(f"no connection to {server.authority}: {e.strerror or e}") from e

    def fresh(self) -> bool:
        """Whether the server has left the idle connection open: one that became readable while idle was closed."""
        if self._buffer:
            return False
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        try:
            self._socket.close()
        except OSError:
            pass

    def interrupt(self) -> None:
        """End another thread's read, to which the connection then looks lost."""
        try:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS's own would take its state from the reader
        except OSError:
            pass

    def send(self, head: bytes, body: bytes, deadline: Deadline) -> None:
        """Raises Lost."""
        self.reusable = False
        try:
            self._socket.settimeout(_left(deadline))
            self._socket.sendall(head + body)
        except OSError as e:
            raise Lost(f"connection lost while sending: {e.strerror or e}") from e

    def read_head(self, deadline: Deadline) -> tuple[int, dict[str, str]]:
        """Status and headers of the next final answer, which 101 is: no HTTP comes after it. Raises Lost."""
        while True:
            while b"\r\n\r\n" not in self._buffer:
                if len(self._buffer) > HEAD_LIMIT:
                    raise Lost("the answer's head is too long")
                self._fill(deadline)
            head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            status, headers = parse_head(head)
            if status >= 200 or status == _SWITCHING:
                self.gzipped = headers.get("content-encoding", "").lower() == "gzip"
                self._is_last = headers.get("connection", "").lower() == "close"
                return status, headers

    def read_body(self, status: int, headers: Mapping[str, str], deadline: Deadline, limit: int = BODY_LIMIT) -> bytes:
        """The whole body, of at most ``limit`` bytes; the connection is reusable afterwards unless the server closes
        it. Raises Lost.
        """
        if status in (204, 304):
            body = b""
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            body = b"".join(self.chunks(lambda: deadline, limit))
        elif "content-length" in headers:
            body = self.exactly(_length(headers["content-length"], limit), deadline)
        else:
            return self._rest(deadline, limit)
        self.reusable = not self._is_last
        return body

    def chunks(self, deadline: Callable[[], Deadline], limit: int | None = BODY_LIMIT) -> Iterator[bytes]:
        """The chunks of a body as they arrive; after them the connection is reusable unless the server closes it.
        ``deadline`` is called before each wait, ``limit`` is the most bytes (None: any number). Raises Lost.
        """
        total = 0
        while True:
            size = _chunk_size(self._line(deadline()))
            total += size
            if limit is not None and total > limit:
                raise Lost("the answer is too long")
            if size == 0:
                while self._line(deadline()):
                    continue  # trailers
                self.reusable = not self._is_last
                return
            data = self.exactly(size + 2, deadline())
            if data[-2:] != b"\r\n":
                raise Lost("a chunk of the answer does not end where it should")
            yield data[:-2]

    def buffered(self) -> bool:
        """Whether something can be read without waiting for the network."""
        return bool(self._buffer or self._decrypted())

    def fileno(self) -> int:
        return self._socket.fileno()

    def _fill(self, deadline: Deadline) -> None:
        try:
            self._socket.settimeout(_left(deadline))
            data = self._socket.recv(_CHUNK)
        except TimeoutError as e:
            raise Lost("no answer in time") from e
        except OSError as e:
            raise Lost(f"connection lost: {e.strerror or e}") from e
        if not data:
            raise Lost("the server closed the connection")
        self._buffer += data

    def _line(self, deadline: Deadline) -> bytes:
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > HEAD_LIMIT:
                raise Lost("a line of the answer is too long")
            self._fill(deadline)
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def exactly(self, size: int, deadline: Deadline) -> bytes:
        """The next so many bytes. Raises Lost."""
        parts, missing = [self._buffer[:size]], size - len(self._buffer)
        self._buffer = self._buffer[size:]
        while missing > 0:
            self._fill(deadline)
            part, self._buffer = self._buffer[:missing], self._buffer[missing:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _rest(self, deadline: Deadline, limit: int) -> bytes:
        parts = [self._buffer]
        self._buffer = b""
        while sum(map(len, parts)) <= limit:
            try:
                self._socket.settimeout(_left(deadline))
                data = self._socket.recv(_CHUNK)
            except OSError as e:
                raise Lost(f"connection lost: {e.strerror or e}") from e
            if not data:
                return b"".join(parts)
            parts.append(data)
        raise Lost("the answer is too long")


class ConnectionPool:
    """Idle connections to one server; the last one given back is the first one borrowed."""

    def __init__(self, server: Server, *, limit: int = 32) -> None:
        self.server = server
        self._limit = limit
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def borrow(self, deadline: Deadline) -> Connection:
        """Raises NotSent."""
        if (found := self.borrow_idle()) is None and self._closed:
            raise NotSent("it has been closed")
        return found or Connection(self.server, deadline)

    def borrow_idle(self) -> Connection | None:
        """One that has been used before; the server may close it before it has the next request."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None or connection.fresh():
                return connection
            connection.close()

    def give_back(self, connection: Connection) -> None:
        with self._lock:
            if connection.reusable and not self._closed and len(self._idle) < self._limit:
                self._idle.append(connection)
                return
        connection.close()

    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, deadline: Deadline
    ) -> HttpAnswer:
        """One request and its whole answer. Raises NotSent, Lost."""
        connection = self.borrow(deadline)
        try:
            connection.send(render_head(self.server, method, path, headers, len(body)), body, deadline)
            status, answer_headers = connection.read_head(deadline)
            data = connection.read_body(status, answer_headers, deadline)
        except BaseException:
            connection.close()
            raise
        self.give_back(connection)
        return HttpAnswer(status, answer_headers, data)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def render_head(server: Server, method: str, path: str, headers: Mapping[str, str], length: int) -> bytes:
    """A request's head. Header values come from credentials: a line break in one must not start a new header."""
    lines = [f"{method} {server.base}{path} HTTP/1.1", f"Host: {server.authority}"]
    for name, value in headers.items():
        if "\r" in value or "\n" in value:
            raise NotSent(f"the value of header {name} has a line break")
        lines.append(f"{name}: {value}")
    if length or method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers. Raises Lost for what is not an HTTP answer."""
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ", 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not _is_number(parts[1], 3):
        raise Lost(f"the answer is not HTTP: {lines[0][:80]!r}")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(parts[1]), headers


def _is_number(text: str, digits: int) -> bool:
    """Whether HTTP writes a number so: int() accepts signs and underscores, and refuses very long ones by itself."""
    return text.isascii() and text.isdecimal() and len(text) <= digits


def _length(text: str, limit: int) -> int:
    if not _is_number(text, _DIGITS_MAX) or int(text) > limit:
        raise Lost(f"the answer has content-length {text[:20]!r}")
    return int(text)


def _chunk_size(line: bytes) -> int:
    size = line.partition(b";")[0].strip()
    if not 0 < len(size) <= _DIGITS_MAX or size.strip(b"0123456789abcdefABCDEF"):
        raise Lost(f"a chunk of the answer has size {line[:20]!r}")
    return int(size, 16)


def _left(deadline: Deadline) -> float:
    left = deadline.remaining_s()
    if left <= 0:
        raise TimeoutError("no time left")
    return left


def _connect(server: Server, deadline: Deadline) -> tuple[socket.socket, Callable[[], int]]:
    """The socket, and how many bytes of what it has received wait decrypted."""
    if server.path:
        return connect_unix(server.path, deadline.sooner(CONNECT_TIMEOUT_S)), lambda: 0
    host, port = server.proxy or (server.host, server.port)
    raw = connect(host, port, deadline, timeout_s=CONNECT_TIMEOUT_S)
    limit = deadline.sooner(CONNECT_TIMEOUT_S)
    try:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # a peer that vanished (node crash, dropped NAT entry) must not hold an idle watch forever
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        if server.proxy is not None:
            _tunnel(raw, server, limit)
        if server.tls is None:
            return raw, lambda: 0
        raw.settimeout(_left(limit))
        wrapped = server.tls.wrap_socket(raw, server_hostname=server.server_name)
        if any(server.peer) and not names_peer(wrapped.getpeercert(), *server.peer):
            wrapped.close()
            raise OSError(f"the server's certificate does not have the name {' or '.join(filter(None, server.peer))}")
        return wrapped, wrapped.pending
    except BaseException:
        raw.close()
        raise


def names_peer(certificate: Mapping[str, Any] | None, common_name: str, uri: str) -> bool:
    """Whether a certificate (as ssl returns it) has this common name, or this URI among its alternative names."""
    if not certificate:
        return False
    subject = certificate.get("subject") or ()
    if common_name and any(pair == ("commonName", common_name) for relative in subject for pair in relative):
        return True
    return bool(uri) and ("URI", uri) in (certificate.get("subjectAltName") or ())


def _tunnel(raw: socket.socket, server: Server, limit: Deadline) -> None:
    raw.settimeout(_left(limit))
    login = f"Proxy-Authorization: {server.proxy_authorization}\r\n" if server.proxy_authorization else ""
    raw.sendall(f"CONNECT {server.authority} HTTP/1.1\r\nHost: {server.authority}\r\n{login}\r\n".encode())
    answer = b""
    # reading byte by byte would be exact; a proxy sends nothing beyond its head before we do
    while b"\r\n\r\n" not in answer:
        data = raw.recv(4096)
        if not data or len(answer) > HEAD_LIMIT:
            raise OSError("the proxy closed the connection")
        answer += data
    status, _ = parse_head(answer.partition(b"\r\n\r\n")[0])
    if status != 200:
        raise OSError(f"the proxy answered CONNECT with {status}")
