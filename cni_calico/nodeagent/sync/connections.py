"""A program's connection at the socket of its volume, and what it is told by it.

Rule: nothing waits for a peer. It is told no more than it takes; the next message is asked for once it has the one
before, which it must have within a time; and it is heard no faster than a reader has reason to speak.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from cni_calico.nodeagent.sync.accounts import TooFarBehind
from cni_calico.nodeagent.sync.http2 import (
    OK,
    UNAVAILABLE,
    BrokenProtocol,
    CallReceived,
    Http2Connection,
    StreamEvent,
    StreamOpened,
    message_head,
)
from cni_calico.nodeagent.sync.subscription import Subscription

_BYTES_A_SECOND, _BYTES_AT_ONCE = 16 << 10, 64 << 10
_BUFFERED, _MOST_BUFFERED = 64 << 10, 256 << 10  # of messages; with answers that nobody takes


class ConnectionOwner(Protocol):
    """Whose socket it is. ``cut_s``: within this a peer takes a message."""

    cut_s: float

    def opened(self) -> None:
        """There is one more call."""

    def called(self, connection: WorkloadConnection, stream: int, path: str, message: bytes) -> None: ...
    def was_slow(self, connection: WorkloadConnection) -> None: ...
    def closed(self, connection: WorkloadConnection) -> None: ...


class _JoinedReader:
    """A stream of messages. ``over``: nothing follows."""

    __slots__ = ("_at", "_cutting", "_http", "_left", "_subscription", "over", "stream")

    def __init__(self, subscription: Subscription, http: Http2Connection, stream: int) -> None:
        self._subscription, self._http, self.stream = subscription, http, stream
        self._left: list[bytes] = []  # messages, the next one last
        self._at = 0  # bytes of it that are sent, with what gRPC has before it
        self._cutting: asyncio.TimerHandle | None = None
        self.over = False
        http.begin(stream)

    def is_due(self) -> bool:
        """Whether there is a message, or a part of one, that has not been sent."""
        if not self._left and not self.over:
            try:
                self._left = self._subscription.due()[::-1]
            except TooFarBehind:
                self.end(UNAVAILABLE, "too far behind: join again")
            if self._subscription.ended and not self._left:
                self.end()
        return bool(self._left)

    def send_part(self) -> bool:
        """Of what is due; False: the peer takes nothing now."""
        room = min(self._http.room(self.stream), _BUFFERED)
        if room == 0:
            return False
        message = self._left[-1]
        head = message_head(len(message))
        begun = max(0, self._at - len(head))
        part = (head[self._at :] + message[begun : begun + room])[:room]
        self._http.send(self.stream, part)
        self._at += len(part)
        if self._at == len(head) + len(message):
            self._left.pop()
            self._at = 0
            self.rest()
        return True

    def hurry(self, cut_s: float, cut: Callable[[], object]) -> None:
        """The peer does not take what is there."""
        if self._cutting is None:
            self._cutting = asyncio.get_running_loop().call_later(cut_s, cut)

    def rest(self) -> None:
        """It does."""
        if self._cutting is not None:
            self._cutting.cancel()
            self._cutting = None

    def end(self, status: int = OK, text: str = "") -> None:
        self.rest()
        self._left.clear()
        self.over = True
        if self._at:
            self._http.reset(self.stream)  # nothing can follow on half a message
        else:
            self._http.end(self.stream, status, text)


class WorkloadConnection(asyncio.Protocol):
    """``owner`` is told once that it is closed."""

    __slots__ = ("_http", "_loop", "_owner", "_paused", "_reader", "_room", "_since", "_transport")

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner: ConnectionOwner | None = owner
        self._loop = asyncio.get_running_loop()
        self._http = Http2Connection()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._room, self._since = float(_BYTES_AT_ONCE), self._loop.time()
        self._reader: _JoinedReader | None = None

    # -- what asyncio calls -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._owner is None:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(_BUFFERED)
        self._send()

    def data_received(self, data: bytes) -> None:
        if self._owner is None:
            return
        try:
            events = self._http.receive(data)
        except BrokenProtocol:
            self._send()
            self.cut()
            return
        for event in events:
            self._take(event)
        self.go_on()
        self._slow_down(len(data))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._reader is not None:
            self._reader.rest()
        self.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self.cut()

    # -- calls --------------------------------------------------------------------------------------------------------

    def _take(self, event: StreamEvent) -> None:
        if self._owner is None:
            return
        if isinstance(event, CallReceived):
            self._owner.called(self, event.stream, event.path, event.message)
        elif isinstance(event, StreamOpened):
            self._owner.opened()
        elif self._reader is not None and self._reader.stream == event.stream:
            self.leave()

    def answer(self, stream: int, status: int, text: str = "", message: bytes | None = None) -> None:
        """A call; ``message``: what it returns."""
        if message is not None:
            data = message_head(len(message)) + message
            if self._http.room(stream) < len(data):
                self._http.end(stream, UNAVAILABLE, "there is no room for the answer")
                return
            self._http.begin(stream)
            self._http.send(stream, data)
        self._http.end(stream, status, text)

    def join(self, stream: int, subscription: Subscription) -> None:
        """A reader is told from now on what is due."""
        self._reader = _JoinedReader(subscription, self._http, stream)

    def has_reader(self) -> bool:
        return self._reader is not None

    def leave(self) -> None:
        """There is no reader any more."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.end()
            self._send()

    def go_on(self) -> None:
        """Send what is due, as far as the peer takes it."""
        reader = self._reader
        blocked = False
        while reader is not None and not (self._paused or blocked) and reader.is_due():
            blocked = not reader.send_part()
            self._send()
        self._send()
        if reader is not None and self._reader is reader and self._owner is not None:
            if reader.over:
                self._reader = None
            elif self._paused or blocked:
                reader.hurry(self._owner.cut_s, self._be_slow)

    def _be_slow(self) -> None:
        if self._owner is not None:
            self._owner.was_slow(self)

    # -- bytes --------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        data = self._http.take()
        if not data or self._transport is None or self._owner is None:
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > _MOST_BUFFERED:
            self.cut()  # it makes us answer, and does not read

    def _slow_down(self, received: int) -> None:
        now = self._loop.time()
        self._room = min(self._room + (now - self._since) * _BYTES_A_SECOND, _BYTES_AT_ONCE) - received
        self._since = now
        if self._room < 0 and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_later(-self._room / _BYTES_A_SECOND, self._hear)

    def _hear(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def cut(self) -> None:
        """What was not sent is lost."""
        owner, self._owner = self._owner, None
        if self._transport is not None:
            self._transport.abort()
        if self._reader is not None:
            self._reader.rest()
        if owner is not None:
            owner.closed(self)
