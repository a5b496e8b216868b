"""Watches on etcd: one stream and one thread each, resumed on another member without losing or repeating an event.

Rule: ``revision`` moves only past events that were delivered (or that the member's progress report covers), and a
stream is always opened right after it. Repeated failures without an opened stream in between end the watch with
DatastoreUnavailable: the watcher must know that it sees nothing.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from cni_calico.datastore.encoding import decode_document, prefix_end, read_document
from cni_calico.datastore.etcd.cluster import EtcdCluster
from cni_calico.datastore.etcd.errors import COMPACTED, DENIED, ELSEWHERE, LOGIN, LOST, error_for
from cni_calico.datastore.etcd.link import CallFailed, EtcdLink, stream_failure
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.interface import Document, Event
from cni_calico.datastore.unread import UnreadDocument
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, Compacted, DatastoreUnavailable, InternalError
from cni_calico.model.keys import Key, ListKey, covers, etcd_prefix, parse_path
from cni_calico.survived import tell_survived

OPEN_S = 5.0
LOGIN_S = 2.0
FAILURES = 2  # failures in a row without an opened stream
LOGINS = 3  # refusals in a row, as for calls
# The size of events that are not taken yet; beyond it the member has to wait. A decoded document takes about ten times
# its bytes.
BACKLOG = 1000  # commits
BACKLOG_BYTES = 2 * 1024 * 1024


class EtcdWatch:
    """A Watch (see interface.py) on an etcd cluster."""

    def __init__(
        self,
        cluster: EtcdCluster,
        listing: ListKey,
        revision: int,
        corrupt: Callable[[Key, str], None],
        unread_from: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._listing = listing
        self._revision = revision
        self._corrupt, self._unread_from = corrupt, unread_from
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._batches: deque[tuple[int, list[Event]]] = deque()  # with their size as received
        self._bytes = 0
        self._error: CalicoError | None = None
        self._cancelled = False
        self._opened = False
        self._unfinished: list[Any] = []  # the events of a commit whose others come with the next answer
        self._stream: Any = None
        threading.Thread(target=self._run, name="etcd-watch", daemon=True).start()

    # -- the reader's side ----------------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
            stream = self._stream
        if stream is not None and os.getpid() == self._pid:
            stream.cancel()

    def next(self, timeout_s: float) -> Sequence[Event]:
        """The changes of the next commit that touched the listing. Raises Compacted, DatastoreError."""
        if os.getpid() != self._pid:
            raise DatastoreUnavailable("cannot watch etcd: the watch belongs to the parent process")
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or self._batches or self._error is not None, timeout_s)
            if self._cancelled:
                return ()
            if self._batches:
                size, events = self._batches.popleft()
                self._bytes -= size
                self._changed.notify_all()  # there is room again
                return events
            if self._error is not None:
                raise self._error
            return ()

    def __enter__(self) -> EtcdWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    # -- the thread's side ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = logins = 0
        doing = f"watch {etcd_prefix(self._listing)}"
        while not self._cancelled:
            try:
                link = self._cluster.link(doing, Deadline.after(OPEN_S))
                self._opened = False
                failed = self._follow(link)
                if self._cancelled:
                    return  # we ended the stream ourselves: the link is still good
                if self._opened:
                    failures = logins = 0
                failures += failed.meaning in (LOST, ELSEWHERE) and not self._opened
                logins += failed.meaning == LOGIN
                if failed.meaning in (LOST, ELSEWHERE):
                    self._cluster.fail(link, failed.why)
                elif failed.meaning == LOGIN:
                    self._cluster.forget_login()
                if failed.meaning not in (LOST, ELSEWHERE, LOGIN) or failures >= FAILURES or logins >= LOGINS:
                    raise error_for(failed.meaning, doing, f"{link.endpoint}: {failed.why}")
            except CalicoError as e:
                tell_survived(e)
                self._end(e)
                return
            except Exception as e:  # a thread that dies would leave a watch in which nothing ever happens
                tell_survived(e)
                self._end(InternalError(f"cannot {doing}: {type(e).__name__}: {e}"))
                return

    def _end(self, error: CalicoError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _follow(self, link: EtcdLink) -> CallFailed:
        """Read one stream to its end; returns what ended it. Raises Compacted."""
        ended = threading.Event()
        try:
            stream = link.watch(self._requests(ended), self._cluster.metadata(link, LOGIN_S))
            with self._changed:
                self._stream = stream
                if self._cancelled:
                    stream.cancel()
            self._cluster.round_trips.count("Watch")
            self._unfinished = []  # a new stream sends that commit again
            for response in stream:
                self._receive(response)
            return CallFailed(LOST, "the stream ended")
        except CallFailed as e:
            return e
        except CalicoError:
            raise
        except Exception as e:
            tell_survived(e)
            return stream_failure(e)
        finally:
            ended.set()
            if self._stream is not None:
                self._stream.cancel()

    def _requests(self, ended: threading.Event) -> Iterator[Any]:
        prefix = etcd_prefix(self._listing)
        create = pb.WatchCreateRequest(
            key=prefix.encode(),
            range_end=prefix_end(prefix).encode(),
            start_revision=self._revision + 1,
            progress_notify=True,
            fragment=True,  # a member may gather a thousand commits; it sends them in parts of some 1.5 MB
        )
        yield pb.WatchRequest(create_request=create)
        ended.wait()  # ending the requests would end the stream

    def _receive(self, response: Any) -> None:
        """Raises CallFailed, Compacted."""
        if response.compact_revision:
            raise Compacted(
                f"cannot watch {etcd_prefix(self._listing)}: changes since revision {self._revision} are not kept"
            )
        if response.canceled:
            raise CallFailed(_meaning_of_cancel(response.cancel_reason), response.cancel_reason or "cancelled")
        if response.created:
            self._opened = True
            if response.header.revision < self._revision:
                raise Compacted(
                    f"cannot watch {etcd_prefix(self._listing)}: revision {self._revision} is not there yet"
                )
            return
        commits = list(_commits([*self._unfinished, *response.events]))
        self._unfinished = commits.pop()[1] if response.fragment and commits else []
        for revision, raw in commits:
            self._hand_on(revision, raw)
        if not response.events:
            self._revision = max(self._revision, response.header.revision)

    def _hand_on(self, revision: int, commit: Sequence[Any]) -> None:
        size = sum(len(raw.kv.value) for raw in commit)
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or not self._batches or self._has_room(size))
        events = [event for raw in commit if (event := self._event(raw)) is not None]
        with self._changed:
            if events:
                self._batches.append((size, events))
                self._bytes += size
                self._changed.notify_all()
            self._revision = revision

    def _has_room(self, size: int) -> bool:
        return len(self._batches) < BACKLOG and self._bytes + size <= BACKLOG_BYTES

    def _event(self, raw: Any) -> Event | None:
        key = parse_path(raw.kv.key.decode(errors="replace"))
        if key is None or not covers(self._listing, key):
            return None
        value: Document | None = None
        if raw.type == pb.Event.PUT:
            text = raw.kv.value
            if self._unread_from is not None and len(text) >= self._unread_from:
                return Event(key, UnreadDocument(len(text), partial(read_document, key, text)), raw.kv.mod_revision)
            try:
                value = decode_document(text)
            except ValueError as e:
                self._corrupt(key, str(e))  # as in a list: a record that cannot be read is treated as absent
        return Event(key, value, raw.kv.mod_revision)


def _commits(events: Any) -> Iterator[tuple[int, list[Any]]]:
    """(revision, its members) in one answer."""
    revision = 0
    members: list[Any] = []
    for raw in events:
        if members and raw.kv.mod_revision != revision:
            yield revision, members
            members = []
        revision = raw.kv.mod_revision
        members.append(raw)
    if members:
        yield revision, members


def _meaning_of_cancel(reason: str) -> str:
    if "permission denied" in reason:
        return DENIED
    if "auth token" in reason or "auth store is old" in reason or "user name is empty" in reason:
        return LOGIN
    return COMPACTED if "compacted" in reason else LOST
