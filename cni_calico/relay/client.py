"""One client's connection: a TLS socket that never blocks, the data that is being sent, and the client's place in the
log. Rule: clients share the bytes that are sent; nothing more is rendered for a client until it has read what was sent.
No client is waited for without a limit.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum, auto

from cni_calico.relay.requests import RelayRequest
from cni_calico.relay.tokens import peer_of
from cni_calico.relay.topics import Interest

READ_BYTES = 16 * 1024


class State(Enum):
    """The state of a connection."""

    HANDSHAKE = auto()
    REQUEST = auto()  # reading the head of a request
    WAITING = auto()  # for the review of its token, for a list, or for older history
    ANSWER = auto()  # a whole answer is being sent
    STREAM = auto()  # a watch
    CLOSED = auto()


class Gone(Exception):
    """The connection has ended or failed."""


class Client:
    """``since``: when the present state began (time.monotonic)."""

    __slots__ = (
        "_offset",
        "_pieces",
        "_shaken",
        "ends_at",
        "fd",
        "full_since",
        "has_certificate",
        "head",
        "interest",
        "keeps_open",
        "peer",
        "peer_group",
        "place",
        "request",
        "since",
        "socket",
        "state",
        "token",
        "told_cut_off",
        "wants_bookmarks",
        "wants_write",
    )

    def __init__(self, connection: ssl.SSLSocket, peer: str, now: float) -> None:
        self.socket = connection
        self.fd = connection.fileno()
        self.peer = peer
        self.peer_group = peer_of(peer)
        self.state = State.HANDSHAKE
        self.since = now
        self.head = b""
        self.request: RelayRequest | None = None
        self.token = ""  # with which a watch was admitted; "": with a certificate
        self.has_certificate = False
        self.keeps_open = True
        self.interest: Interest | None = None
        self.place = 0
        self.wants_bookmarks = self.told_cut_off = False
        self.ends_at = 0.0
        self.full_since = 0.0  # since when something has been waiting to be sent; 0: nothing is
        self.wants_write = False
        self._pieces: list[bytes] = []  # in reverse order
        self._offset = 0
        self._shaken: bool | Gone | None = None

    def enter(self, state: State, now: float) -> None:
        self.state, self.since = state, now

    def shake_hands_ahead(self) -> None:
        """``shake_hands``, whose outcome the next call of it returns or raises."""
        try:
            self._shaken = self._go_on_shaking()
        except Gone as e:
            self._shaken = e

    def shake_hands(self) -> bool:
        """Whether the handshake is done. Raises Gone."""
        shaken, self._shaken = self._shaken, None
        if isinstance(shaken, Gone):
            raise shaken
        return self._go_on_shaking() if shaken is None else shaken

    def _go_on_shaking(self) -> bool:
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            self.wants_write = False
            return False
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return False
        except (OSError, ValueError) as e:
            raise Gone(f"the TLS handshake failed: {e}") from e
        self.wants_write = False
        return True

    def read(self) -> bytes:
        """The bytes that have arrived, b"" if none. Raises Gone."""
        try:
            data = self.socket.recv(READ_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        except (OSError, ValueError) as e:
            raise Gone(str(e)) from e
        if not data:
            raise Gone("it closed the connection")
        return data

    @property
    def fd_open(self) -> bool:
        return self.state is not State.CLOSED

    @property
    def sending(self) -> bool:
        return bool(self._pieces)

    def send(self, pieces: Iterable[bytes], now: float) -> None:
        """Send as much as the socket takes now, and keep the rest. Raises Gone."""
        self._pieces[:0] = [piece for piece in reversed(tuple(pieces)) if piece]
        self.go_on(now)

    def send_one(self, data: bytes, now: float) -> None:
        """``send`` for the usual case that nothing is waiting and the socket takes everything. Raises Gone."""
        if not self._pieces:
            try:
                self._offset = self.socket.send(data)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass  # TLS must continue with the same bytes
            except (OSError, ValueError) as e:
                raise Gone(str(e)) from e
            if self._offset == len(data):
                self._offset = 0
                return
        self.send((data,), now)

    def go_on(self, now: float) -> None:
        """Raises Gone."""
        while self._pieces:
            piece = self._pieces[-1]
            try:
                sent = self.socket.send(memoryview(piece)[self._offset :] if self._offset else piece)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not self.full_since:
                    self.full_since = now
                self.wants_write = True
                return
            except (OSError, ValueError) as e:
                raise Gone(str(e)) from e
            self._offset += sent
            if self._offset == len(piece):
                self._pieces.pop()
                self._offset = 0
        self.full_since = 0.0
        self.wants_write = False

    def close(self) -> None:
        self.state = State.CLOSED
        self._pieces = []
        with suppress(OSError):
            self.socket.close()


def without_delay(connection: socket.socket) -> None:
    """The options of a client's socket: small messages at once, and an end to peers that are gone."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
