"""The clients' sockets: accepting them, waiting for them, dropping them.

Rule: the number of connections is limited. There is a lower limit for connections that have not been admitted; above it
the oldest of the peer that has most of them is dropped, and in each turn their handshakes and requests are attended to
in the order of peers. So nobody without a certificate or token can keep others out, or delay them noticeably.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from cni_calico.log import Log
from cni_calico.relay.client import Client, State, without_delay
from cni_calico.relay.fair_queue import select_fairly
from cni_calico.relay.handshakes import Handshakes
from cni_calico.relay.numbers import ServerNumbers

ACCEPTS = 64
STRANGERS_A_TURN = 32  # each costs a millisecond of TLS


@dataclass(frozen=True, slots=True)
class Limits:
    """``unknown``: connections that have not been admitted. ``waiting_s``: for lists, reviews and older history.
    ``cut_off_s``: how long a collection may be in trouble. ``review_s`` and ``watch_review_s``: how old the API
    server's answer about a token may be, for a new request and for an open watch.
    """

    connections: int = 10_000
    unknown: int = 1_000
    handshake_s: float = 10.0
    waiting_s: float = 20.0
    answer_s: float = 120.0
    idle_s: float = 60.0
    behind_s: float = 30.0
    behind_bytes: int = 8 * 1024 * 1024
    watch_s: float = 3600.0
    bookmark_s: float = 10.0
    gather_s: float = 0.1
    cut_off_s: float = 30.0
    # a revoked token is refused within a minute: this, 10 s of the API server's, and a review
    review_s: float = 40.0
    watch_review_s: float = 180.0


@dataclass(frozen=True, slots=True)
class Listening:
    """What listens, and for whom. ``certificate_names``: a client's certificate must have this common name or URI;
    ("", ""): none is accepted.
    """

    socket: socket.socket
    tls: ssl.SSLContext
    certificate_names: tuple[str, str] = ("", "")
    limits: Limits = Limits()


class ClientSockets:
    """``on_drop(client)`` is called before a connection is closed, ``on_wake()`` when ``wake_fd`` becomes readable."""

    def __init__(
        self,
        listening: Listening,
        wake_fd: int,
        log: Log,
        numbers: ServerNumbers,
        on_drop: Callable[[Client], None],
        on_wake: Callable[[], None],
    ) -> None:
        self.tls = listening.tls
        self.all: dict[int, Client] = {}
        self.unknown: dict[int, Client] = {}  # in the order of their arrival
        self._unknown_of: Counter[str] = Counter()  # how many of them each peer has
        self._listener = listener = listening.socket
        self._wake_fd = wake_fd
        self._log = log
        self._limits = listening.limits
        self._numbers = numbers
        self._on_drop = on_drop
        self._on_wake = on_wake
        self._handshakes = Handshakes()
        self._masks: dict[int, int] = {}
        self._epoll = select.epoll()
        listener.setblocking(False)
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        self._epoll.register(wake_fd, select.EPOLLIN)

    def poll(self, timeout_s: float, attend: Callable[[Client, int], None]) -> None:
        """Wait for something to happen, and have clients attended to."""
        strangers: list[tuple[Client, int]] = []
        for fd, mask in self._epoll.poll(timeout_s):
            if fd == self._wake_fd:
                os.eventfd_read(fd)
                self._on_wake()
            elif fd in self.unknown:
                strangers.append((self.unknown[fd], mask))
            elif fd in self.all:
                attend(self.all[fd], mask)
            elif fd == self._listener.fileno():
                self._accept()
        # those that are left over are reported again in the next turn
        chosen = select_fairly(strangers, lambda entry: entry[0].peer_group, STRANGERS_A_TURN)
        self._handshakes.go_on([client for client, _ in chosen if client.state is State.HANDSHAKE])
        for client, mask in chosen:
            if client.state is not State.CLOSED:
                attend(client, mask)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                raw, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as e:
                self._log.warning(f"cannot accept a connection: {e.strerror or e}")
                self._drop_oldest()
                return
            self._numbers.accepted += 1
            if len(self.all) >= self._limits.connections:
                self._numbers.drop("limit")
                raw.close()
                continue
            if len(self.unknown) >= self._limits.unknown:
                self._drop_oldest()
            self._begin(raw, str(address[0]))

    def _begin(self, raw: socket.socket, peer: str) -> None:
        try:
            without_delay(raw)
            wrapped = self.tls.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        except (OSError, ValueError):
            raw.close()
            return
        client = Client(wrapped, peer, time.monotonic())
        self.all[client.fd] = self.unknown[client.fd] = client
        self._unknown_of[client.peer_group] += 1
        self._masks[client.fd] = select.EPOLLIN
        self._epoll.register(client.fd, select.EPOLLIN)

    def _drop_oldest(self) -> None:
        """Of those who have not been admitted, by the peer that has most of them."""
        if not self.unknown:
            return
        heaviest = max(self._unknown_of, key=self._unknown_of.__getitem__)
        self.drop(next(client for client in self.unknown.values() if client.peer_group == heaviest), "unknown")

    def admit(self, client: Client) -> None:
        if self.unknown.pop(client.fd, None) is not None:
            self._unknown_of[client.peer_group] -= 1
            if not self._unknown_of[client.peer_group]:
                del self._unknown_of[client.peer_group]

    def drop(self, client: Client, why: str) -> None:
        if client.state is State.CLOSED:
            return
        self._on_drop(client)
        self.admit(client)
        self.all.pop(client.fd, None)
        self._masks.pop(client.fd, None)
        with suppress(OSError, ValueError):  # the client has ended it
            self._epoll.unregister(client.fd)
        client.close()
        self._numbers.drop(why)

    def why_end(self, client: Client, behind: int, now: float) -> str:
        """Why a connection has to end; "" if it may stay. ``behind``: bytes that a watch has not been sent yet."""
        limits, in_state = self._limits, now - client.since
        if client.state is State.HANDSHAKE:
            return "handshake" if in_state > limits.handshake_s else ""
        if client.state is State.REQUEST:
            unknown = client.fd in self.unknown
            return "idle" if in_state > (limits.handshake_s if unknown else limits.idle_s) else ""
        if client.state is State.WAITING:
            return "waiting" if in_state > limits.waiting_s else ""
        if client.state is State.ANSWER:
            return "slow" if in_state > (limits.handshake_s if client.fd in self.unknown else limits.answer_s) else ""
        is_behind = now - client.full_since > limits.behind_s or behind > limits.behind_bytes
        return "behind" if client.full_since and is_behind else ""

    def watch(self, client: Client) -> None:
        """Choose the events of the client's socket to wait for."""
        mask = select.EPOLLIN | (select.EPOLLOUT if client.wants_write else 0)
        if client.state is not State.CLOSED and self._masks.get(client.fd) != mask:
            self._masks[client.fd] = mask
            self._epoll.modify(client.fd, mask)

    def stop_accepting(self) -> None:
        with suppress(OSError, ValueError):
            self._epoll.unregister(self._listener.fileno())
        self._listener.close()

    def close(self) -> None:
        for client in list(self.all.values()):
            self.drop(client, "stopped")
        self.stop_accepting()
        self._handshakes.close()
        self._epoll.close()
