"""Watches on the embedded store: one thread per store notices commits, each watch reads its own changes.

Rule: a watch sees every commit after its revision exactly once, in order, because it reads them from the kept history;
the thread only signals that there is something new. SQLite's ``data_version`` changes when another connection commits
(1.7 us to ask); our own commits announce themselves with the keys they changed, so that a watch reads only if its
records are among them.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from os import getpid, register_at_fork

from cni_calico.datastore.encoding import read_document
from cni_calico.datastore.interface import Document, Event
from cni_calico.datastore.local.file import translated
from cni_calico.datastore.local.pool import NO_FILE, SqlitePool
from cni_calico.datastore.local.sql import newest_revision
from cni_calico.datastore.unread import UnreadDocument
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreUnavailable
from cni_calico.model.keys import Key, ListKey, etcd_prefix

PutsAside = Callable[[Key, bytes], Document | None]  # None: it is to be read
Changed = Callable[[ListKey, int, Deadline, PutsAside], tuple[int, list[list[Event]]]]

# Held while the thread is inside SQLite: a fork would otherwise copy SQLite's locks, held forever, into the child.
_in_sqlite = threading.Lock()
register_at_fork(before=_in_sqlite.acquire, after_in_parent=_in_sqlite.release, after_in_child=_in_sqlite.release)

READ_S = 5.0  # for reading changes: the file is local, so only a stuck disk takes longer
_OWN_MAX = 512  # the number of our own commits whose keys are remembered


class Feed:
    """``latest`` is the newest revision known; ``error`` says why no further commits are noticed, once that is so."""

    def __init__(self, pool: SqlitePool, poll_s: float) -> None:
        self.changed = threading.Condition()
        self.latest = -1
        self.error: CalicoError | None = None
        self.pid = getpid()
        self._own: dict[int, Sequence[str]] = {}  # revision -> keys, of commits of this process
        self._pool = pool
        self._poll_s = poll_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        opened = self._open()  # opened here, not in the thread: the file that exists now is the one to watch
        if opened is not None:
            self._thread = threading.Thread(target=self._run, args=opened, name="local-watch", daemon=True)
            self._thread.start()

    def announce(self, revision: int, keys: Sequence[str] = ()) -> None:
        """A commit of this process, with the keys it changed; or one that the thread noticed."""
        with self.changed:
            if keys:
                self._own[revision] = keys
                if len(self._own) > _OWN_MAX:
                    del self._own[next(iter(self._own))]
            if revision > self.latest:
                self.latest = revision
                self.changed.notify_all()

    def passed(self, revision: int, prefix: str) -> int:
        """The revision up to which nothing under ``prefix`` is known to have changed since ``revision``.

        Call it while holding ``changed``.
        """
        while (keys := self._own.get(revision + 1)) is not None and not any(key.startswith(prefix) for key in keys):
            revision += 1
        return revision

    def stop(self) -> None:
        """End the thread; watches raise DatastoreUnavailable."""
        self._stop.set()
        self._fail(DatastoreUnavailable(f"cannot watch datastore {self._pool.path}: it has been closed"))
        if self._thread is not None and self.pid == getpid():
            self._thread.join(READ_S)

    def _fail(self, error: CalicoError) -> None:
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def _open(self) -> tuple[sqlite3.Connection, tuple[int, int]] | None:
        try:
            return self._pool.borrow(Deadline.after(READ_S))
        except CalicoError as e:
            self._fail(e)
            return None

    def _run(self, connection: sqlite3.Connection, file: tuple[int, int]) -> None:
        while True:
            try:
                self._poll(connection, file)
            except (sqlite3.Error, OSError) as e:
                self._fail(translated(e, f"watch datastore {self._pool.path}"))
            except CalicoError as e:
                self._fail(e)
            finally:
                with _in_sqlite:
                    self._pool.give_back(connection, file)
            if self._stop.is_set() or self.error is not None:
                return
            with _in_sqlite:
                opened = self._open()
            if opened is None:
                return
            connection, file = opened

    def _poll(self, connection: sqlite3.Connection, file: tuple[int, int]) -> None:
        """Follow one file until ``stop``, or until a file appears where there was none."""
        seen = None
        while not self._stop.is_set():
            with _in_sqlite:
                version = connection.execute("PRAGMA data_version").fetchone()[0]
                newest = newest_revision(connection) if version != seen else -1
            seen = version
            self.announce(newest)
            if self._pool.generation() != (self.pid, *file):
                if file == NO_FILE:
                    return
                raise DatastoreUnavailable(f"cannot watch datastore {self._pool.path}: the file was replaced")
            self._stop.wait(self._poll_s)


class LocalWatch:
    """A Watch (datastore/interface.py) on a LocalStore, which passes in its ``changes``."""

    def __init__(
        self, changes: Changed, feed: Feed, listing: ListKey, revision: int, unread_from: int | None = None
    ) -> None:
        self._changes, self._unread_from = changes, unread_from
        self._feed = feed
        self._listing = listing
        self._prefix = etcd_prefix(listing)
        self._revision = revision
        self._pending: list[list[Event]] = []
        self._cancelled = False
        # Checks, once at the first read, whether the revision is still kept and has been reached at all.
        self._first = True

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        with self._feed.changed:
            self._cancelled = True
            self._feed.changed.notify_all()

    def next(self, timeout_s: float) -> Sequence[Event]:
        """The changes of the next commit that touched the listing. Raises Compacted, DatastoreUnavailable."""
        if self._feed.pid != getpid():
            raise DatastoreUnavailable("cannot watch the datastore: the watch belongs to the parent process")
        until = time.monotonic() + timeout_s
        while not self._pending and not self._cancelled:
            if not self._first and not self._wait(max(0.0, until - time.monotonic())):
                return ()
            self._first = False
            deadline = Deadline.after(READ_S)
            self._revision, self._pending = self._changes(self._listing, self._revision, deadline, self._put_aside)
        return () if self._cancelled else self._pending.pop(0)

    def _put_aside(self, key: Key, text: bytes) -> Document | None:
        if self._unread_from is None or len(text) < self._unread_from:
            return None
        return UnreadDocument(len(text), partial(read_document, key, text))

    def _wait(self, timeout_s: float) -> bool:
        feed = self._feed
        with feed.changed:
            feed.changed.wait_for(lambda: self._cancelled or feed.error is not None or self._is_behind(), timeout_s)
            if self._cancelled:
                return False
            if feed.error is not None:
                raise feed.error
            return self._is_behind()

    def _is_behind(self) -> bool:
        """Call it while holding the feed's ``changed``."""
        if self._feed.latest > self._revision:
            self._revision = self._feed.passed(self._revision, self._prefix)
        return self._feed.latest > self._revision

    def __enter__(self) -> LocalWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
