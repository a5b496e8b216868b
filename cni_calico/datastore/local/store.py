"""The embedded datastore: one SQLite file, the keys and JSON of etcd, usable by several processes and threads at once.

Rule: a commit is one SQLite transaction and one revision; what it replaced stays readable for ``keep_revisions``
revisions (lists at a revision, watches), then it is compacted away. A corrupt record is named and never overwritten;
only "remove" deletes it.
"""

from __future__ import annotations

import _thread
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import getpid

from cni_calico import faults
from cni_calico.datastore.encoding import plan_commit, record_path
from cni_calico.datastore.interface import (
    WHOLE,
    Committed,
    Event,
    Listing,
    Reading,
    Revision,
    RoundTrips,
    Versioned,
    Write,
)
from cni_calico.datastore.local.file import SUB_BITS, StepResult, patiently, translated
from cni_calico.datastore.local.pool import SqlitePool
from cni_calico.datastore.local.sql import Row, apply_commit, changed_rows, current_rows, listed_rows, versioned
from cni_calico.datastore.local.watch import Feed, LocalWatch, PutsAside
from cni_calico.deadline import Deadline
from cni_calico.errors import CorruptRecord, DeadlineExceeded, OutcomeUnknown
from cni_calico.model.keys import Key, ListKey, covers, etcd_prefix, parse_path

Batches = list[list[Event]]

READ = faults.declare("local.read")
CHANGING = frozenset(("create", "update", "put", "delete"))


def _ignore(key: Key, why: str) -> None:
    pass


def _read_all(key: Key, text: bytes) -> None:
    """Nothing is put aside."""


def _named(paths: Sequence[str]) -> str:
    return paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


class LocalStore:
    """A Datastore (see interface.py) in the SQLite file ``path``, created at the first write if it is missing.

    ``poll_s`` limits how late a watch sees what another process wrote; ``corrupt(key, why)`` is called for records left
    out of lists. Revisions are integers. Safe with threads. A forked child opens its own connections, but do not fork
    while another thread is inside a call: SQLite's locks would stay held in the child.
    """

    kind = "local"
    max_commit = 512
    commit_each = None

    def __init__(
        self,
        path: str,
        *,
        poll_s: float = 0.015,
        keep_revisions: int = 1000,
        corrupt: Callable[[Key, str], None] = _ignore,
    ) -> None:
        self.path = path
        self.identity = f"local:{path}"
        self.corrupt = corrupt
        self.round_trips = RoundTrips()
        self._poll_s = poll_s
        self._keep = max(1, keep_revisions)
        self._pool = SqlitePool(path)
        self._pid = getpid()
        self._writing = _thread.allocate_lock()  # writers of one process queue here instead of polling SQLite's lock
        self._feed: Feed | None = None
        self._feeding = _thread.allocate_lock()

    def get(self, key: Key, deadline: Deadline) -> Versioned | None:
        return self.get_many((key,), deadline)[0]

    def get_many(self, keys: Sequence[Key], deadline: Deadline) -> Sequence[Versioned | None]:
        if not keys:
            return ()
        paths = [record_path(key) for key in keys]
        rows = self._read("get", f"read {_named(paths)}", deadline, lambda connection: current_rows(connection, paths))
        return [versioned(key, rows[path]) if path in rows else None for key, path in zip(keys, paths, strict=True)]

    def list(
        self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None, reading: Reading = WHOLE
    ) -> Listing:
        prefix = etcd_prefix(listing)
        at, rows = self._read("list", f"list {prefix}", deadline, lambda c: listed_rows(c, prefix, revision))
        items, unreadable = [], []
        for row in rows:
            key = _listed_key(listing, row)
            if key is not None:
                try:
                    items.append(reading.receive(versioned(key, row)))
                except CorruptRecord as e:
                    unreadable.append((key, str(e)))
                    self.corrupt(key, str(e))
        return Listing(items, at, unreadable)

    def changes(
        self, listing: ListKey, after: int, deadline: Deadline, put_aside: PutsAside = _read_all
    ) -> tuple[int, Batches]:
        """(newest revision, the events of each commit since ``after``). ``put_aside(key, text)`` returns what stands
        for a document that is not to be read yet. Raises Compacted.
        """
        prefix = etcd_prefix(listing)
        newest, rows = self._read("changes", f"watch {prefix}", deadline, lambda c: changed_rows(c, prefix, after))
        batches: Batches = []
        for row in rows:
            key = _listed_key(listing, row)
            if key is not None:
                event = self._event(key, row, put_aside)
                if not batches or batches[-1][0].revision != event.revision:
                    batches.append([])
                batches[-1].append(event)
        return newest, batches

    def _event(self, key: Key, row: Row, put_aside: PutsAside) -> Event:
        value = put_aside(key, row[2]) if isinstance(row[2], bytes) else None
        if value is None and row[2] is not None:
            try:
                value = versioned(key, row).value
            except CorruptRecord as e:
                self.corrupt(key, str(e))  # as in a list: a record that cannot be read is treated as absent
        return Event(key, value, row[1] >> SUB_BITS)

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        paths, texts = plan_commit(writes, self.max_commit)
        doing = f"write {_named(paths)}"
        self.round_trips.count("commit", write=True)
        self._settle_process()
        if not self._writing.acquire(timeout=deadline.require(doing)):
            raise DeadlineExceeded(f"cannot {doing}: other writers of this process did not finish")
        try:
            with self._connection(doing, deadline, create=True) as connection:
                patiently(lambda: connection.execute("BEGIN IMMEDIATE"), deadline, doing)
                committed = apply_commit(connection, writes, paths, texts, keep=self._keep, doing=doing)
        finally:
            self._writing.release()
        if self._feed is not None:
            # a commit that may have changed nothing has no revision of its own
            changed = any(write.op in CHANGING for write in writes)
            self._feed.announce(int(committed.revision), paths if changed else ())
        return committed

    def watch(self, listing: ListKey, revision: Revision, *, unread_from: int | None = None) -> LocalWatch:
        from cni_calico.datastore.local.watch import Feed, LocalWatch

        self._settle_process()
        with self._feeding:  # one thread looks at the file for all watches
            feed = self._feed
            if feed is None or feed.error is not None:
                feed = self._feed = Feed(self._pool, self._poll_s)
        return LocalWatch(self.changes, feed, listing, int(revision), unread_from)

    def close(self) -> None:
        self._settle_process()
        with self._feeding:
            self._pool.close()
            feed = self._feed
        if feed is not None:
            feed.stop()

    def _read(
        self, operation: str, doing: str, deadline: Deadline, step: Callable[[sqlite3.Connection], StepResult]
    ) -> StepResult:
        """Run ``step`` on one snapshot of the store."""
        deadline.require(doing)
        if operation != "changes":  # a watch reading its events is no request of a caller
            self.round_trips.count(operation)
        with self._connection(doing, deadline) as connection:
            faults.before(READ)
            connection.execute("BEGIN")
            result = patiently(lambda: step(connection), deadline, doing)
            faults.after(READ)
        return result

    @contextmanager
    def _connection(self, doing: str, deadline: Deadline, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection for one operation: an open transaction is rolled back, errors are translated."""
        broken = False
        connection, file = self._pool.borrow(deadline, create=create)
        try:
            yield connection
        except OutcomeUnknown:
            broken = True
            raise
        except (sqlite3.Error, OSError) as e:
            broken = True
            raise translated(e, f"{doing} in datastore {self.path}") from e
        finally:
            if broken:
                self.round_trips.errors += 1
            elif connection.in_transaction:
                connection.execute("ROLLBACK")
            self._pool.give_back(connection, file, broken=broken)

    def _settle_process(self) -> None:
        """In a forked child: a thread that does not exist here may hold the parent's lock forever."""
        if self._pid != getpid():
            self._pid, self._writing, self._feed = getpid(), _thread.allocate_lock(), None
            self._feeding = _thread.allocate_lock()


def _listed_key(listing: ListKey, row: Row) -> Key | None:
    key = parse_path(row[0].decode(errors="replace"))
    return key if key is not None and covers(listing, key) else None
