"""An honest Datastore in memory: it passes tests/contract/, and a test can script what happens to its commits.

``script`` holds one step per coming commit, the default when it is empty being an ordinary commit:

    None        an ordinary commit
    "fail"      DatastoreUnavailable, nothing is written
    "lost"      written, then OutcomeUnknown
    "vanish"    not written, then OutcomeUnknown
    a callable  called with the store right before the commit: somebody else's writes, through ``elsewhere``

``down`` makes every operation and every watch fail. ``commits`` records the writes of every commit that was applied.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from cni_calico.datastore.encoding import corrupt_record, decode_document, plan_commit, read_document, record_path
from cni_calico.datastore.interface import (
    WHOLE,
    CommitConflict,
    Committed,
    Event,
    Failed,
    Listing,
    Reading,
    Revision,
    RoundTrips,
    Versioned,
    Write,
)
from cni_calico.datastore.unread import UnreadDocument
from cni_calico.deadline import Deadline
from cni_calico.errors import Compacted, CorruptRecord, DatastoreUnavailable, OutcomeUnknown
from cni_calico.model.keys import Key, ListKey, covers, etcd_path, etcd_prefix, parse_path

Step = str | None | Callable[["MemoryStore"], None]
Past = list[tuple[int, bytes | None]]  # (revision, JSON; None: deleted), oldest first


class MemoryStore:
    kind = "memory"
    commit_each = None

    def __init__(self, *, max_commit: int = 60) -> None:
        self.max_commit = max_commit
        self.identity = f"memory:{id(self):x}"
        self.round_trips = RoundTrips()
        self.script: deque[Step] = deque()
        self.down = False
        self.commits: list[tuple[Write, ...]] = []
        self.corrupted: list[tuple[Key, str]] = []
        self.closed = False
        self.revision = 0
        self._compacted = 0
        self._past: dict[str, Past] = {}
        self._changed = threading.Condition()

    def corrupt(self, key: Key, why: str) -> None:
        self.corrupted.append((key, why))

    # -- what tests do to it --------------------------------------------------------------------------------------

    def elsewhere(self, *writes: Write) -> Committed:
        """A commit by somebody else: not scripted, not counted."""
        return self._apply(writes)

    def plant(self, key: Key, raw: bytes) -> None:
        """Store bytes that may be no document."""
        with self._changed:
            self.revision += 1
            self._past.setdefault(etcd_path(key), []).append((self.revision, raw))
            self._changed.notify_all()

    def compact(self) -> None:
        """Forget everything but what is there now."""
        with self._changed:
            self._compacted = self.revision
            kept = {path: past[-1:] for path, past in self._past.items() if past[-1][1] is not None}
            self._past = kept
            self._changed.notify_all()

    def set_down(self, down: bool) -> None:
        with self._changed:
            self.down = down
            self._changed.notify_all()

    def documents(self) -> dict[str, dict]:
        """Everything stored now, by etcd key."""
        with self._changed:
            return {path: decode_document(past[-1][1]) for path, past in self._past.items() if past[-1][1] is not None}

    # -- the door -------------------------------------------------------------------------------------------------

    def get(self, key: Key, deadline: Deadline) -> Versioned | None:
        return self.get_many((key,), deadline)[0]

    def get_many(self, keys: Sequence[Key], deadline: Deadline) -> Sequence[Versioned | None]:
        paths = [record_path(key) for key in keys]
        self._reached("get", deadline)
        with self._changed:
            return [self._at(key, path, self.revision) for key, path in zip(keys, paths, strict=True)]

    def list(
        self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None, reading: Reading = WHOLE
    ) -> Listing:
        self._reached("list", deadline)
        with self._changed:
            at = self.revision if revision is None else revision
            if not isinstance(at, int) or not self._compacted <= at <= self.revision:
                raise Compacted(f"cannot list {listing}: revision {at} is not kept")
            items, unreadable = [], []
            for path in sorted(self._past):
                key = parse_path(path)
                if path.startswith(etcd_prefix(listing)) and key is not None and covers(listing, key):
                    try:
                        items.append(self._at(key, path, at))
                    except CorruptRecord as e:
                        unreadable.append((key, str(e)))
                        self.corrupt(key, str(e))
            return Listing([reading.receive(item) for item in items if item is not None], at, unreadable)

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        plan_commit(writes, self.max_commit)
        self._reached("commit", deadline, write=True)
        step = self.script.popleft() if self.script else None
        if step == "fail":
            raise DatastoreUnavailable("cannot write: scripted, nothing was written")
        if step == "vanish":
            raise OutcomeUnknown("cannot write: scripted, the request was lost")
        if callable(step):
            step(self)
        committed = self._apply(writes)
        self.commits.append(tuple(writes))
        if step == "lost":
            raise OutcomeUnknown("cannot write: scripted, the answer was lost")
        return committed

    def watch(self, listing: ListKey, revision: Revision, *, unread_from: int | None = None) -> MemoryWatch:
        return MemoryWatch(self, listing, int(revision), unread_from)

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _reached(self, operation: str, deadline: Deadline, *, write: bool = False) -> None:
        deadline.require(f"{operation} in the datastore")
        self.round_trips.count(operation, write=write)
        if self.down or self.closed:
            self.round_trips.errors += 1
            raise DatastoreUnavailable("cannot reach the datastore: scripted outage")

    def _at(self, key: Key, path: str, revision: int) -> Versioned | None:
        past = [entry for entry in self._past.get(path, ()) if entry[0] <= revision]
        if not past or past[-1][1] is None:
            return None
        try:
            return Versioned(key, decode_document(past[-1][1]), past[-1][0])
        except ValueError as e:
            raise corrupt_record(key, e) from e

    def _apply(self, writes: Sequence[Write]) -> Committed:
        paths, texts = plan_commit(writes, max(self.max_commit, len(writes)))
        with self._changed:
            failed, existing = [], {}
            for index, (write, path) in enumerate(zip(writes, paths, strict=True)):
                if write.op == "remove":
                    existing[path] = path in self._past and self._past[path][-1][1] is not None
                    continue
                found = self._at(write.key, path, self.revision)
                existing[path] = found is not None
                if write.op != "put" and (found.revision if found else None) != write.revision:
                    failed.append(Failed(index, write.key, found))
            if failed:
                raise CommitConflict(failed)
            changes = []
            for write, path, text in zip(writes, paths, texts, strict=True):
                if text is not None or (write.op in ("delete", "remove") and existing[path]):
                    changes.append((path, None if text is None else text.encode()))
            if changes:
                self.revision += 1
                for path, raw in changes:
                    self._past.setdefault(path, []).append((self.revision, raw))
                self._changed.notify_all()
            stored = [Versioned(w.key, w.value, self.revision) for w in writes if w.value is not None]
            return Committed(self.revision, stored)


class MemoryWatch:
    def __init__(self, store: MemoryStore, listing: ListKey, revision: int, unread_from: int | None) -> None:
        self._store = store
        self._unread_from = unread_from
        self._listing = listing
        self._revision = revision
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        with self._store._changed:
            self._cancelled = True
            self._store._changed.notify_all()

    def next(self, timeout_s: float) -> Sequence[Event]:
        store = self._store
        with store._changed:
            store._changed.wait_for(lambda: self._cancelled or store.down or store.closed or self._ready(), timeout_s)
            if self._cancelled:
                return ()
            if store.down or store.closed:
                raise DatastoreUnavailable("cannot watch the datastore: scripted outage")
            if not self._ready():
                return ()
            if not store._compacted <= self._revision <= store.revision:
                raise Compacted(f"cannot watch {self._listing}: revision {self._revision} is not kept")
            self._revision, events = self._next_commit()
            return events

    def _ready(self) -> bool:
        store = self._store
        if not store._compacted <= self._revision <= store.revision:
            return True
        revision, events = self._next_commit()
        if not events:
            self._revision = revision
        return bool(events)

    def _next_commit(self) -> tuple[int, list[Event]]:
        """(its revision, events) of the first commit after ours that touched the listing."""
        store, found = self._store, []
        for path, past in store._past.items():
            key = parse_path(path)
            if key is None or not covers(self._listing, key):
                continue
            found += [(revision, key, raw) for revision, raw in past if revision > self._revision]
        if not found:
            return store.revision, []
        first = min(revision for revision, _, _ in found)
        return first, [self._event(key, raw, first) for revision, key, raw in found if revision == first]

    def _event(self, key: Key, raw: bytes | None, revision: int) -> Event:
        if raw is not None and self._unread_from is not None and len(raw) >= self._unread_from:
            return Event(key, UnreadDocument(len(raw), lambda: read_document(key, raw)), revision)
        try:
            return Event(key, None if raw is None else decode_document(raw), revision)
        except ValueError as e:
            self._store.corrupt(key, str(e))
            return Event(key, None, revision)

    def __enter__(self) -> MemoryWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
