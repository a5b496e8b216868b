"""Caches whose records go on saying what they said when they become unreadable.

Rule: a record that cannot be read never counts as one that is not there. While we run, the last good one counts, even
when nothing but garbage is left under its key; one that was never readable is ``unread``: whoever uses these records
takes nothing away on its account.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import eq
from typing import Any, TypeVar

from cni_calico.datastore.cache import Cache, stop_caches
from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.datastore.unreadable import Unreadable, listen
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import describe
from cni_calico.model.keys import Key, ListKey

IN_FORCE = "what it said before stays in force"
T = TypeVar("T")


class KeptCaches:
    """``follow`` makes one. ``records``, ``unread`` and ``problems`` are for one thread, ``on_change`` is called from
    those of the caches, and only when something is different: a record that was written again as it was tells nothing.
    """

    def __init__(self, store: Datastore, on_change: Callable[[], None]) -> None:
        self.all: list[Cache[Any]] = []
        self._store = store
        self._on_change = on_change
        self._corrupt: dict[Key, str] = {}
        self._missing: set[Key] = set()  # those of them of which nothing is known
        self._before: dict[ListKey, dict[Key, Any]] = {}
        self._no_documents = Unreadable(store, lambda key, why: self._note(key, f"{describe(key)}: {why}"))
        listen(store, self._no_documents.note)  # a cache takes them for absent

    def follow(
        self,
        listing: ListKey,
        decode: Callable[[Versioned], T],
        *,
        same: Callable[[T, T], bool] = eq,
        delay_s: float = 0.0,
    ) -> Cache[T]:
        """``same``, ``delay_s``: as for Cache. The first list may come from a cache of the server's."""
        cache: Cache[T] | None = None  # its thread may decode before we have it

        def decode_again(item: Versioned) -> T:
            was_corrupt = self._corrupt.pop(item.key, None) is not None
            self._missing.discard(item.key)
            try:
                record = decode(item)
                if was_corrupt:
                    self._on_change()  # it may say what it said before
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
            delay_s=delay_s,
            cached=True,
        )
        self.all.append(cache)
        return cache

    def _record_before(self, cache: Cache[T] | None, key: Key) -> T | None:
        """What a record said when it could be read last, also if it was no document at all since then."""
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

    def records(self, cache: Cache[T]) -> dict[Key, T]:
        """What is there, with the last that is known of what cannot be read any more."""
        records, before = cache.records(), self._before.get(cache.listing, {})
        for key in self._no_documents.all_of((cache.listing,)):
            if key in before:
                records.setdefault(key, before[key])
        self._before[cache.listing] = records
        return records

    def unread(self, cache: Cache[Any]) -> frozenset[Key]:
        """The keys of which nothing is known though something is there."""
        missing = {key for key in list(self._missing) if cache.get(key) is not None}
        missing.update(self._no_documents.all_of((cache.listing,)))
        return frozenset(missing - self.records(cache).keys() if missing else ())

    def problems(self) -> tuple[str, ...]:
        """Records that cannot be read, as long as they are there."""
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

    def stop(self) -> None:
        stop_caches(self.all)
