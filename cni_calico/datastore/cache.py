"""A listing kept in memory: list once, then watch; the resident server and the agent read it instead of the store.

Rule: a record never goes back to an older revision, in whatever order our own commits, watch events and lists arrive.
During an outage the last snapshot is kept (``healthy`` is then False); afterwards the watch continues where it ended
or, if these revisions have been compacted, everything is listed again. For a record that cannot be decoded ``get``
returns the document and ``record`` returns None. Lists are decoded page by page, and nothing else of a page stays in
memory.
"""

from __future__ import annotations

import random
import threading
from typing import Generic, TypeVar

from cni_calico.backoff import Backoff
from cni_calico.datastore.interface import Reading, Versioned
from cni_calico.deadline import Deadline, ProgressDeadline
from cni_calico.errors import CalicoError, CorruptRecord, DeadlineExceeded, InternalError
from cni_calico.survived import tell_survived

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from cni_calico.datastore.interface import Committed, Datastore, Event, Listing, Revision, Watch, Write
    from cni_calico.model.keys import Key, ListKey

CachedRecord = TypeVar("CachedRecord")

LIST_S = 30.0  # without any record of a list
WATCH_S = 5.0  # how long one wait for events lasts; stop() does not wait for it to end
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
_NO_DOCUMENT: Mapping[str, Any] = {}  # one for all: a listing may have a hundred thousand


def order_of(revision: Revision) -> int:
    """A number by which revisions of one store can be ordered: the revision itself, or the number at its beginning."""
    if isinstance(revision, int):
        return revision
    digits = revision[: len(revision) - len(revision.lstrip("0123456789"))]
    return int(digits or 0)


def _nothing(_: object, __: object = None) -> None:
    pass


class Cache(Generic[CachedRecord]):
    """``decode(versioned)`` makes a CachedRecord or raises CorruptRecord, which is passed to ``corrupt(key, why)``.

    ``on_change(keys)`` is called after every change, outside the lock, by the thread that made it; if ``same(before,
    after)`` is given, only for records that it does not call the same. Without ``keep_documents`` only the decoded
    records are kept (``get`` then returns empty documents, with revisions that only have their order). If
    ``hand_over(key, record)`` is given, it is called with every new record, which is then not kept here, and
    ``gone(key)`` with every removed one, in the order of the changes. ``decode`` may be called for records of a list
    that fails later; that must do no harm.

    ``delay(stopped)`` is how many seconds to wait before the first list; with ``cached`` the server's own cache may
    answer that list, and the watch then brings what it lacks. Safe with threads.
    """

    def __init__(
        self,
        store: Datastore,
        listing: ListKey,
        *,
        decode: Callable[[Versioned], CachedRecord],
        on_change: Callable[[frozenset[Key]], None] = _nothing,
        corrupt: Callable[[Key, str], None] = _nothing,
        keep_documents: bool = True,
        same: Callable[[CachedRecord, CachedRecord], bool] | None = None,
        hand_over: Callable[[Key, CachedRecord], None] | None = None,
        gone: Callable[[Key], None] = _nothing,
        delay: Callable[[threading.Event], float] | None = None,
        cached: bool = False,
    ) -> None:
        self.listing = listing
        self._keep_documents = keep_documents
        self._same = same
        self._hand_over = hand_over
        self._gone = gone
        self._delay = delay
        self._cached = cached
        self._store = store
        self._decode = decode
        self._on_change = on_change
        self._corrupt = corrupt
        self._changed = threading.Condition()
        self._entries: dict[
            Key, tuple[Revision, CachedRecord | None, Versioned | None]
        ] = {}  # the last entry only if documents are kept
        self._removed: dict[Key, int] = {}  # deleted by our own commits, until the watch has passed them
        self._revision: Revision | None = None
        self._error: CalicoError | None = None
        self._watch: Watch | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._stopped = threading.Event()
        self._random = random.SystemRandom()
        self._thread = threading.Thread(target=self._run, name=f"cache-{type(listing).__name__}", daemon=True)
        self._thread.start()

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def synced(self) -> bool:
        """Whether the listing has been read at least once."""
        return self._revision is not None

    @property
    def healthy(self) -> bool:
        """Whether the snapshot is being kept up to date."""
        return self.synced and self._error is None and not self._stopped.is_set()

    @property
    def error(self) -> CalicoError | None:
        """Why the store cannot be watched now, or None."""
        return self._error

    @property
    def revision(self) -> Revision | None:
        """Everything up to this revision has been seen; None before the first list."""
        return self._revision

    def get(self, key: Key) -> Versioned | None:
        entry = self._entries.get(key)
        return _as_versioned(key, entry) if entry is not None else None

    def record(self, key: Key) -> CachedRecord | None:
        """The decoded record; None if it is absent or corrupt."""
        entry = self._entries.get(key)
        return entry[1] if entry is not None else None

    def items(self) -> dict[Key, Versioned]:
        """A snapshot."""
        with self._changed:
            return {key: _as_versioned(key, entry) for key, entry in self._entries.items()}

    def records(self) -> dict[Key, CachedRecord]:
        """A snapshot of the records that could be decoded."""
        with self._changed:
            return {key: entry[1] for key, entry in self._entries.items() if entry[1] is not None}

    def wait_synced(self, deadline: Deadline) -> None:
        """Raises the error that prevents reading the listing, DeadlineExceeded if there is none."""
        if not self.wait_until(lambda: self.synced, deadline):
            raise self._error or DeadlineExceeded(f"cannot read {self.listing}: no answer before the deadline")

    def wait_until(self, condition: Callable[[], bool], deadline: Deadline) -> bool:
        """Wait until ``condition`` holds, which is checked after every change (under the lock). Returns whether it
        holds.
        """
        with self._changed:
            return self._changed.wait_for(condition, deadline.remaining_s())

    # -- our own writes -------------------------------------------------------------------------------------------

    def apply(self, committed: Committed, writes: Sequence[Write] = ()) -> None:
        """Apply a commit of ours at once; ``writes`` are its members, which show what was deleted."""
        with self._changed:
            revision = order_of(committed.revision)
            if self._revision is not None and revision <= order_of(self._revision):
                return  # the watch has reported it already, and perhaps later changes
            changed = [v.key for v in committed.stored if self._covered(v.key) and self._take(v)]
            for write in writes:
                if write.op in ("delete", "remove") and self._covered(write.key) and self._drop(write.key, revision):
                    self._removed[write.key] = revision
                    changed.append(write.key)
            self._changed.notify_all()
        self._tell(changed)

    def _covered(self, key: Key) -> bool:
        from cni_calico.model.keys import covers

        return covers(self.listing, key)

    # -- changes, under the lock ----------------------------------------------------------------------------------

    def _take(self, versioned: Versioned) -> bool:
        """Take a record, unless the known version is at least as new. Returns whether the change is to be reported."""
        revision = order_of(versioned.revision)
        entry = self._entries.get(versioned.key)
        known = order_of(entry[0]) if entry is not None else self._removed.get(versioned.key, -1)
        if known >= revision:
            return False
        return self._keep(versioned, self._read(versioned))

    def _read(self, versioned: Versioned) -> CachedRecord | CorruptRecord:
        try:
            return self._decode(versioned)
        except CorruptRecord as e:
            return e

    def _keep(self, versioned: Versioned, read: CachedRecord | CorruptRecord) -> bool:
        """Store the entry; returns whether that makes a difference."""
        key = versioned.key
        record = None if isinstance(read, CorruptRecord) else read
        if isinstance(read, CorruptRecord):
            self._corrupt(key, str(read))
        entry = self._entries.get(key)
        before = entry[1] if entry is not None else None
        differs = True
        if self._same is not None and before is not None and record is not None and self._same(before, record):
            differs, record = False, before
        if self._hand_over is not None and record is not None:
            self._hand_over(key, record)
            record = None
        self._removed.pop(key, None)
        if self._keep_documents:
            self._entries[key] = versioned.revision, record, versioned
        else:
            self._entries[key] = order_of(versioned.revision), record, None
        return differs

    def _drop(self, key: Key, revision: int) -> bool:
        """Forget a record that was deleted at ``revision``, unless it was written after that."""
        entry = self._entries.get(key)
        if entry is not None and order_of(entry[0]) > revision:
            return False
        if self._entries.pop(key, None) is None:
            return key not in self._removed
        self._gone(key)
        return True

    def _replace(
        self, listing: Listing, decoded: Mapping[Key, CachedRecord | CorruptRecord] | None = None
    ) -> list[Key]:
        """Replace the contents by a list, except for our own later writes. ``decoded`` has those of its records that
        were decoded while it was read.
        """
        decoded = decoded or {}
        at = order_of(listing.revision)
        if self._revision is not None and at < order_of(self._revision):
            self._entries, self._removed = (
                {},
                {},
            )  # this is another store than before: what was known does not count any more
        newer = {key for key, entry in self._entries.items() if order_of(entry[0]) > at}
        newer.update(key for key, removed in self._removed.items() if removed > at)
        changed = []
        # no record is missing in the first list, which may be long
        listed = {versioned.key for versioned in listing.items} if self._entries else None
        for versioned in listing.items:
            key = versioned.key
            known = self._entries.get(key)
            if key not in newer and (known is None or order_of(known[0]) != order_of(versioned.revision)):
                if self._keep(versioned, decoded[key] if key in decoded else self._read(versioned)):
                    changed.append(key)
        gone = [key for key in self._entries if listed is not None and key not in listed and key not in newer]
        for key in gone:
            del self._entries[key]
            self._gone(key)
        self._seen(listing.revision)
        return changed + gone

    def _follow(self, events: Sequence[Event]) -> list[Key]:
        changed = []
        for event in events:
            if event.value is not None:
                taken = self._take(Versioned(event.key, event.value, event.revision, event.uid))
            else:
                taken = event.key in self._entries and self._drop(event.key, order_of(event.revision))
            if taken:
                changed.append(event.key)
        self._seen(events[-1].revision)
        return changed

    def _seen(self, revision: Revision) -> None:
        self._revision = revision
        passed = order_of(revision)
        for key in [key for key, removed in self._removed.items() if removed <= passed]:
            del self._removed[key]

    def _tell(self, changed: Iterable[Key]) -> None:
        keys = frozenset(changed)
        if keys:
            self._on_change(keys)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._delay is not None:
            self._stopped.wait(self._delay(self._stopped))
        pause_s = 0.0
        while not self._stopped.wait(pause_s * self._random.uniform(0.5, 1.5)):  # not all nodes at once
            try:
                self._list()
                self._follow_watch()
            except CalicoError as e:  # also Compacted: until the next list it is unknown what was missed
                tell_survived(e)
                self._blind(e)
            except Exception as e:  # a thread that dies would leave a snapshot that looks current
                tell_survived(e)
                self._blind(InternalError(f"cannot keep {self.listing} up to date: {type(e).__name__}: {e}"))
            pause_s = self._backoff.next()

    def _list(self) -> None:
        self._tell(self._read_list())

    def _read_list(self) -> list[Key]:
        """Take a list; returns the keys of what changed. Whoever is told of them no longer pays for the list."""
        decoded: dict[Key, CachedRecord | CorruptRecord] = {}
        patience = ProgressDeadline(LIST_S)

        def read(versioned: Versioned) -> Versioned:
            patience.renew()
            decoded[versioned.key] = self._read(versioned)
            if self._keep_documents:
                return versioned
            return Versioned(versioned.key, _NO_DOCUMENT, order_of(versioned.revision))

        # only the first list: an answer from the server's cache may be older than what we have seen
        reading = Reading(read, cached=self._cached and not self.synced, ordered=False)
        listing = self._store.list(self.listing, patience, reading=reading)
        with self._changed:
            changed = self._replace(listing, decoded)
            self._error = None
            self._changed.notify_all()
        return changed

    def _follow_watch(self) -> None:
        """Follow one watch until it is cancelled. Raises CalicoError."""
        assert self._revision is not None
        with self._store.watch(self.listing, self._revision) as watch:
            with self._changed:
                self._watch = watch
            while not self._stopped.is_set():
                events = watch.next(WATCH_S)
                if watch.cancelled:
                    return
                self._backoff.reset()
                if events:
                    with self._changed:
                        changed = self._follow(events)
                        self._changed.notify_all()
                    self._tell(changed)

    def _blind(self, error: CalicoError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread; the snapshot stays readable."""
        stop_caches((self,))

    def dismiss(self) -> None:
        """Tell the thread to end, without waiting for it."""
        self._stopped.set()
        with self._changed:
            watch = self._watch
        if watch is not None:
            watch.cancel()


def _as_versioned(key: Key, entry: tuple[Revision, Any, Versioned | None]) -> Versioned:
    revision, _, versioned = entry
    return Versioned(key, _NO_DOCUMENT, revision) if versioned is None else versioned


def error_of(caches: Iterable[Cache[Any]]) -> str:
    """Why one of them is out of date; "" if none is."""
    return next((str(cache.error) for cache in caches if cache.error is not None), "")


def stop_caches(caches: Iterable[Cache[Any]]) -> None:
    """End the threads of all caches and wait for them, at most WATCH_S in total even if one hangs."""
    caches = tuple(caches)
    for cache in caches:
        cache.dismiss()
    deadline = Deadline.after(WATCH_S)
    for cache in caches:
        if cache._thread is not threading.current_thread():
            cache._thread.join(deadline.remaining_s())
