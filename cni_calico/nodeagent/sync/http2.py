"""gRPC's calls at the server's end of an HTTP/2 connection: h2 for the frames, and here what gRPC has in them.

Rule: bytes in, calls out; nothing here waits or sends. A connection whose peer breaks the protocol is over, and little
is kept for a peer: its headers are not remembered, its requests are short, and of streams that are over only a few.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import H2Error
from h2.settings import ChangedSetting, SettingCodes, Settings

MOST_STREAMS = 4
MOST_REQUEST = 32 << 10
OK, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAVAILABLE = 0, 3, 8, 12, 14  # gRPC's statuses

_MOST_HEADERS = 8 << 10
_MOST_UNHEARD = 48 << 10  # of bytes from which nothing has come: two frames of the longest, and some
_MESSAGE = struct.Struct(">BI")  # gRPC's: whether it is compressed, its length
_CONFIG = H2Configuration(client_side=False, header_encoding=None)
_OF_A_CLIENT, _KNOWN_SETTINGS = Settings(client=True), frozenset(SettingCodes)
_STATUS_200, _STATUS_415 = (b":status", b"200"), (b":status", b"415")
_ANSWER = (_STATUS_200, (b"content-type", b"application/grpc"))


class BrokenProtocol(Exception):
    """Of the peer, which is told so by what is taken next."""


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


class _BriefSettings(Settings):
    """As the library's own, in a tenth of the memory: one value of each, and the next one until it is agreed upon."""

    def __init__(self, values: Iterable[tuple[SettingCodes | int, int]]) -> None:
        self._now, self._next = dict(values), dict[SettingCodes | int, int]()

    def acknowledge(self) -> dict[SettingCodes | int, ChangedSetting]:
        changed, self._next = self._next, {}
        found = {key: ChangedSetting(key, self._now.get(key), value) for key, value in changed.items()}
        self._now |= changed
        return found

    def validate_received_setting(self, setting: SettingCodes | int, value: int) -> None:
        _OF_A_CLIENT.validate_received_setting(setting, value)

    def __getitem__(self, key: SettingCodes | int) -> int:
        return self._now[key]

    def __setitem__(self, key: SettingCodes | int, value: int) -> None:
        if key in _KNOWN_SETTINGS:  # what nobody knows is not kept
            self._next[key] = value

    def __delitem__(self, key: SettingCodes | int) -> None:
        del self._now[key]

    def __iter__(self) -> Iterator[SettingCodes | int]:
        return iter(self._now)

    def __len__(self) -> int:
        return len(self._now)


class _PeerFrames(H2Connection):
    MAX_CLOSED_STREAMS = 2 * MOST_STREAMS

    def __init__(self) -> None:
        super().__init__(_CONFIG)
        ours = {
            **self.local_settings,
            SettingCodes.HEADER_TABLE_SIZE: 0,
            SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
            SettingCodes.MAX_HEADER_LIST_SIZE: _MOST_HEADERS,
        }
        self.local_settings = _BriefSettings(ours.items())
        self.remote_settings = _BriefSettings(self.remote_settings.items())
        self.decoder.max_header_list_size = _MOST_HEADERS
        self.initiate_connection()


class _PeerCall:
    __slots__ = ("begun", "body", "finished", "path")

    def __init__(self, path: str) -> None:
        self.path, self.begun = path, False
        self.finished = False  # the peer has said everything
        self.body: bytearray | None = bytearray()  # None: it is whole


class Http2Connection:
    """What is to be sent is taken by ``take`` after each call."""

    __slots__ = ("_calls", "_frames", "_unheard")

    def __init__(self) -> None:
        self._frames = _PeerFrames()
        self._calls: dict[int, _PeerCall] = {}
        self._unheard = 0  # bytes since something came of them

    def take(self) -> bytes:
        """What has to be sent now."""
        return self._frames.data_to_send()

    # -- in -----------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[StreamEvent]:
        """Raises BrokenProtocol."""
        try:
            heard = self._frames.receive_data(data)
        except H2Error as e:
            raise BrokenProtocol(str(e)) from e
        self._unheard = 0 if heard else self._unheard + len(data)
        if self._unheard > _MOST_UNHEARD:
            self._frames.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            raise BrokenProtocol("it sends, and says nothing")
        events: list[StreamEvent] = []
        for event in heard:
            events += self._read(event)
        return events

    def _read(self, event: Event) -> list[StreamEvent]:
        if isinstance(event, RequestReceived):
            return self._open(event.stream_id, dict(event.headers))
        if isinstance(event, DataReceived):
            return self._read_data(event)
        if isinstance(event, StreamEnded):
            self._finish(event.stream_id)
        elif isinstance(event, StreamReset):
            call = self._calls.pop(event.stream_id, None)
            return [] if call is None or call.body is not None else [StreamLeft(event.stream_id)]
        elif isinstance(event, ConnectionTerminated):
            raise BrokenProtocol("the peer ends the connection")
        return []

    def _open(self, stream: int, headers: dict[bytes, bytes]) -> list[StreamEvent]:
        self._calls[stream] = _PeerCall(headers[b":path"].decode("latin-1"))
        grpc = headers.get(b"content-type", b"").startswith(b"application/grpc")
        if not grpc or headers[b":method"] != b"POST":
            self._end_stream(stream, (_STATUS_415,))
        return [StreamOpened(stream)]

    def _read_data(self, event: DataReceived) -> list[StreamEvent]:
        stream = event.stream_id
        self._frames.acknowledge_received_data(event.flow_controlled_length, stream)
        call = self._calls.get(stream)
        if call is None or call.body is None:
            return []
        call.body += event.data
        if len(call.body) < _MESSAGE.size:
            return []
        compressed, length = _MESSAGE.unpack_from(call.body)
        if compressed:
            self.end(stream, UNIMPLEMENTED, "a request must not be compressed")
        elif length > MOST_REQUEST:
            self.end(stream, RESOURCE_EXHAUSTED, f"a request has at most {MOST_REQUEST} bytes")
        elif len(call.body) >= _MESSAGE.size + length:
            message, call.body = bytes(call.body[_MESSAGE.size : _MESSAGE.size + length]), None
            return [CallReceived(stream, call.path, message)]
        return []

    def _finish(self, stream: int) -> None:
        call = self._calls.get(stream)
        if call is not None:
            call.finished = True
            if call.body is not None:
                self.end(stream, INVALID_ARGUMENT, "the request is not whole")

    # -- out ----------------------------------------------------------------------------------------------------------

    def begin(self, stream: int) -> None:
        """The answer; messages follow."""
        call = self._calls.get(stream)
        if call is not None and not call.begun:
            call.begun = True
            self._say(stream, self._frames.send_headers, _ANSWER)

    def room(self, stream: int) -> int:
        """How many bytes of messages the peer takes now; 0 also of a stream that is over."""
        if stream not in self._calls:
            return 0
        return max(0, self._say(stream, self._frames.local_flow_control_window) or 0)

    def send(self, stream: int, data: bytes) -> None:
        """Bytes of messages, for which there is room."""
        longest = self._frames.max_outbound_frame_size
        for at in range(0, len(data), longest):
            self._say(stream, self._frames.send_data, data[at : at + longest])

    def end(self, stream: int, status: int, text: str = "") -> None:
        """The answer, between two messages."""
        call = self._calls.get(stream)
        if call is None:
            return
        said = (b"grpc-status", b"%d" % status), (b"grpc-message", _plain(text))
        self._end_stream(stream, (*(() if call.begun else _ANSWER), *(said if text else said[:1])))

    def reset(self, stream: int) -> None:
        """The answer, wherever it is."""
        if self._calls.pop(stream, None) is not None:
            self._say(stream, self._frames.reset_stream, ErrorCodes.CANCEL)

    def _end_stream(self, stream: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """Its headers at the end; no more is read of it."""
        call = self._calls.pop(stream)
        self._say(stream, self._frames.send_headers, headers, end_stream=True)
        if not call.finished:
            self._say(stream, self._frames.reset_stream, ErrorCodes.NO_ERROR)

    def _say(self, stream: int, say: Callable[..., Any], *what: Any, **how: Any) -> Any:
        """Of a stream that the peer may have given up in what has been received, but not read yet."""
        try:
            return say(stream, *what, **how)
        except H2Error:
            return None


def message_head(length: int) -> bytes:
    """What gRPC has before a message."""
    return _MESSAGE.pack(0, length)


def _plain(text: str) -> bytes:
    """What is not plain text in it becomes a question mark."""
    return "".join(sign if " " <= sign <= "~" and sign != "%" else "?" for sign in text[:120]).encode()
