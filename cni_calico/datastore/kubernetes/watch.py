"""Watches of the Kubernetes API: one stream per collection, resumed from the last resourceVersion seen.

Rule: a stream that ends is opened again at its position, with growing pauses while it keeps ending at once; one that
cannot be resumed is Compacted. Within a collection the order is the server's; events of different collections that
arrive within a few milliseconds of each other are ordered by their resourceVersions.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from cni_calico.datastore.http import Connection, Lost
from cni_calico.datastore.interface import Document, Event, Revision
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import backoff_s
from cni_calico.datastore.kubernetes.custom import is_marked
from cni_calico.datastore.kubernetes.guess import guess_key
from cni_calico.datastore.kubernetes.heads import UNREAD, LineParts, put_aside, read_head
from cni_calico.datastore.kubernetes.layout import Collection
from cni_calico.datastore.kubernetes.revision import positions, render_revision
from cni_calico.deadline import Deadline
from cni_calico.errors import Compacted, CorruptRecord, DatastoreError, DatastoreUnavailable, DatastoreUnsupported
from cni_calico.model.keys import Key, ListKey, covers

Told = Callable[[Key, str], None]


class Readable(Protocol):
    """Something with a file descriptor that can be waited for."""

    def fileno(self) -> int: ...

    def buffered(self) -> bool: ...


class EventStream(Protocol):
    """One collection's events: see Stream. ``connection`` is None while there is none, until ``not_before``."""

    position: str

    @property
    def collection(self) -> Collection: ...

    @property
    def not_before(self) -> float: ...

    @property
    def bytes_read(self) -> int: ...

    @property
    def connection(self) -> Readable | None: ...

    def open(self) -> None: ...

    def read(self) -> list[Mapping[str, Any]]: ...

    def close(self) -> None: ...


OPEN_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0  # the time to finish reading a chunk whose beginning has arrived
SHORT_LIFE_S = 5.0
# the wait before a watch of a type that the cluster does not know is tried again; at most twice that
TYPE_RETRY_S = 30.0
_SETTLE_S = 0.02
_LINE_LIMIT = 64 * 1024 * 1024
# How much is read ahead of the consumer; the rest waits at the server, which ends a watch that lags too far behind. A
# decoded object takes about ten times its bytes.
BACKLOG_BYTES = 2 * 1024 * 1024


class Stream:
    """One collection's watch: the raw events as they come."""

    def __init__(
        self, api: KubernetesAPI, collection: Collection, position: str, unread_from: int | None = None
    ) -> None:
        """``unread_from``: an event as long as this has no more of its object than its head (heads.py), and its line as
        "unread".
        """
        self.collection = collection
        self.position = position
        self.not_before = 0.0
        self.connection: Connection | None = None
        self._api, self._unread_from = api, unread_from
        self.bytes_read = 0
        self._chunks: Iterator[bytes] = iter(())
        self._rest = LineParts()
        self._opened_at = 0.0
        self._short = 0

    def open(self) -> None:
        """Raises Compacted, DatastoreError, DeadlineExceeded."""
        seconds = 300 + os.urandom(1)[0]  # so that not all streams of a cluster open at once
        url = self.collection.url(
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=self.position,
            timeoutSeconds=str(seconds),
        )
        self._delay()
        try:
            doing, accept = f"watch {self.collection.path}", self.collection.accept_watch
            self.connection = self._api.stream(url, Deadline.after(OPEN_TIMEOUT_S), doing, accept=accept)
        except DatastoreUnsupported:
            if not self.collection.optional:
                raise
            # the type may be defined at any time; its first watch then reports everything that exists
            self.not_before = time.monotonic() + TYPE_RETRY_S * (1 + os.urandom(1)[0] / 256)
            return
        self._opened_at = time.monotonic()
        self._chunks = self.connection.chunks(lambda: Deadline.after(READ_TIMEOUT_S))
        self._rest = LineParts()

    def _delay(self) -> None:
        """Decide when to open the stream again, should this attempt fail or the stream end soon."""
        self._short += 1
        self.not_before = time.monotonic() + backoff_s(self._short)

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def read(self) -> list[Mapping[str, Any]]:
        """The events of the next chunk; none if the stream has ended."""
        try:
            chunk = next(self._chunks)
        except (StopIteration, Lost):
            if time.monotonic() - self._opened_at >= SHORT_LIFE_S:
                self._short, self.not_before = 0, 0.0
            self.close()
            return []
        self.bytes_read += len(chunk)
        lines = self._rest.split(chunk)
        if self._rest.size > _LINE_LIMIT:
            raise DatastoreUnavailable(f"cannot watch {self.collection.path}: an event is too long")
        return [self._parse(line) for line in lines if line.strip()]

    def _parse(self, line: bytes) -> Mapping[str, Any]:
        if self._unread_from is not None and len(line) >= self._unread_from and (head := read_head(line)) is not None:
            return {**head, UNREAD: line}
        return _parse(line, self.collection.path)


def _parse(line: bytes, path: str) -> Mapping[str, Any]:
    try:
        event = json.loads(line)
        if isinstance(event["object"], dict) and isinstance(event["type"], str):
            return dict(event)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise DatastoreUnavailable(f"cannot watch {path}: an event cannot be read")


class KubernetesWatch:
    """A Watch (see interface.py) of one or several collections."""

    def __init__(
        self,
        api: KubernetesAPI,
        listing: ListKey,
        collections: Sequence[Collection],
        revision: Revision,
        corrupt: Told,
        *,
        follow: Callable[[Collection, str], EventStream] | None = None,
        unread_from: int | None = None,
    ) -> None:
        """``follow(collection, position)`` opens a stream; by default one of the API server."""
        places = positions(revision, len(collections))
        follow = follow or (lambda collection, at: Stream(api, collection, at, unread_from))
        self.streams = [follow(c, at) for c, at in zip(collections, places, strict=True)]
        self._listing = listing
        self._corrupt = corrupt
        self._ready: deque[Event] = deque()
        self._cancelled = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        self._cancelled = True
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def __enter__(self) -> KubernetesWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._cancelled = True
        for stream in self.streams:
            stream.close()
        wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    def next(self, timeout_s: float) -> Sequence[Event]:
        """The next change, as a batch of one. Raises Compacted, DatastoreUnavailable, DatastoreDenied."""
        until = time.monotonic() + timeout_s
        while not self._cancelled:
            if self._ready:
                return (self._ready.popleft(),)
            left = until - time.monotonic()
            self._open_streams()
            if not self._collect(max(0.0, left)) and left <= 0:
                return ()
        return ()

    def _open_streams(self) -> None:
        now = time.monotonic()
        for stream in self.streams:
            if stream.connection is None and stream.not_before <= now:
                stream.open()

    def _collect(self, timeout_s: float) -> bool:
        """Read what arrives within the time, plus some of what arrives with it; returns whether anything did."""
        readable = self._readable(timeout_s)
        if not readable:
            return False
        found: list[tuple[EventStream, Mapping[str, Any]]] = []
        limit = self._bytes_read() + BACKLOG_BYTES
        while readable and not self._cancelled:
            for stream in readable:
                found += [(stream, event) for event in stream.read()]
            more = len(self.streams) > 1 and self._bytes_read() < limit
            readable = self._readable(_SETTLE_S) if more else []
        if len(self.streams) > 1:
            found.sort(key=lambda pair: _order(pair[1]))
        for stream, raw in found:
            self._receive(stream, raw)
        return True

    def _bytes_read(self) -> int:
        return sum(stream.bytes_read for stream in self.streams)

    def _readable(self, timeout_s: float) -> list[EventStream]:
        open_streams = [stream for stream in self.streams if stream.connection is not None]
        buffered = [stream for stream in open_streams if stream.connection and stream.connection.buffered()]
        if buffered:
            return buffered
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        by_fd = {stream.connection.fileno(): stream for stream in open_streams if stream.connection}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        waits = [s.not_before - time.monotonic() for s in self.streams if s.connection is None]
        ready = poll.poll(int(1000 * max(0.0, min([timeout_s, *waits]))) + 1)
        return [by_fd[fd] for fd, _ in ready if fd in by_fd]

    def _receive(self, stream: EventStream, raw: Mapping[str, Any]) -> None:
        kind, obj = raw["type"], raw["object"]
        if kind == "ERROR":
            stream.close()
            raise _stream_error(obj, stream.collection.path)
        version = (obj.get("metadata") or {}).get("resourceVersion")
        if version:
            stream.position = str(version)
        if kind == "BOOKMARK":
            return
        if kind == "DELETED" and is_marked(obj):
            return  # it was reported as deleted when it was marked
        self._tell(stream, obj, raw.get(UNREAD), deleted=kind == "DELETED" or is_marked(obj))

    def _tell(self, stream: EventStream, obj: Mapping[str, Any], line: object, *, deleted: bool) -> None:
        try:
            found = stream.collection.read(obj)
        except CorruptRecord as e:
            # as in a list: a record that cannot be read is treated as absent
            self._corrupt(guess_key(obj, stream.collection.plural), str(e))
            return
        if found is None or not covers(self._listing, found[0]):
            return
        standing = [s.position for s in self.streams] if len(self.streams) > 1 else None
        revision = render_revision(obj, stream.collection.state(obj), standing)
        uid = str((obj.get("metadata") or {}).get("uid") or "")
        value: Document | None = None
        if not deleted:
            value = found[1] if not isinstance(line, bytes) else put_aside(line, stream.collection.read, found[0])
        self._ready.append(Event(found[0], value, revision, uid))


def _order(raw: Mapping[str, Any]) -> int:
    version = str((raw["object"].get("metadata") or {}).get("resourceVersion") or "")
    return int(version) if version.isascii() and version.isdecimal() else 0


def _stream_error(status: Mapping[str, Any], path: str) -> DatastoreError:
    text = f"cannot watch {path}: {status.get('message') or status.get('reason') or 'the server ended it'}"
    return Compacted(text) if status.get("code") == 410 else DatastoreUnavailable(text)
