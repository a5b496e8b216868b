"""PURE: what is known of a listing: its records, and which of them our own commits removed.

Rule: a record never goes back to an older revision, in whatever order our own commits, a watch's events and lists
arrive. Only a list of another store, whose revisions begin anew, puts something older in the place of what was known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from cni_calico.datastore.interface import Committed, Document, Event, Listing, Revision, Versioned, Write
from cni_calico.errors import CorruptRecord
from cni_calico.model.keys import Key, ListKey, covers

CachedRecord = TypeVar("CachedRecord")
KnownEntry = tuple[Revision, CachedRecord | None, Versioned | None]  # the last only if documents are kept

NO_DOCUMENT: Mapping[str, Any] = {}  # one for all: a listing may have a hundred thousand


def order_of(revision: Revision) -> int:
    """A number by which revisions of one store can be ordered: the revision itself, or the number at its beginning."""
    if isinstance(revision, int):
        return revision
    digits = revision[: len(revision) - len(revision.lstrip("0123456789"))]
    return int(digits or 0)


def _nothing(_: object = None, __: object = None) -> None:
    pass


def decoding(decode: Callable[[Any, Document], CachedRecord]) -> Callable[[Versioned], CachedRecord]:
    """What makes a record of an item, by a function of ``model.documents.codec``."""
    return lambda item: decode(item.key, item.value)


class Kept(Generic[CachedRecord]):
    """What is kept of which listing, and how it is read.

    ``decode(versioned)`` makes a CachedRecord or raises CorruptRecord; it may be called for records of a list that
    fails later, which must do no harm. Without ``keep_documents`` only the decoded records are kept (``get`` then
    returns empty documents, with revisions that only have their order). ``same(before, after)``: a record that was
    written again like this is no change. ``unread_from``: as for Datastore.watch; such a document reaches ``decode``
    unread.
    """

    __slots__ = ("decode", "keep_documents", "listing", "same", "unread_from")

    def __init__(
        self,
        listing: ListKey,
        decode: Callable[[Versioned], CachedRecord],
        keep_documents: bool = True,
        same: Callable[[CachedRecord, CachedRecord], bool] | None = None,
        unread_from: int | None = None,
    ) -> None:
        self.listing = listing
        self.decode = decode
        self.keep_documents = keep_documents
        self.same = same
        self.unread_from = unread_from

    def read(self, versioned: Versioned) -> CachedRecord | CorruptRecord:
        try:
            return self.decode(versioned)
        except CorruptRecord as e:
            return e


class Listeners(Generic[CachedRecord]):
    """Who is told. ``on_change(keys)`` after every change, ``on_read()`` after a first list in which nothing is,
    ``corrupt(key, why)`` of what cannot be decoded.

    If ``hand_over(key, record)`` is given, it is called with every new record, which is then not kept, and
    ``gone(key)`` with every removed one, in the order of the changes.
    """

    __slots__ = ("corrupt", "gone", "hand_over", "on_change", "on_read")

    def __init__(
        self,
        on_change: Callable[[frozenset[Key]], None] = _nothing,
        corrupt: Callable[[Key, str], None] = _nothing,
        hand_over: Callable[[Key, CachedRecord], None] | None = None,
        gone: Callable[[Key], None] = _nothing,
        on_read: Callable[[], None] = _nothing,
    ) -> None:
        self.on_change = on_change
        self.on_read = on_read
        self.corrupt = corrupt
        self.hand_over = hand_over
        self.gone = gone


class Remembered(Generic[CachedRecord]):
    """For one thread at a time. The methods return the keys of what changed, which the caller passes on."""

    def __init__(self, kept: Kept[CachedRecord], told: Listeners[CachedRecord]) -> None:
        self.kept = kept
        self.entries: dict[Key, KnownEntry[CachedRecord]] = {}
        self.removed: dict[Key, int] = {}  # deleted by our own commits, until the watch has passed them
        self.revision: Revision | None = None
        self._told = told

    def commit(self, committed: Committed, writes: Sequence[Write]) -> list[Key]:
        """A commit of ours; ``writes`` are its members, which show what was deleted."""
        listing, revision = self.kept.listing, order_of(committed.revision)
        if self.revision is not None and revision <= order_of(self.revision):
            return []  # the watch has reported it already, and perhaps later changes
        changed = [v.key for v in committed.stored if covers(listing, v.key) and self._receive(v)]
        for write in writes:
            if write.op in ("delete", "remove") and covers(listing, write.key) and self._drop(write.key, revision):
                self.removed[write.key] = revision
                changed.append(write.key)
        return changed

    def mirror(self, events: Sequence[Event]) -> list[Key]:
        """Events of a watch."""
        changed = []
        for event in events:
            if event.value is not None:
                differs = self._receive(Versioned(event.key, event.value, event.revision, event.uid))
            else:
                differs = event.key in self.entries and self._drop(event.key, order_of(event.revision))
            if differs:
                changed.append(event.key)
        self._seen(events[-1].revision)
        return changed

    def replace(self, listing: Listing, decoded: Mapping[Key, CachedRecord | CorruptRecord] | None = None) -> list[Key]:
        """Replace the contents by a list, except for our own later writes. ``decoded`` has those of its records that
        were decoded while it was read.
        """
        decoded = decoded or {}
        at = order_of(listing.revision)
        if self.revision is not None and at < order_of(self.revision):
            # this is another store than before: what was known does not count any more
            self.entries, self.removed = {}, {}
        newer = {key for key, entry in self.entries.items() if order_of(entry[0]) > at}
        newer.update(key for key, removed in self.removed.items() if removed > at)
        changed = []
        # no record is missing in the first list, which may be long
        listed = {versioned.key for versioned in listing.items} if self.entries else None
        for versioned in listing.items:
            key = versioned.key
            known = self.entries.get(key)
            if key not in newer and (known is None or order_of(known[0]) != order_of(versioned.revision)):
                if self._keep(versioned, decoded[key] if key in decoded else self.kept.read(versioned)):
                    changed.append(key)
        gone = [key for key in self.entries if listed is not None and key not in listed and key not in newer]
        for key in gone:
            del self.entries[key]
            self._told.gone(key)
        self._seen(listing.revision)
        return changed + gone

    def _receive(self, versioned: Versioned) -> bool:
        """Keep a record, unless the known version is at least as new. Returns whether the change is to be reported."""
        revision = order_of(versioned.revision)
        entry = self.entries.get(versioned.key)
        known = order_of(entry[0]) if entry is not None else self.removed.get(versioned.key, -1)
        if known >= revision:
            return False
        return self._keep(versioned, self.kept.read(versioned))

    def _keep(self, versioned: Versioned, read: CachedRecord | CorruptRecord) -> bool:
        """Store the entry; returns whether that makes a difference."""
        key = versioned.key
        record = None if isinstance(read, CorruptRecord) else read
        if isinstance(read, CorruptRecord):
            self._told.corrupt(key, str(read))
        entry = self.entries.get(key)
        before = entry[1] if entry is not None else None
        differs = True
        if self.kept.same is not None and before is not None and record is not None and self.kept.same(before, record):
            differs, record = False, before
        if self._told.hand_over is not None and record is not None:
            self._told.hand_over(key, record)
            record = None
        self.removed.pop(key, None)
        if self.kept.keep_documents:
            self.entries[key] = versioned.revision, record, versioned
        else:
            self.entries[key] = order_of(versioned.revision), record, None
        return differs

    def _drop(self, key: Key, revision: int) -> bool:
        """Forget a record that was deleted at ``revision``, unless it was written after that."""
        entry = self.entries.get(key)
        if entry is not None and order_of(entry[0]) > revision:
            return False
        if self.entries.pop(key, None) is None:
            return key not in self.removed
        self._told.gone(key)
        return True

    def _seen(self, revision: Revision) -> None:
        self.revision = revision
        passed = order_of(revision)
        for key in [key for key, removed in self.removed.items() if removed <= passed]:
            del self.removed[key]
