"""Caches that keep the last readable version of a record that becomes unreadable.

Rule: a record that cannot be read never counts as absent. The last good version counts, whatever is stored under its
key now: as long as this process runs, and longer with the memory of an ``Earlier`` run. A record that was never
readable is ``unread``: users of these caches then remove nothing that depends on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from operator import eq
from typing import Any, Protocol

from cni_calico.datastore.cache import Cache, stop_caches
from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.datastore.remembered import CachedRecord, Kept, Listeners
from cni_calico.datastore.unreadable import Unreadable, listen
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import describe
from cni_calico.model.keys import Key, ListKey

IN_FORCE = "its last valid version stays in force"


class Earlier(Protocol):
    """What remembers last good versions from one run to the next; for one thread."""

    def pop(self, key: Key) -> Any:
        """The version of an earlier run, once; None: none is known."""

    def keep(self, versions: Mapping[Key, Any]) -> None:
        """Everything has been read, and these are the versions in force of what cannot be read."""


class NoEarlier:
    """An Earlier that remembers nothing."""

    def pop(self, key: Key) -> Any:
        return None

    def keep(self, versions: Mapping[Key, Any]) -> None:
        pass


class LastGoodCaches:
    """``follow`` makes a cache. ``records``, ``unread`` and ``problems`` are for one thread; the caches' threads call
    ``on_change``, and only for a difference: a record that was written again unchanged causes no call. A first list
    is one, even if nothing is in it.
    """

    def __init__(
        self,
        store: Datastore,
        on_change: Callable[[], None],
        earlier: Earlier | None = None,
        watch_after: threading.Event | None = None,
    ) -> None:
        """``watch_after``: as for Cache."""
        self._watch_after = watch_after
        self.all: list[Cache[Any]] = []
        self._earlier = earlier or NoEarlier()
        self._parts: dict[Key, Any] = {}
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
        part: Callable[[Versioned], Any] = lambda item: None,
    ) -> Cache[CachedRecord]:
        """``same``, ``delay``: as for Cache. The first list may come from the server's cache. ``part``: what can be
        used of a record that cannot be read as a whole, for ``parts``; it does not raise.
        """
        cache: Cache[CachedRecord] | None = None  # its thread may decode before we have it

        def decode_again(item: Versioned) -> CachedRecord:
            was_corrupt = self._corrupt.pop(item.key, None) is not None
            self._missing.discard(item.key)
            self._parts.pop(item.key, None)
            try:
                record = decode(item)
                if was_corrupt:
                    self._on_change()  # it may be the same as before
                return record
            except CorruptRecord as e:
                self._parts[item.key] = part(item)
                before = self._record_before(cache, item.key)
                if before is None:
                    self._missing.add(item.key)
                    raise
                self._note(item.key, f"{e}; {IN_FORCE}")
                return before

        cache = Cache(
            self._store,
            Kept(listing, decode_again, keep_documents=False, same=same),
            Listeners(on_change=self._changed, corrupt=self._note, on_read=self._on_change),
            delay=delay,
            cached=True,
            watch_after=self._watch_after,
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
        for key in self._lacking(cache) - records.keys():
            version = before[key] if key in before else self._earlier.pop(key)
            if version is not None:
                records[key] = version
        self._before[cache.listing] = records
        return records

    def unread(self, cache: Cache[Any]) -> frozenset[Key]:
        """The keys that exist but of which no version is known."""
        missing = self._lacking(cache)
        return frozenset(missing - self.records(cache).keys() if missing else ())

    def _lacking(self, cache: Cache[Any]) -> set[Key]:
        """The keys that exist and of which the cache itself has no version."""
        missing = {key for key in list(self._missing) if cache.get(key) is not None}
        return missing.union(self._no_documents.all_of((cache.listing,)))

    def parts(self, cache: Cache[Any]) -> dict[Key, Any]:
        """What can be used of the records that cannot be read as a whole, whether a version of them is known or not."""
        found = list(self._parts.items())
        return {key: value for key, value in found if value is not None and cache.get(key) is not None}

    def preserve(self, caches: Iterable[Cache[Any]]) -> None:
        """Have the versions in force of what cannot be read remembered, as of the last ``records`` of these caches."""
        versions: dict[Key, Any] = {}
        for cache in caches:
            known = self._before.get(cache.listing, {})
            versions.update((key, known[key]) for key in list(self._corrupt) if key in known)
        self._earlier.keep(versions)

    def problems(self) -> tuple[str, ...]:
        """A message for each record that cannot be read, as long as it exists."""
        absent = self._no_documents.all_of(cache.listing for cache in self.all)
        for key in list(self._corrupt):
            if key not in absent and all(cache.get(key) is None for cache in self.all):
                self._corrupt.pop(key, None)
                self._missing.discard(key)
        lasting = {key for key in list(self._corrupt) for before in self._before.values() if key in before}
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
