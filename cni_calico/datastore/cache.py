"""A listing kept in memory: list once, then watch; the resident server and the agent read it instead of the store.

Rule: what is known only goes forward (remembered.py). During an outage the last snapshot is kept (``healthy`` is then
False); afterwards the watch continues where it ended or, if these revisions have been compacted, everything is listed
again. For a record that cannot be decoded ``get`` returns the document and ``record`` returns None. Lists are decoded
page by page, and nothing else of a page stays in memory.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic

from cni_calico.backoff import Backoff
from cni_calico.datastore.interface import Committed, Datastore, Reading, Revision, Versioned, Watch, Write
from cni_calico.datastore.remembered import NO_DOCUMENT, CachedRecord, Kept, Listeners, Remembered, order_of
from cni_calico.deadline import Deadline, ProgressDeadline
from cni_calico.errors import CalicoError, CorruptRecord, DeadlineExceeded, InternalError
from cni_calico.model.keys import Key
from cni_calico.survived import tell_survived

LIST_S = 30.0  # without any record of a list
PUT_OFF_S = 1.0
WATCH_S = 5.0  # how long one wait for events lasts; stop() does not wait for it to end
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0


class Cache(Generic[CachedRecord]):
    """``told`` is called outside the lock, by the thread that made the change, except for what it is handed over.

    ``delay(stopped)`` is how many seconds to wait before the first list; with ``cached`` the server's own cache may
    answer that list, and the watch then brings what it lacks. ``watch_after``: the first watch waits for it, at most
    PUT_OFF_S, because it is worth less than what happens until then. Safe with threads.
    """

    def __init__(
        self,
        store: Datastore,
        kept: Kept[CachedRecord],
        told: Listeners[CachedRecord] | None = None,
        *,
        delay: Callable[[threading.Event], float] | None = None,
        cached: bool = False,
        watch_after: threading.Event | None = None,
    ) -> None:
        self.listing = kept.listing
        self._kept, self._told = kept, told or Listeners()
        self._known = Remembered(kept, self._told)
        self._delay = delay
        self._cached, self._watch_after = cached, watch_after
        self._store = store
        self._changed = threading.Condition()
        self._error: CalicoError | None = None
        self._watch: Watch | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._stopped = threading.Event()
        self._random = random.SystemRandom()
        self._thread = threading.Thread(target=self._run, name=f"cache-{type(kept.listing).__name__}", daemon=True)
        self._thread.start()

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def synced(self) -> bool:
        """Whether the listing has been read at least once."""
        return self._known.revision is not None

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
        return self._known.revision

    def get(self, key: Key) -> Versioned | None:
        entry = self._known.entries.get(key)
        return _as_versioned(key, entry) if entry is not None else None

    def record(self, key: Key) -> CachedRecord | None:
        """The decoded record; None if it is absent or corrupt."""
        entry = self._known.entries.get(key)
        return entry[1] if entry is not None else None

    def items(self) -> dict[Key, Versioned]:
        """A snapshot."""
        with self._changed:
            return {key: _as_versioned(key, entry) for key, entry in self._known.entries.items()}

    @property
    def count(self) -> int:
        """How many records there are, whether they can be decoded or not."""
        return len(self._known.entries)

    def records(self) -> dict[Key, CachedRecord]:
        """A snapshot of the records that could be decoded."""
        with self._changed:
            return {key: entry[1] for key, entry in self._known.entries.items() if entry[1] is not None}

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
            changed = self._known.commit(committed, writes)
            self._changed.notify_all()
        self._tell(changed)

    def _tell(self, changed: Iterable[Key]) -> None:
        keys = frozenset(changed)
        if keys:
            self._told.on_change(keys)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._delay is not None:
            self._stopped.wait(self._delay(self._stopped))
        pause_s = 0.0
        while not self._stopped.wait(pause_s * self._random.uniform(0.5, 1.5)):  # not all nodes at once
            try:
                self._list()
                if self._watch_after is not None:
                    self._watch_after.wait(PUT_OFF_S)
                    self._watch_after = None
                self._follow_watch()
            except CalicoError as e:  # also Compacted: until the next list it is unknown what was missed
                tell_survived(e)
                self._blind(e)
            except Exception as e:  # a thread that dies would leave a snapshot that looks current
                tell_survived(e)
                self._blind(InternalError(f"cannot keep {self.listing} up to date: {type(e).__name__}: {e}"))
            pause_s = self._backoff.next()

    def _list(self) -> None:
        is_first = not self.synced
        changed = self._read_list()
        self._tell(changed)
        if is_first and not changed:
            self._told.on_read()

    def _read_list(self) -> list[Key]:
        """Take a list; returns the keys of what changed. Whoever is told of them no longer pays for the list."""
        decoded: dict[Key, CachedRecord | CorruptRecord] = {}
        patience = ProgressDeadline(LIST_S)

        def read(versioned: Versioned) -> Versioned:
            patience.renew()
            decoded[versioned.key] = self._kept.read(versioned)
            if self._kept.keep_documents:
                return versioned
            return Versioned(versioned.key, NO_DOCUMENT, order_of(versioned.revision))

        # only the first list: an answer from the server's cache may be older than what we have seen
        reading = Reading(read, cached=self._cached and not self.synced, ordered=False)
        listing = self._store.list(self.listing, patience, reading=reading)
        with self._changed:
            changed = self._known.replace(listing, decoded)
            self._error = None
            self._changed.notify_all()
        return changed

    def _follow_watch(self) -> None:
        """Follow one watch until it is cancelled. Raises CalicoError."""
        assert self._known.revision is not None
        watched = self._store.watch(self.listing, self._known.revision, unread_from=self._kept.unread_from)
        with watched as watch:
            with self._changed:
                self._watch = watch
            while not self._stopped.is_set():
                events = watch.next(WATCH_S)
                if watch.cancelled:
                    return
                self._backoff.reset()
                if events:
                    with self._changed:
                        changed = self._known.mirror(events)
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
    return Versioned(key, NO_DOCUMENT, revision) if versioned is None else versioned


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
