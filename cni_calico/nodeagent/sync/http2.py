"""HTTP/2 at the server's end, as far as gRPC has need of it (RFC 9113, and gRPC's own page on HTTP/2).

Rule: bytes in, calls out; nothing here waits or sends. A connection whose peer breaks the protocol is over, and nothing
is kept for a peer that a reader has no use for: its headers are not remembered, its requests are short.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from hpack import Decoder, HPACKError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST_STREAMS = 4
MOST_REQUEST = 32 << 10
OK, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAVAILABLE = 0, 3, 8, 12, 14  # gRPC's statuses

_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = (
    range(10)
)
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _WITH_PRIORITY = 1, 1, 4, 8, 32
_TABLE_SIZE, _CONCURRENT_STREAMS, _INITIAL_WINDOW, _HEADER_LIST = 1, 3, 4, 6  # settings
_NO_ERROR, _PROTOCOL, _FLOW_CONTROL, _FRAME_SIZE, _REFUSED, _CANCEL, _COMPRESSION, _CALM = 0, 1, 3, 6, 7, 8, 9, 11
_LONGEST_FRAME = 16_384  # what a peer takes without having said so, and what we take
_MOST_HEADERS = 8 << 10
_WINDOW, _LARGEST_WINDOW = 65_535, (1 << 31) - 1
_HEAD = struct.Struct(">BHBBI")  # length in two parts, kind, flags, stream
_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")
_MESSAGE = struct.Struct(">BI")  # gRPC's: whether it is compressed, its length
_FORGET = b"\x20"  # of the table of headers, from the first block on: any size is right for the peer then
_STATUS_200, _STATUS_415 = b"\x88", b"\x08\x03415"


class BrokenProtocol(Exception):
    """Of the peer; ``code`` is HTTP/2's."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """A stream, whatever comes of it."""

    stream: int


@dataclass(frozen=True, slots=True)
class CallReceived:
    """A whole request, to be answered."""

    stream: int
    path: str
    message: bytes


@dataclass(frozen=True, slots=True)
class StreamLeft:
    """Nobody waits for the rest of the answer."""

    stream: int


StreamEvent = StreamOpened | CallReceived | StreamLeft


class _Http2Stream:
    __slots__ = ("begun", "body", "finished", "path", "window")

    def __init__(self, path: str, window: int) -> None:
        self.path, self.window, self.begun = path, window, False
        self.finished = False  # the peer has said everything
        self.body: bytearray | None = bytearray()  # None: it is whole


class Http2Connection:
    """What is to be sent is taken by ``take`` after each call."""

    __slots__ = (
        "_block",
        "_decoder",
        "_forgotten",
        "_in",
        "_initial",
        "_last",
        "_out",
        "_preface",
        "_streams",
        "_window",
    )

    def __init__(self) -> None:
        settings = ((_TABLE_SIZE, 0), (_CONCURRENT_STREAMS, MOST_STREAMS), (_HEADER_LIST, _MOST_HEADERS))
        self._in, self._out = bytearray(), _frame(_SETTINGS, 0, 0, b"".join(_SETTING.pack(*one) for one in settings))
        self._preface = len(PREFACE)
        self._decoder: Decoder | None = Decoder(_MOST_HEADERS)  # the peer may have it remember until it agrees not to
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags, and headers that are not whole
        self._streams: dict[int, _Http2Stream] = {}
        self._last, self._window, self._initial = 0, _WINDOW, _WINDOW
        self._forgotten = False

    def take(self) -> bytes:
        """What has to be sent now."""
        taken, self._out = self._out, b""
        return taken

    # -- in -----------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[StreamEvent]:
        """Raises BrokenProtocol."""
        self._in += data
        if self._preface and not self._read_preface():
            return []
        events: list[StreamEvent] = []
        for kind, flags, stream, payload in self._frames():
            if (self._block is not None) != (kind == _CONTINUATION):
                raise BrokenProtocol(_PROTOCOL, "headers are followed by something else")
            events += self._read(kind, flags, stream, payload)
        return events

    def _read_preface(self) -> bool:
        begun = bytes(self._in[: self._preface])
        if not PREFACE.startswith(begun):
            raise BrokenProtocol(_PROTOCOL, "it does not speak HTTP/2")
        if len(begun) < self._preface:
            return False
        del self._in[: self._preface]
        self._preface = 0
        return True

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        while len(self._in) >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(self._in)
            length = high << 16 | low
            if length > _LONGEST_FRAME:
                raise BrokenProtocol(_FRAME_SIZE, "a frame is too long")
            end = _HEAD.size + length
            if len(self._in) < end:
                return
            payload = bytes(self._in[_HEAD.size : end])
            del self._in[:end]
            yield kind, flags, stream & _LARGEST_WINDOW, payload

    def _read(self, kind: int, flags: int, stream: int, payload: bytes) -> list[StreamEvent]:
        if (stream == 0) != (kind in (_SETTINGS, _PING, _GOAWAY)) and kind < _WINDOW_UPDATE:
            raise BrokenProtocol(_PROTOCOL, "a frame is of the wrong stream")
        if kind == _DATA:
            return self._read_data(flags, stream, payload)
        if kind == _HEADERS:
            if stream % 2 == 0:
                raise BrokenProtocol(_PROTOCOL, "a peer's streams are odd")
            self._block = stream, flags, bytearray(_without_padding(flags, payload)[5 * bool(flags & _WITH_PRIORITY) :])
            return self._read_block(flags)
        if kind == _CONTINUATION:
            if self._block is None or self._block[0] != stream:
                raise BrokenProtocol(_PROTOCOL, "headers go on in another stream")
            self._block[2].extend(payload)
            return self._read_block(flags)
        if kind == _RST_STREAM:
            return self._forget(stream)
        if kind == _SETTINGS:
            self._read_settings(flags, payload)
        elif kind == _PING:
            if len(payload) != 8:
                raise BrokenProtocol(_FRAME_SIZE, "a probe has 8 bytes")
            if not flags & _ACK:
                self._out += _frame(_PING, _ACK, 0, payload)
        elif kind == _WINDOW_UPDATE:
            self._widen(stream, payload)
        elif kind == _PUSH_PROMISE:
            raise BrokenProtocol(_PROTOCOL, "a client promises nothing")
        return []

    def _read_settings(self, flags: int, payload: bytes) -> None:
        if len(payload) % _SETTING.size:
            raise BrokenProtocol(_FRAME_SIZE, "settings are cut off")
        if flags & _ACK:
            self._decoder = None  # its table is empty from now on
            return
        for setting, value in _SETTING.iter_unpack(payload):
            if setting == _INITIAL_WINDOW:
                if value > _LARGEST_WINDOW:
                    raise BrokenProtocol(_FLOW_CONTROL, "a window is too large")
                for one in self._streams.values():
                    one.window += value - self._initial
                self._initial = value
        self._out += _frame(_SETTINGS, _ACK, 0, b"")

    def _widen(self, stream: int, payload: bytes) -> None:
        if len(payload) != _NUMBER.size:
            raise BrokenProtocol(_FRAME_SIZE, "a window's growth has 4 bytes")
        more = _NUMBER.unpack(payload)[0] & _LARGEST_WINDOW
        its = self._streams.get(stream)
        widened = more + (self._window if stream == 0 else its.window if its is not None else 0)
        if more == 0 or widened > _LARGEST_WINDOW:
            raise BrokenProtocol(_FLOW_CONTROL, "a window grows by nothing, or too far")
        if stream == 0:
            self._window = widened
        elif its is not None:
            its.window = widened

    def _read_block(self, flags: int) -> list[StreamEvent]:
        """What has come of a stream's headers."""
        assert self._block is not None
        stream, first, block = self._block
        if len(block) > _MOST_HEADERS:
            raise BrokenProtocol(_CALM, "its headers are too long")
        if not flags & _END_HEADERS:
            return []
        self._block = None
        headers = self._decode(bytes(block))
        if stream <= self._last:
            return self._finish(stream) if first & _END_STREAM else []  # the headers at the end
        self._last = stream
        if len(self._streams) >= MOST_STREAMS:
            self._out += _frame(_RST_STREAM, 0, stream, _NUMBER.pack(_REFUSED))
            return [StreamOpened(stream)]
        self._streams[stream] = _Http2Stream(headers.get(b":path", b"").decode("latin-1"), self._initial)
        grpc = headers.get(b"content-type", b"").startswith(b"application/grpc")
        if not grpc or headers.get(b":method") != b"POST":
            self._end_stream(stream, _STATUS_415)
        elif first & _END_STREAM:
            self._finish(stream)
        return [StreamOpened(stream)]

    def _decode(self, block: bytes) -> dict[bytes, bytes]:
        decoder = self._decoder
        if decoder is None:
            decoder = Decoder(_MOST_HEADERS)
            decoder.max_allowed_table_size = decoder.header_table_size = 0
        try:
            return {bytes(name): bytes(value) for name, value in decoder.decode(block, raw=True)}
        except (HPACKError, IndexError, ValueError) as e:
            raise BrokenProtocol(_COMPRESSION, f"its headers cannot be read: {e}") from e

    def _read_data(self, flags: int, stream: int, payload: bytes) -> list[StreamEvent]:
        if stream > self._last:
            raise BrokenProtocol(_PROTOCOL, "there is no such stream")
        if payload:  # a stream's own window is never widened: it takes the longest request
            self._out += _frame(_WINDOW_UPDATE, 0, 0, _NUMBER.pack(len(payload)))
        its, found = self._streams.get(stream), list[StreamEvent]()
        if its is not None and its.body is not None:
            its.body += _without_padding(flags, payload)
            found = self._read_message(stream, its)
        return found + (self._finish(stream) if flags & _END_STREAM else [])

    def _read_message(self, stream: int, its: _Http2Stream) -> list[StreamEvent]:
        assert its.body is not None
        if len(its.body) >= _MESSAGE.size:
            compressed, length = _MESSAGE.unpack_from(its.body)
            if compressed:
                return self._turn_away(stream, UNIMPLEMENTED, "a request must not be compressed")
            if length > MOST_REQUEST:
                return self._turn_away(stream, RESOURCE_EXHAUSTED, f"a request has at most {MOST_REQUEST} bytes")
            if len(its.body) >= _MESSAGE.size + length:
                message, its.body = bytes(its.body[_MESSAGE.size : _MESSAGE.size + length]), None
                return [CallReceived(stream, its.path, message)]
        return []

    def _finish(self, stream: int) -> list[StreamEvent]:
        """The peer has said everything."""
        its = self._streams.get(stream)
        if its is None:
            return []
        its.finished = True
        return [] if its.body is None else self._turn_away(stream, INVALID_ARGUMENT, "the request is not whole")

    def _turn_away(self, stream: int, status: int, text: str) -> list[StreamEvent]:
        self.end(stream, status, text)
        return []

    def _forget(self, stream: int) -> list[StreamEvent]:
        its = self._streams.pop(stream, None)
        return [] if its is None or its.body is not None else [StreamLeft(stream)]

    # -- out ----------------------------------------------------------------------------------------------------------

    def begin(self, stream: int) -> None:
        """The answer; messages follow."""
        its = self._streams.get(stream)
        if its is not None and not its.begun:
            its.begun = True
            self._out += _frame(_HEADERS, _END_HEADERS, stream, self._first() + _ANSWER)

    def room(self, stream: int) -> int:
        """How many bytes of messages the peer takes now; 0 also of a stream that is over."""
        its = self._streams.get(stream)
        return 0 if its is None else max(0, min(self._window, its.window))

    def send(self, stream: int, data: bytes) -> None:
        """Bytes of messages, for which there is room."""
        its = self._streams[stream]
        self._window -= len(data)
        its.window -= len(data)
        parts = [data[at : at + _LONGEST_FRAME] for at in range(0, len(data), _LONGEST_FRAME)]
        self._out += b"".join(_frame(_DATA, 0, stream, part) for part in parts)

    def end(self, stream: int, status: int, text: str = "") -> None:
        """The answer, between two messages."""
        its = self._streams.get(stream)
        if its is None:
            return
        block = (b"" if its.begun else _ANSWER) + _field("grpc-status", str(status))
        self._end_stream(stream, block + (_field("grpc-message", text) if text else b""))

    def reset(self, stream: int) -> None:
        """The answer, wherever it is."""
        if self._streams.pop(stream, None) is not None:
            self._out += _frame(_RST_STREAM, 0, stream, _NUMBER.pack(_CANCEL))

    def say_broken(self, why: BrokenProtocol) -> None:
        """To a peer whose connection is going to be closed."""
        self._out += _frame(_GOAWAY, 0, 0, struct.pack(">II", self._last, why.code) + str(why).encode())

    def _end_stream(self, stream: int, block: bytes) -> None:
        """Its headers at the end; no more is read of it."""
        its = self._streams.pop(stream)
        self._out += _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, self._first() + block)
        if not its.finished:
            self._out += _frame(_RST_STREAM, 0, stream, _NUMBER.pack(_NO_ERROR))

    def _first(self) -> bytes:
        forget, self._forgotten = b"" if self._forgotten else _FORGET, True
        return forget


def message_head(length: int) -> bytes:
    """What gRPC has before a message."""
    return _MESSAGE.pack(0, length)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _without_padding(flags: int, payload: bytes) -> bytes:
    """Of DATA and HEADERS. Raises BrokenProtocol."""
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise BrokenProtocol(_PROTOCOL, "a frame is nothing but padding")
    return payload[1 : len(payload) - payload[0]]


def _field(name: str, value: str) -> bytes:
    """A header that the peer does not remember; what is not plain text in it becomes a question mark."""
    plain = "".join(sign if " " <= sign <= "~" and sign != "%" else "?" for sign in value[:120]).encode()
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(plain),)) + plain


_ANSWER = _STATUS_200 + _field("content-type", "application/grpc")
