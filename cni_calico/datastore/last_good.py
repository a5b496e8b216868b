"""Caches that keep the last readable version of a record that becomes unreadable.

Rule: a record that cannot be read never counts as absent. As long as this process runs, the last good version counts,
whatever is stored under its key now. A record that was never readable is ``unread``: users of these caches then remove
nothing that depends on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import eq
from typing import Any

from cni_calico.datastore.cache import Cache, CachedRecord, stop_caches
from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.datastore.unreadable import Unreadable, listen
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import describe
from cni_calico.model.keys import Key, ListKey

IN_FORCE = "its last valid version stays in force"


class LastGoodCaches:
    """``follow`` makes a cache. ``records``, ``unread`` and ``problems`` are for one thread; the caches' threads call
    ``on_change``, and only for a difference: a record that was written again unchanged causes no call.
    """

    def __init__(self, store: Datastore, on_change: Callable[[], None]) -> None:
        self.all: list[Cache[Any]] = []
        self._store = store
        self._on_change = on_change
        self._corrupt: dict[Key, str] = {}
        self._missing: set[Key] = set()  # the unreadable records of which no version is known
        self._before: dict[ListKey, dict[Key, Any]] = {}
        self._no_documents = Unreadable(store, lambda key, why: self._note(key, f"{describe(key)}: {why}"))
        listen(store, self._no_documents.note)  # a cache treats them as absent

    def follow(
        self,
        listing: ListKey,
        decode: Callable[[Versioned], CachedRecord],
        *,
        same: Callable[[CachedRecord, CachedRecord], bool] = eq,
        delay: Callable[[threading.Event], float] | None = None,
    ) -> Cache[CachedRecord]:
        """``same``, ``delay``: as for Cache. The first list may come from the server's cache."""
        cache: Cache[CachedRecord] | None = None  # its thread may decode before we have it

        def decode_again(item: Versioned) -> CachedRecord:
            was_corrupt = self._corrupt.pop(item.key, None) is not None
            self._missing.discard(item.key)
            try:
                record = decode(item)
                if was_corrupt:
                    self._on_change()  # it may be the same as before
                return record
            except CorruptRecord as e:
                before = self._record_before(cache, item.key)
                if before is None:
                    self._missing.add(item.key)
                    raise
                self._note(item.key, f"{e}; {IN_FORCE}")
                return before

        cache = Cache(
            self._store,
            listing,
            decode=decode_again,
            on_change=self._changed,
            corrupt=self._note,
            keep_documents=False,
            same=same,
            delay=delay,
            cached=True,
        )
        self.all.append(cache)
        return cache

    def _record_before(self, cache: Cache[CachedRecord] | None, key: Key) -> CachedRecord | None:
        """The last readable version of a record, even if what is stored now is not a document at all."""
        if cache is None:
            return None
        record = cache.record(key)
        if record is None and self._no_documents.is_noted(key):
            record = self._before.get(cache.listing, {}).get(key)
        return record

    def _changed(self, keys: frozenset[Key]) -> None:
        self._on_change()

    def _note(self, key: Key, why: str) -> None:
        self._corrupt[key] = why
        self._on_change()

    @property
    def synced(self) -> bool:
        return all(cache.synced for cache in self.all)

    def records(self, cache: Cache[CachedRecord]) -> dict[Key, CachedRecord]:
        """The present records, with the last known version of those that have become unreadable."""
        records, before = cache.records(), self._before.get(cache.listing, {})
        for key in self._no_documents.all_of((cache.listing,)):
            if key in before:
                records.setdefault(key, before[key])
        self._before[cache.listing] = records
        return records

    def unread(self, cache: Cache[Any]) -> frozenset[Key]:
        """The keys that exist but of which no version is known."""
        missing = {key for key in list(self._missing) if cache.get(key) is not None}
        missing.update(self._no_documents.all_of((cache.listing,)))
        return frozenset(missing - self.records(cache).keys() if missing else ())

    def problems(self) -> tuple[str, ...]:
        """A message for each record that cannot be read, as long as it exists."""
        absent = self._no_documents.all_of(cache.listing for cache in self.all)
        for key in list(self._corrupt):
            if key not in absent and all(cache.get(key) is None for cache in self.all):
                self._corrupt.pop(key, None)
                self._missing.discard(key)
        lasting = {key for key in absent for before in self._before.values() if key in before}
        return tuple(
            sorted(
                f"{text}; {IN_FORCE}" if key in lasting and IN_FORCE not in text else text
                for key, text in list(self._corrupt.items())
            )
        )

    def dismiss(self, cache: Cache[Any]) -> None:
        """Follow a listing no longer, without waiting for its thread."""
        self.all.remove(cache)
        self._before.pop(cache.listing, None)
        cache.dismiss()

    def stop(self) -> None:
        stop_caches(self.all)
