"""The recorder's socket: a line of JSON asks, lines of JSON answer, the last one says what was lost in that time.

Rule: nobody is waited for. A reader who does not take what he asked for is told how much he missed, and is cut off
after a while, as is who asks for nothing; what cannot be understood is answered with an error. Only who may open the
socket (root) gets here.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol

from cni_calico.flows.conditions import meets
from cni_calico.flows.given_names import GivenNames
from cni_calico.flows.query import Aggregates, FlowQuery, QueryRefused, parse_query
from cni_calico.regular import make_directories

READERS = 8
_LINE, _ROOM, _PATIENCE_S = 64 << 10, 1 << 20, 10.0
_SIGN_S = 1.0  # who waits for an answer that is being looked for gets an empty one as often
_PIECE = 200  # documents that are made for one reader before the others have their turn


class FlowSource(Protocol):
    """What is served. ``documents`` are the oldest first, empty ones are no answer; ``ending`` is the last line, of a
    time (seconds since 1970). ``refusal``: why a request cannot be answered here, "" if it can.
    """

    def refusal(self, request: FlowQuery) -> str: ...

    def documents(self, request: FlowQuery) -> Iterator[dict[str, Any]]: ...

    def status(self) -> dict[str, Any]: ...

    def ending(self, since: float | None, until: float | None) -> dict[str, Any]: ...


class Reader:
    def __init__(self, connection: socket.socket, now: float) -> None:
        self.connection = connection
        self.request: FlowQuery | None = None
        self.given = GivenNames(())
        self.making: Iterator[dict[str, Any]] | None = None
        self.out = bytearray()
        self.got = b""
        self.missed = 0
        self.since: float | None = None  # from when on losses are told, seconds since 1970
        self.moved = now  # when something was last sent, or there was nothing to send
        self.heard = now  # when something was last sent
        self.ending = False

    def fileno(self) -> int:
        return self.connection.fileno()

    def say(self, document: dict[str, Any]) -> None:
        self.out += json.dumps(document, separators=(",", ":")).encode() + b"\n"


class FlowServer:
    """``wait`` instead of sleeping, then ``tell`` of what is new. Raises OSError if there can be no socket."""

    def __init__(self, path: str, source: FlowSource, now: Callable[[], float]) -> None:
        self.path, self._source, self._now = path, source, now
        make_directories(os.path.dirname(path), 0o755)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._readers: list[Reader] = []
        self._selector, self._waking = selectors.EpollSelector(), selectors.EpollSelector()
        with suppress(FileNotFoundError):
            os.unlink(path)
        before = os.umask(0o177)
        try:
            self._listening.bind(path)
        finally:
            os.umask(before)
        self._listening.listen(READERS)
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._waking.register(self._selector.fileno(), selectors.EVENT_READ)

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def followed(self) -> bool:
        """Whether somebody waits for what is new, or for more."""
        return any(one.making is not None or (one.request and one.request.follow) for one in self._readers)

    def close(self) -> None:
        for reader in list(self._readers):
            self._drop(reader)
        self._waking.close()
        self._selector.close()
        self._listening.close()
        with suppress(OSError):
            os.unlink(self.path)

    def wake_for(self, descriptor: int) -> None:
        """Let what can be read there end ``wait``, if it is asked to."""
        self._waking.register(descriptor, selectors.EVENT_READ)

    def wait_for_anything(self, seconds: float) -> bool:
        """At most so long, until a reader, to whom ``wait`` then listens, or what ``wake_for`` has named has something
        to say; returns whether one has.
        """
        return any(reader.making is not None for reader in self._readers) or bool(self._waking.select(seconds))

    def wait(self, seconds: float) -> None:
        """At most so long; requests are read and answers sent meanwhile."""
        busy = any(reader.making is not None and len(reader.out) < _ROOM for reader in self._readers)
        for key, events in self._selector.select(0 if busy else seconds):
            if key.fileobj is self._listening:
                self._accept()
                continue
            reader: Reader = key.data
            if events & selectors.EVENT_READ:
                self._receive(reader)
        for reader in list(self._readers):
            self._go_on(reader)

    def tell(self, document: dict[str, Any]) -> None:
        """To those who follow."""
        told = document
        for reader in self._readers:
            request = reader.request
            if request is None or not request.follow:
                continue
            document = reader.given.name(told) if reader.given else told
            if not meets(document, request.conditions):
                continue
            if len(reader.out) > _ROOM:
                reader.missed += 1
                continue
            if reader.missed:
                reader.say({"lost": reader.missed, "why": "this reader was too slow"})
                reader.missed = 0
            reader.say(document)

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return
        connection.setblocking(False)
        reader = Reader(connection, self._now())
        if len(self._readers) >= READERS:
            with suppress(OSError):
                connection.send(b'{"error":"there are %d readers already: try again later"}\n' % READERS)
            connection.close()
            return
        self._readers.append(reader)
        self._selector.register(connection, selectors.EVENT_READ, reader)

    def _receive(self, reader: Reader) -> None:
        try:
            data = reader.connection.recv(_LINE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(reader)
            return
        if reader.request is not None or reader.ending:
            return  # one request only; what else comes is not looked at
        reader.got += data
        line, end, _ = reader.got.partition(b"\n")
        if not end and len(line) < _LINE:
            return
        try:
            if not end:
                raise QueryRefused(f"a request has at most {_LINE} bytes")
            request = reader.request = parse_query(line)
            if why := self._source.refusal(request):
                raise QueryRefused(why)
        except QueryRefused as e:
            reader.say({"error": str(e)})
            reader.ending = True
            return
        if request.status:
            reader.say(self._source.status())
            reader.ending = True
        else:
            reader.given = GivenNames(request.names)
            reader.making, reader.since = self._answer(reader, request), request.since

    def _answer(self, reader: Reader, request: FlowQuery) -> Iterator[dict[str, Any]]:
        """Oldest first, so that what follows can come after it; none is kept."""
        if request.aggregate:
            summed, lost = Aggregates(), []
            for document in self._source.documents(request):
                if "verdict" in document:
                    summed.add(document)
                elif document:
                    lost.append(document)
                yield {}
            yield from summed.documents()
            if summed.left_out:
                yield {"lost": summed.left_out, "why": f"more than {summed.most} different ones"}
            yield from lost
            return
        count = 0
        for document in self._source.documents(request):
            if document:
                if not count:
                    first = document["start"]
                count += 1
            yield document
        if request.last is not None and count >= request.last:
            reader.since = _seconds(first) if count else float("inf")

    def _go_on(self, reader: Reader) -> None:
        if reader.making is not None and len(reader.out) < _ROOM:
            for _ in range(_PIECE):
                try:
                    document = next(reader.making)
                except StopIteration:
                    self._finish(reader)
                    break
                if document:
                    reader.say(document)
            if not reader.out and self._now() - reader.heard >= _SIGN_S:
                reader.say({})
        self._send(reader)

    def _finish(self, reader: Reader) -> None:
        request, reader.making = reader.request, None
        assert request is not None
        if not request.follow:
            reader.say(self._source.ending(reader.since, request.until))
            reader.ending = True

    def _send(self, reader: Reader) -> None:
        now = self._now()
        if reader.out:
            try:
                sent = reader.connection.send(reader.out)
                del reader.out[:sent]
                reader.moved = reader.heard = now
            except BlockingIOError:
                if now - reader.moved > _PATIENCE_S:
                    self._drop(reader)
                return
            except OSError:
                self._drop(reader)
                return
        else:
            reader.moved = now
        if reader.request is None and not reader.ending and now - reader.heard > _PATIENCE_S:
            self._drop(reader)  # it has a place, and asks for nothing
            return
        if reader.ending and not reader.out:
            self._drop(reader)

    def _drop(self, reader: Reader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
            with suppress(KeyError, ValueError):
                self._selector.unregister(reader.connection)
            reader.connection.close()


def _seconds(text: str) -> float | None:
    """Of a time in a document."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
