"""Unary gRPC calls on one HTTP/2 connection, one after the other: as much of both as a whole answer needs.

Rule: either the answer's message comes whole, followed by headers, or the call failed. Why is not looked at: headers
are not decoded, since a server sends a unary call's message only if the call succeeded. gRPC's library can ask again.

Why not a library: importing gRPC takes 25 ms. Sources: RFC 9113, RFC 7541, gRPC's "gRPC over HTTP2".
"""

from __future__ import annotations

from cni_calico.datastore.http import Connection, Lost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from cni_calico.datastore.http import Server
    from cni_calico.deadline import Deadline

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
LARGEST_FRAME = 1 << 14  # unless the receiver allows more
LARGEST_WINDOW = (1 << 31) - 1
FIRST_WINDOW = (1 << 16) - 1
LARGEST_ANSWER = 256 << 20
_ENABLE_PUSH, _INITIAL_WINDOW_SIZE = 2, 4
_PREFIX = 5  # before a gRPC message: whether it is compressed, its length


def render_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _setting(name: int, value: int) -> bytes:
    return name.to_bytes(2, "big") + value.to_bytes(4, "big")


# Sent first: no pushes, and the server need not wait for us to take what it has sent.
OPENING = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + render_frame(SETTINGS, 0, 0, _setting(_ENABLE_PUSH, 0) + _setting(_INITIAL_WINDOW_SIZE, LARGEST_WINDOW))
    + render_frame(WINDOW_UPDATE, 0, 0, (LARGEST_WINDOW - FIRST_WINDOW).to_bytes(4, "big"))
)


class UnaryConnection:
    """A connection to a gRPC server. One thread at a time."""

    def __init__(self, server: Server, deadline: Deadline) -> None:
        """Raises NotSent."""
        self._scheme = "https" if server.tls else "http"
        self._authority = server.authority
        self._connection = Connection(server, deadline)
        self._unsent = OPENING
        self._stream = 1

    def call(self, path: str, message: bytes, metadata: Mapping[str, str], deadline: Deadline) -> bytes:
        """The answer's message. Raises Lost."""
        stream, self._stream = self._stream, self._stream + 2
        headers = render_headers(self._scheme, self._authority, path, metadata)
        body = b"\0" + len(message).to_bytes(4, "big") + message
        if max(len(headers), len(body)) > LARGEST_FRAME:
            raise Lost("the request does not fit into one frame")
        frames = render_frame(HEADERS, END_HEADERS, stream, headers) + render_frame(DATA, END_STREAM, stream, body)
        self._connection.send(self._unsent + frames, b"", deadline)
        self._unsent = b""
        return parse_message(self._received(stream, deadline))

    def _received(self, stream: int, deadline: Deadline) -> bytes:
        """The data of a stream up to the headers that end it. Raises Lost."""
        parts: list[bytes] = []
        left = LARGEST_ANSWER
        while left >= 0:
            kind, flags, where, payload = self._frame(deadline)
            if kind == GOAWAY or (kind == RST_STREAM and where == stream):
                raise Lost("the server ended the call")
            if kind in (SETTINGS, PING) and not flags & ACK:
                echo = payload if kind == PING else b""
                self._connection.send(render_frame(kind, ACK, 0, echo), b"", deadline)
            if where == stream and kind == HEADERS and flags & END_STREAM:
                return b"".join(parts)
            if where == stream and kind == DATA:
                parts.append(_unpadded(flags, payload))
                left -= len(payload)
                if flags & END_STREAM:
                    raise Lost("the answer has no status")
        raise Lost("the answer is too long")

    def _frame(self, deadline: Deadline) -> tuple[int, int, int, bytes]:
        """(type, flags, stream, payload)."""
        head = self._connection.exactly(9, deadline)
        length = int.from_bytes(head[:3], "big")
        if length > LARGEST_FRAME:
            raise Lost("the answer is not HTTP/2")
        stream = int.from_bytes(head[5:], "big") & LARGEST_WINDOW  # the highest bit is reserved
        return head[3], head[4], stream, self._connection.exactly(length, deadline)

    def close(self) -> None:
        self._connection.close()


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Lost("a frame has more padding than content")
    return payload[1 : len(payload) - payload[0]]


def parse_message(data: bytes) -> bytes:
    """The only message in the data of a stream. Raises Lost."""
    if len(data) < _PREFIX or data[0] != 0 or int.from_bytes(data[1:_PREFIX], "big") != len(data) - _PREFIX:
        raise Lost("the call has no answer")
    return data[_PREFIX:]


def render_headers(scheme: str, authority: str, path: str, metadata: Mapping[str, str]) -> bytes:
    """The headers of a call; those without an entry in HPACK's static table are literals that no table remembers."""
    named = {"te": "trailers", **metadata}
    return (
        bytes((0x83, 0x87 if scheme == "https" else 0x86))  # POST and the scheme
        + b"\x04"
        + _text(path)
        + b"\x01"
        + _text(authority)
        + b"\x0f\x10"  # content-type
        + _text("application/grpc")
        + b"".join(b"\x10" + _text(name) + _text(value) for name, value in named.items())
    )


def _text(text: str) -> bytes:
    """A text as HPACK has it: its length, seven bits of it in the first byte, and the text."""
    data = text.encode()
    length = len(data)
    if length < 0x7F:
        return bytes((length,)) + data
    length -= 0x7F
    encoded = bytearray((0x7F,))
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded) + data
