"""What a server may send on a connection, and what is taken for a call that failed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from cni_calico.datastore.etcd.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LARGEST_FRAME,
    OPENING,
    PADDED,
    PING,
    RST_STREAM,
    SETTINGS,
    UnaryConnection,
    render_frame,
    render_headers,
)
from cni_calico.datastore.http import Lost, Server
from tests.deadlines import soon

CONTINUATION = 9
MESSAGE = b"\0\0\0\0\x05hello"
BEGIN = render_frame(HEADERS, END_HEADERS, 1, b"\x88")
END = render_frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0")
WHOLE = BEGIN + render_frame(DATA, 0, 1, MESSAGE) + END


@pytest.fixture
def etcds_listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def read_request(connection: socket.socket) -> bytes:
    """Everything up to the frame that ends a stream."""
    stream = connection.makefile("rb")
    received = b""
    while True:
        if not received:
            received = stream.read(24)
        head = stream.read(9)
        payload = stream.read(int.from_bytes(head[:3], "big"))
        received += head + payload
        if head[3] == DATA and head[4] & END_STREAM:
            return received


def ask(etcds_listener: socket.socket, serve: Callable[[socket.socket], None]) -> bytes:
    """What a client makes of a server that does so when it has been asked."""

    def accept() -> None:
        connection, _ = etcds_listener.accept()
        with connection:
            read_request(connection)
            serve(connection)

    thread = threading.Thread(target=accept)
    thread.start()
    client = UnaryConnection(Server(*etcds_listener.getsockname()), soon())
    try:
        return client.call("/a.B/C", b"question", {}, soon())
    finally:
        client.close()
        thread.join()


def answer(etcds_listener: socket.socket, data: bytes) -> bytes:
    return ask(etcds_listener, lambda connection: connection.sendall(data))


@pytest.mark.parametrize(
    "data",
    [
        WHOLE,
        # in parts, one of them empty, one with padding
        BEGIN + render_frame(DATA, 0, 1, MESSAGE[:3]) + render_frame(DATA, 0, 1)
        + render_frame(DATA, PADDED, 1, b"\x02" + MESSAGE[3:] + b"\0\0") + END,
        # what belongs to others: settings, windows, another stream, kinds of frames that are not known
        render_frame(SETTINGS, ACK, 0) + render_frame(8, 0, 0, b"\0\0\1\0") + render_frame(DATA, 0, 3, b"x")
        + render_frame(RST_STREAM, 0, 3, bytes(4)) + render_frame(0xAA, 0xFF, 1, b"grease") + WHOLE,
        # headers that go on in a second frame
        render_frame(HEADERS, 0, 1, b"\x88") + render_frame(CONTINUATION, END_HEADERS, 1, b"\x88") + WHOLE[len(BEGIN):],
    ],
)  # fmt: skip
def test_a_message_that_has_come_whole(etcds_listener: socket.socket, data: bytes) -> None:
    assert answer(etcds_listener, data) == b"hello"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        WHOLE[: -len(END)],  # the end is missing: there may be an error behind it
        render_frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0"),  # trailers only: an error
        BEGIN + render_frame(DATA, 0, 1, MESSAGE[:-1]) + END,
        BEGIN + render_frame(DATA, 0, 1, MESSAGE + MESSAGE) + END,
        BEGIN + render_frame(DATA, 0, 1, b"\1" + MESSAGE[1:]) + END,  # compressed
        BEGIN + render_frame(DATA, END_STREAM, 1, MESSAGE),  # no headers behind it, which have the status
        BEGIN + render_frame(DATA, PADDED, 1, b"\x0a" + MESSAGE) + END,
        BEGIN + render_frame(DATA, PADDED, 1) + END,
        BEGIN + render_frame(RST_STREAM, 0, 1, bytes(4)),
        render_frame(GOAWAY, 0, 0, bytes(8)) + WHOLE,
        BEGIN + render_frame(DATA, 0, 1, bytes(LARGEST_FRAME + 1)) + END,
    ],
)
def test_a_call_without_an_answer(etcds_listener: socket.socket, data: bytes) -> None:
    with pytest.raises(Lost):
        answer(etcds_listener, data)


def test_settings_and_pings_are_answered(etcds_listener: socket.socket) -> None:
    echoed = render_frame(SETTINGS, ACK, 0) + render_frame(PING, ACK, 0, b"12345678")
    received: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        connection.sendall(render_frame(SETTINGS, 0, 0) + render_frame(PING, 0, 0, b"12345678"))
        received.append(connection.recv(len(echoed), socket.MSG_WAITALL))
        connection.sendall(WHOLE)

    assert ask(etcds_listener, serve) == b"hello"
    assert received == [echoed]


def test_each_call_has_a_stream_of_its_own(etcds_listener: socket.socket) -> None:
    requests: list[bytes] = []

    def serve() -> None:
        connection, _ = etcds_listener.accept()
        with connection:
            for stream in (1, 3):
                requests.append(connection.recv(65536))
                connection.sendall(
                    render_frame(DATA, 0, stream, MESSAGE) + render_frame(HEADERS, END_STREAM, stream, b"\0")
                )

    thread = threading.Thread(target=serve)
    thread.start()
    client = UnaryConnection(Server(*etcds_listener.getsockname()), soon())
    assert [client.call("/a.B/C", b"question", {}, soon()) for _ in range(2)] == [b"hello"] * 2
    client.close()
    thread.join()
    assert requests[0].startswith(OPENING) and OPENING not in requests[1]
    question = b"\0\0\0\0\x08question"
    assert requests[0].endswith(render_frame(DATA, END_STREAM, 1, question))
    assert requests[1].endswith(render_frame(DATA, END_STREAM, 3, question))


def test_a_request_that_is_too_large_is_not_sent(etcds_listener: socket.socket) -> None:
    client = UnaryConnection(Server(*etcds_listener.getsockname()), soon())
    with pytest.raises(Lost, match="fit"):
        client.call("/a.B/C", bytes(LARGEST_FRAME), {}, soon())
    client.close()


def decoded(headers: bytes) -> list[tuple[bytes, bytes]]:
    """By RFC 7541, as far as requests use it: entries of the static table, and literals without Huffman's code."""
    static = {1: (b":authority", b""), 3: (b":method", b"POST"), 4: (b":path", b"/"), 6: (b":scheme", b"http"),
              7: (b":scheme", b"https"), 31: (b"content-type", b"")}  # fmt: skip
    at, found = 0, []

    def number(bits: int) -> int:
        nonlocal at
        value, at = headers[at] & (1 << bits) - 1, at + 1
        if value == (1 << bits) - 1:
            shift = 0
            while True:
                byte, at = headers[at], at + 1
                value += (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
        return value

    def text() -> bytes:
        nonlocal at
        assert headers[at] < 0x80, "Huffman's code"
        length = number(7)
        at += length
        return headers[at - length : at]

    while at < len(headers):
        if headers[at] & 0x80:
            found.append(static[number(7)])
            continue
        assert headers[at] & 0xE0 == 0, "an entry of the dynamic table"
        index = number(4)
        name = static[index][0] if index else text()
        found.append((name, text()))
    return found


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 300, 16000])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_headers(scheme: str, length: int) -> None:
    token = "t" * length
    assert decoded(render_headers(scheme, "[::1]:2379", "/a.B/C", {"token": token})) == [
        (b":method", b"POST"),
        (b":scheme", scheme.encode()),
        (b":path", b"/a.B/C"),
        (b":authority", b"[::1]:2379"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        (b"token", token.encode()),
    ]
