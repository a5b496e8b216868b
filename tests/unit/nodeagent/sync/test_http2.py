"""HTTP/2 at the server's end: frames as clients may send them, and as none should."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hpack import Decoder, Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.nodeagent.sync import http2
from cni_calico.nodeagent.sync.http2 import (
    BrokenProtocol,
    CallReceived,
    Http2Connection,
    StreamLeft,
    StreamOpened,
)

DATA, HEADERS, PRIORITY, RST, SETTINGS, PROMISE, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 1, 1, 4, 8, 32
PATH = "/felix.PolicySync/Sync"
HEAD = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "localhost"),
    ("content-type", "application/grpc+proto"),
    ("te", "trailers"),
)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY = bytes(5)  # a message of no bytes


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def block(*fields: tuple[str, str]) -> bytes:
    return Encoder().encode(fields or HEAD)


def window(stream: int, more: int) -> bytes:
    return frame(WINDOW, 0, stream, struct.pack(">I", more))


HELLO = PREFACE + frame(SETTINGS)
CALL = frame(HEADERS, END_HEADERS, 1, block()) + frame(DATA, END_STREAM, 1, EMPTY)


def read(sent: bytes) -> list[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of what the server has sent."""
    frames = []
    while sent:
        end = 9 + int.from_bytes(sent[:3])
        frames.append((sent[3], sent[4], int.from_bytes(sent[5:9]), sent[9:end]))
        sent = sent[end:]
    return frames


def greeted(*, forgetful: bool = True) -> Http2Connection:
    connection = Http2Connection()
    assert connection.receive(HELLO + (frame(SETTINGS, ACK) if forgetful else b"")) == []
    connection.take()
    return connection


def status_of(connection: Http2Connection) -> dict[str, str]:
    """Of the call that has been answered."""
    found: dict[str, str] = {}
    decoder = Decoder()
    for kind, _, _, payload in read(connection.take()):
        if kind == HEADERS:
            found |= {str(name): str(value) for name, value in decoder.decode(payload)}
    return found


def test_a_call_is_the_same_in_any_pieces() -> None:
    for size in (1, 7, 1000):
        connection, events = Http2Connection(), []
        data = HELLO + CALL
        for at in range(0, len(data), size):
            events += connection.receive(data[at : at + size])
        assert events == [StreamOpened(1), CallReceived(1, PATH, b"")]
        kinds = [kind for kind, *_ in read(connection.take())]
        assert kinds == [SETTINGS, SETTINGS]


def test_headers_in_parts_with_padding_and_a_priority() -> None:
    whole = block()
    parts = bytes((3,)) + struct.pack(">IB", 0, 200) + whole[:4] + bytes(3)
    sent = frame(HEADERS, PADDED | WITH_PRIORITY, 1, parts) + frame(CONTINUATION, 0, 1, whole[4:9])
    sent += frame(CONTINUATION, END_HEADERS, 1, whole[9:]) + frame(PRIORITY, 0, 1, bytes(5))
    sent += frame(DATA, PADDED, 1, b"\2\0\0" + bytes(2)) + frame(DATA, 0, 1, b"\0\0\3abc")
    assert greeted().receive(sent) == [StreamOpened(1), CallReceived(1, PATH, b"abc")]


def test_headers_are_remembered_until_the_peer_knows_that_they_are_not() -> None:
    connection, encoder = greeted(forgetful=False), Encoder()
    for stream in (1, 3):  # by number, the second time
        sent = frame(HEADERS, END_HEADERS, stream, encoder.encode(HEAD)) + frame(DATA, END_STREAM, stream, EMPTY)
        assert connection.receive(sent) == [StreamOpened(stream), CallReceived(stream, PATH, b"")]
    encoder.header_table_size = 0
    sent = frame(SETTINGS, ACK) + frame(HEADERS, END_HEADERS, 5, encoder.encode(HEAD))
    assert connection.receive(sent + frame(DATA, END_STREAM, 5, EMPTY)) == [StreamOpened(5), CallReceived(5, PATH, b"")]
    with pytest.raises(BrokenProtocol, match="Invalid table index"):
        connection.receive(frame(HEADERS, END_HEADERS, 7, b"\xbe"))  # the first that would be remembered


def test_no_more_is_sent_than_the_peer_takes() -> None:
    connection = greeted()
    connection.receive(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 10)) + CALL)
    connection.begin(1)
    assert connection.room(1) == 10
    connection.send(1, b"x" * 10)
    assert connection.room(1) == 0
    connection.receive(window(1, 100_000))
    assert connection.room(1) == 65_525  # the connection's own
    connection.receive(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
    assert connection.room(1) == 65_525  # of 99,990
    connection.receive(window(0, 1 << 20))
    connection.take()
    connection.send(1, b"y" * 40_000)
    assert [len(payload) for *_, payload in read(connection.take())] == [16_384, 16_384, 7_232]
    assert connection.room(1) == 59_990
    assert connection.receive(frame(RST, 0, 1, bytes(4))) == [StreamLeft(1)]
    assert connection.room(1) == 0


def test_an_answer_begins_and_ends_once() -> None:
    connection = greeted()
    connection.receive(CALL)
    connection.begin(1)
    connection.begin(1)
    connection.end(1, 14, "too far: \n100 % äöü")
    connection.end(1, 0)
    connection.reset(1)
    sent = connection.take()
    assert [kind for kind, *_ in read(sent)] == [HEADERS, HEADERS]
    decoder = Decoder()
    first, last = (
        {str(name): str(value) for name, value in decoder.decode(payload)}
        for kind, *_, payload in read(sent)
        if kind == HEADERS
    )
    assert first == {":status": "200", "content-type": "application/grpc"}
    assert last == {"grpc-status": "14", "grpc-message": "too far: ?100 ? ???"}


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, block()), {"grpc-status": "3"}),  # and no message
        (frame(HEADERS, END_HEADERS, 1, block()) + frame(DATA, END_STREAM, 1, b"\0\0\0\0\2x"), {"grpc-status": "3"}),
        (frame(HEADERS, END_HEADERS, 1, block()) + frame(DATA, 0, 1, b"\1\0\0\0\0"), {"grpc-status": "12"}),
        (frame(HEADERS, END_HEADERS, 1, block()) + frame(DATA, 0, 1, b"\0\xff\0\0\0"), {"grpc-status": "8"}),
        (frame(HEADERS, END_HEADERS, 1, block((":method", "GET"), *HEAD[1:])), {":status": "415"}),
        (frame(HEADERS, END_HEADERS, 1, block(*HEAD[:4], ("content-type", "text/html"))), {":status": "415"}),
    ],
)
def test_what_is_no_call_is_refused_and_the_connection_goes_on(sent: bytes, status: dict[str, str]) -> None:
    connection = greeted()
    assert connection.receive(sent) == [StreamOpened(1)]
    assert status_of(connection).items() >= status.items()
    again = b""
    if not sent[4] & END_STREAM and not sent.endswith(b"x"):  # the peer has not seen yet that it is over
        again = frame(DATA, END_STREAM, 1, b"late") + frame(HEADERS, END_HEADERS | END_STREAM, 1, block(("a", "b")))
    again += CALL.replace(b"\0\0\0\1", b"\0\0\0\3")
    assert connection.receive(again) == [
        StreamOpened(3),
        CallReceived(3, PATH, b""),
    ]


def test_streams_are_few() -> None:
    connection = greeted()
    for stream in range(1, 2 * http2.MOST_STREAMS, 2):
        assert connection.receive(frame(HEADERS, END_HEADERS, stream, block())) == [StreamOpened(stream)]
    with pytest.raises(BrokenProtocol, match="Max inbound streams is 4"):
        connection.receive(frame(HEADERS, END_HEADERS, 2 * http2.MOST_STREAMS + 1, block()))


def test_little_is_kept_of_streams_that_are_over() -> None:
    """A pod may open and give up as many as it likes."""
    connection, sizes = greeted(), list[int]()
    tracemalloc.start()
    try:
        for stream in range(1, 4001, 2):
            connection.receive(frame(HEADERS, END_HEADERS, stream, block()) + frame(RST, 0, stream, bytes(4)))
            connection.take()
            if stream in (1001, 3999):
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 10_000


BROKEN = {
    "no frames of HTTP/2": b"GET / HTTP/1.1\r\n" + bytes(50_000),
    "too long": b"\xff\xff\xff\0\0\0\0\0\1" + bytes(50_000),
    "a stream of the server": frame(HEADERS, END_HEADERS, 2, block()),
    "headers of the connection": frame(HEADERS, END_HEADERS, 0, block()),
    "settings of a stream": frame(SETTINGS, 0, 1),
    "cut settings": frame(SETTINGS, 0, 0, bytes(5)),
    "a window beyond measure": frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)),
    "a window that grows by nothing": window(0, 0),
    "a window that grows too far": window(0, (1 << 31) - 1),
    "a cut window": frame(WINDOW, 0, 0, b"\0"),
    "a promise": frame(PROMISE, END_HEADERS, 1, bytes(4)),
    "a short probe": frame(PING, 0, 0, b"abc"),
    "data before headers": frame(DATA, 0, 1, EMPTY),
    "nothing but padding": frame(HEADERS, END_HEADERS | PADDED, 1, b"\5abc"),
    "something between headers": frame(HEADERS, 0, 1, block()[:4]) + frame(PING, 0, 0, bytes(8)),
    "headers that go on elsewhere": frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, END_HEADERS, 3, b""),
    "the end of no headers": frame(CONTINUATION, END_HEADERS, 1, b""),
    "endless headers": frame(HEADERS, 0, 1, bytes(16_000)) + 4 * frame(CONTINUATION, 0, 1, bytes(16_000)),
    "headers that grow": frame(HEADERS, END_HEADERS, 1, block(*(("a", "b" * 100),) * 400)),
    "cut headers": frame(HEADERS, END_HEADERS, 1, block()[:-3]),
    "headers of no meaning": frame(HEADERS, END_HEADERS, 1, b"\x40"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_who_breaks_the_protocol_is_told_so(name: str) -> None:
    connection = greeted()
    with pytest.raises(BrokenProtocol):
        connection.receive(BROKEN[name])
    kind, _, _, payload = read(connection.take())[-1]
    assert kind == GOAWAY and int.from_bytes(payload[4:8]) != 0


frames = st.builds(
    frame,
    st.integers(0, 11),
    st.integers(0, 255),
    st.sampled_from((0, 1, 1, 3, 5, 2)),
    st.binary(max_size=40) | st.just(block()) | st.just(EMPTY),
)


@settings(max_examples=300)
@given(st.lists(frames, max_size=12).map(b"".join), st.binary(max_size=30))
def test_whatever_comes_is_either_understood_or_broken(sent: bytes, rest: bytes) -> None:
    connection = greeted()
    try:
        events = connection.receive(sent + rest)
    except BrokenProtocol:
        return
    streams = {event.stream for event in events if isinstance(event, CallReceived)}
    for stream in streams:
        connection.begin(stream)
        connection.send(stream, b"x" * min(10, connection.room(stream))) if connection.room(stream) else None
        connection.end(stream, 0)
    assert len(connection.take()) <= 3 * (len(sent) + len(rest)) + 4000
