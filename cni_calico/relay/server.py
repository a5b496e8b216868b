"""The relay's server: one loop over TLS sockets that never block.

Rule: no client can delay another one, or cost the relay more memory than a place in the log. Connections without a
request are limited in number and time, and the oldest is closed first; a watch that falls too far behind is ended, and
its client resumes at its position, here or at another relay.
"""

from __future__ import annotations

import select
import time

from cni_calico.datastore.http import names_peer
from cni_calico.log import Log
from cni_calico.relay.client import Client, Gone, State
from cni_calico.relay.connections import ClientSockets, Listening
from cni_calico.relay.numbers import ServerNumbers
from cni_calico.relay.requests import (
    FOREIGN,
    HEAD_BYTES,
    LAST_CHUNK,
    NOT_HTTP,
    AskedWatch,
    RequestRefused,
    chunk,
    parse_request,
    render_status,
)
from cni_calico.relay.serving import BEHIND, Offered, Serving
from cni_calico.relay.watch_reviews import WatchReviews

LONGEST_GATHER_S = 0.5
LOOK_S = 0.5


class RelayServer:
    """``wake_fd`` becomes readable when there is news."""

    def __init__(self, offered: Offered, listening: Listening, wake_fd: int, log: Log) -> None:
        self.numbers = ServerNumbers()
        self._limits = listening.limits
        self._serving = Serving(offered, self.numbers, self._limits.watch_s)
        self._reviews = offered.reviews
        self._watch_reviews = WatchReviews(offered.reviews, self._limits.watch_review_s)
        self._log = log
        self._names = listening.certificate_names
        self._waiting: dict[int, Client] = {}
        self._streams: dict[int, Client] = {}
        self.connections = ClientSockets(listening, wake_fd, log, self.numbers, self._forget, self._note_news)
        self._dirty_since = self._flushed_at = self._looked_at = self._bookmarked_at = 0.0
        # when waiting clients are next checked; when they were last checked, and how long that took
        self._serve_at, self._served_at, self._serve_s = float("inf"), 0.0, 0.0
        self._chunked = b"", b""
        self._has_noted_foreign = False

    @property
    def streaming(self) -> int:
        return len(self._streams)

    def step(self) -> None:
        """Wait for the next thing to do, and do it."""
        self.connections.poll(self._patience_s(), self._attend)
        now = time.monotonic()
        if self._dirty_since and now - self._flushed_at >= self._gather_s:
            self._flush(now)
        if now >= self._serve_at:
            self._serve_waiting()
        if now - self._looked_at >= LOOK_S:
            self._look(now)

    @property
    def _gather_s(self) -> float:
        """How long changes are collected before they are sent: longer while sending takes long."""
        return min(LONGEST_GATHER_S, max(self._limits.gather_s, 4 * self.numbers.flush_mean_s))

    def _patience_s(self) -> float:
        now = time.monotonic()
        flush_at = self._flushed_at + self._gather_s if self._dirty_since else now + LOOK_S
        return max(0.0, min(self._looked_at + LOOK_S, self._serve_at, flush_at) - now)

    def _note_news(self) -> None:
        self._dirty_since = self._dirty_since or time.monotonic()
        if self._waiting:  # checked after several changes: few of them complete an answer
            self._serve_at = min(self._serve_at, self._served_at + 4 * self._serve_s)

    def _forget(self, client: Client) -> None:
        self._waiting.pop(client.fd, None)
        self._streams.pop(client.fd, None)

    # -- what a socket can do -----------------------------------------------------------------------------------------

    def _attend(self, client: Client, mask: int) -> None:
        try:
            if client.state is State.HANDSHAKE:
                if client.shake_hands():
                    self._admit_certificate(client)
            elif client.sending and mask & select.EPOLLOUT:
                client.go_on(time.monotonic())
                if not client.sending:
                    self._sent(client)
            if mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._receive(client)
        except Gone as e:
            self.connections.drop(client, "handshake" if client.state is State.HANDSHAKE else "closed")
            self._log.debug(f"{client.peer}: {e}")
            return
        self.connections.watch(client)

    def _admit_certificate(self, client: Client) -> None:
        client.has_certificate = names_peer(client.socket.getpeercert(), *self._names)
        client.enter(State.REQUEST, time.monotonic())

    def _receive(self, client: Client) -> None:
        """Read a request; a client that sends anything else is dropped."""
        if client.state in (State.HANDSHAKE, State.CLOSED):
            return
        data = client.read()
        while data:
            if client.state is not State.REQUEST:
                raise Gone("it sent something while it was being answered")
            client.head += data
            if b"\r\n\r\n" in client.head:
                head, _, client.head = client.head.partition(b"\r\n\r\n")
                self._receive_request(client, head)
            elif len(client.head) > HEAD_BYTES:
                self._refuse(client, RequestRefused(431, "the request's head is too long"))
            elif len(client.head) >= 8 and not client.head.startswith(b"GET ") and b"\n" not in client.head:
                self._note_foreign(client)
            if not client.fd_open:
                return
            data = client.read()

    def _note_foreign(self, client: Client) -> None:
        """Upstream's Felix begins with a message in Go's gob encoding."""
        if not self._has_noted_foreign:
            self._has_noted_foreign = True
            self._log.warning(f"{client.peer} {FOREIGN}")
        self._refuse(client, RequestRefused(400, NOT_HTTP))

    # -- requests -----------------------------------------------------------------------------------------------------

    def _receive_request(self, client: Client, head: bytes) -> None:
        try:
            client.request = parse_request(head)
        except RequestRefused as e:
            self._refuse(client, e)
            return
        client.keeps_open = client.request.keeps_open
        client.enter(State.WAITING, time.monotonic())
        self._waiting[client.fd] = client
        self._serve(client)

    def _serve_waiting(self) -> None:
        begun = time.monotonic()
        for client in list(self._waiting.values()):
            try:
                self._serve(client)
            except Gone:
                self.connections.drop(client, "closed")
                continue
            self.connections.watch(client)
        self._serving.ask_older()
        self._served_at, self._serve_at = time.monotonic(), float("inf")
        self._serve_s = self._served_at - begun

    def _serve(self, client: Client) -> None:
        """Answer a request as soon as everything for it is there."""
        request = client.request
        assert request is not None
        try:
            if not client.has_certificate:
                why = self._reviews.why_not(request.token, client.peer, fresh_s=self._limits.review_s)
                if why is None:
                    return
                if why:
                    raise RequestRefused(401, why)
            self.connections.admit(client)
            pieces = self._serving.answer(client)
        except RequestRefused as e:
            self._refuse(client, e)
            return
        if pieces is None:
            return
        if isinstance(request.wanted, AskedWatch):
            self._begin_watch(client, pieces)
        else:
            self._answer(client, pieces)

    def _refuse(self, client: Client, why: RequestRefused) -> None:
        self.numbers.request("refused")
        client.keeps_open = False
        self._answer(client, (render_status(why.status, str(why), gone=why.gone),))

    def _answer(self, client: Client, pieces: tuple[bytes, ...]) -> None:
        now = time.monotonic()
        self._waiting.pop(client.fd, None)
        client.enter(State.ANSWER, now)
        client.send(pieces, now)
        self._count_sent(pieces)
        if not client.sending:
            self._sent(client)

    def _sent(self, client: Client) -> None:
        """Everything has been sent: a connection with an answer is closed, a watch continues."""
        now = time.monotonic()
        if client.state is State.ANSWER:
            if not client.keeps_open:
                self.connections.drop(client, "answered")
                return
            client.request = None
            client.enter(State.REQUEST, now)
        elif client.state is State.STREAM:
            if not client.ends_at:
                self.connections.drop(client, "ended")
            else:
                self._tell(client, now)

    def _begin_watch(self, client: Client, pieces: tuple[bytes, ...]) -> None:
        now = time.monotonic()
        self._waiting.pop(client.fd, None)
        self._streams[client.fd] = client
        client.enter(State.STREAM, now)
        self._watch_reviews.begin(client, now)
        client.request = None
        client.send(pieces, now)
        self._count_sent(pieces)

    # -- watches ------------------------------------------------------------------------------------------------------

    def _flush(self, now: float) -> None:
        """Send the new changes to all watches."""
        waited_s = now - self._dirty_since
        self._dirty_since, self._flushed_at = 0.0, now
        begun, end, told = time.perf_counter(), self._serving.end, 0
        for client in list(self._streams.values()):
            if client.place < end and not client.sending:
                told += self._tell(client, now)
        if told:
            self.numbers.flush(told, time.perf_counter() - begun, waited_s)

    def _tell(self, client: Client, now: float) -> bool:
        """Send a watch the changes that it does not have; returns whether there were any."""
        data = self._serving.changes(client)
        if data is None:
            self.connections.drop(client, BEHIND)
            return False
        return bool(data) and self._send(client, data, now)

    def _send(self, client: Client, data: bytes, now: float) -> bool:
        if self._chunked[0] is not data:
            self._chunked = data, chunk(data)
        try:
            client.send_one(self._chunked[1], now)
        except Gone:
            self.connections.drop(client, "closed")
            return False
        self.numbers.messages += 1
        self.numbers.bytes += len(self._chunked[1])
        if client.wants_write:
            self.connections.watch(client)
        return True

    def _look(self, now: float) -> None:
        """The periodic work: limits, bookmarks, dropping old history."""
        self._looked_at = now
        for client in list(self.connections.all.values()):
            if why := self.connections.why_end(client, self._serving.behind(client), now):
                self.connections.drop(client, why)
        for client in self._watch_reviews.ended(now):
            self._end(client, now, "revoked")
        for client in list(self._streams.values()):
            if client.ends_at <= now and not client.sending:
                self._end(client, now)
        if self._waiting:
            self._serve_waiting()
        if now - self._bookmarked_at >= self._limits.bookmark_s:
            self._bookmarked_at = now
            self._bookmark(now)
            self._serving.trim()

    def _bookmark(self, now: float) -> None:
        for client, data, why in self._serving.bookmarks(list(self._streams.values())):
            if why == BEHIND:
                self.connections.drop(client, why)
            elif why:
                self._end(client, now, why)
            else:
                self._send(client, data, now)

    def _end(self, client: Client, now: float, why: str = "") -> None:
        """End a watch with HTTP's last chunk. ``why``: the reason, "" if its time is over."""
        client.ends_at = 0.0
        if why:
            self.numbers.drop(why)
        try:
            client.send((LAST_CHUNK,), now)
        except Gone:
            self.connections.drop(client, "closed")
            return
        if not client.sending:
            self.connections.drop(client, "ended")

    def drop_one(self, why: str) -> bool:
        """End the watch that began last; its client goes elsewhere. Returns whether there was one."""
        for client in reversed(list(self._streams.values())):
            if not client.sending:
                self._end(client, time.monotonic(), why)
                return True
        return False

    def _count_sent(self, pieces: tuple[bytes, ...]) -> None:
        self.numbers.messages += 1
        self.numbers.bytes += sum(map(len, pieces))
