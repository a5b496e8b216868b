"""Joins a workload's connection with one to gRPC's server, which learns by its own one's name whose it is.

Rule: bytes pass as they are, and never more of them than the other side takes; what a workload sends is limited,
because a reader has nearly nothing to say.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from errno import ECONNABORTED
from typing import cast

_BYTES_A_SECOND, _BYTES_AT_ONCE = 16 << 10, 64 << 10
_BUFFERED = 64 << 10


class _End(asyncio.Protocol):
    """One end; what comes in here goes out at ``other``."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self.early = b""  # what the server says before there is anybody to hear it
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(_BUFFERED)
        if self.other is not None:
            self.transport.write(self.other.early)
            self.other.early = b""

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)
        else:
            self.early += data

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.go_on()

    def go_on(self) -> None:
        """Read again."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()


class _WorkloadEnd(_End):
    """Reads no faster than a reader has reason to write."""

    def __init__(self, lost: Callable[[], None]) -> None:
        super().__init__(lost)
        self._loop = asyncio.get_running_loop()
        self._room, self._since = float(_BYTES_AT_ONCE), self._loop.time()

    def data_received(self, data: bytes) -> None:
        now = self._loop.time()
        self._room = min(self._room + (now - self._since) * _BYTES_A_SECOND, _BYTES_AT_ONCE) - len(data)
        self._since = now
        super().data_received(data)
        if self._room < 0 and self.transport is not None:
            self.transport.pause_reading()
            self._loop.call_later(-self._room / _BYTES_A_SECOND, self.go_on)

    def go_on(self) -> None:
        """Not before there is room again; whoever waits for that asks then."""
        gained = (self._loop.time() - self._since) * _BYTES_A_SECOND
        if self._room + gained > -1:
            super().go_on()


class Bridge:
    """``name``: of the server's peer. ``closed`` is called once; ``joined``: whether a reader follows by it."""

    def __init__(self, closed: Callable[[Bridge], None]) -> None:
        self.name = ""
        self.joined = False
        self._closed: Callable[[Bridge], None] | None = closed
        self._theirs, self._ours = _WorkloadEnd(self.cut), _End(self.cut)
        self._theirs.other, self._ours.other = self._ours, self._theirs

    async def open(self, server: str) -> None:
        """Connect with the server. Raises OSError, also if it is cut meanwhile."""
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            inner.bind("")  # the kernel chooses a name that nobody has
            self.name = inner.getsockname()[1:].decode()
            inner.setblocking(False)
            inner.connect(server)
            await asyncio.get_running_loop().create_connection(lambda: self._ours, sock=inner)
        except OSError:
            inner.close()
            raise
        self._require_whole()

    async def join(self, accepted: socket.socket) -> None:
        """With a workload's connection, which belongs to this from now on. Raises OSError, also if it is cut."""
        await asyncio.get_running_loop().create_connection(lambda: self._theirs, sock=accepted)
        self._require_whole()

    def _require_whole(self) -> None:
        """``cut`` cannot end what was only being opened: it would live on, and nobody would know of it."""
        if self._closed is None:
            raise ConnectionAbortedError(ECONNABORTED, "it was cut off")

    def cut(self) -> None:
        """Neither end is there any more, and what was not sent is lost."""
        closed, self._closed = self._closed, None
        for end in (self._theirs, self._ours):
            if end.transport is not None:
                end.transport.abort()
        if closed is not None:
            closed(self)
