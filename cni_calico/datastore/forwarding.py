"""A Datastore on top of another one, for classes that change a part of what it does.

Rule: everything goes to the other store, except ``close``: whoever opened that store closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cni_calico.datastore.interface import (
    WHOLE,
    Committed,
    Datastore,
    Listing,
    Reading,
    Revision,
    RoundTrips,
    Versioned,
    Watch,
    Write,
)
from cni_calico.deadline import Deadline
from cni_calico.model.keys import Key, ListKey


class ForwardingStore:
    """A Datastore whose methods are those of ``store``; it writes only with ``commit``."""

    commit_each = None

    def __init__(self, store: Datastore) -> None:
        self.store = store
        self.max_commit = store.max_commit

    @property
    def kind(self) -> str:
        return self.store.kind

    @property
    def corrupt(self) -> Callable[[Key, str], None]:
        return self.store.corrupt

    @corrupt.setter
    def corrupt(self, told: Callable[[Key, str], None]) -> None:
        self.store.corrupt = told

    @property
    def identity(self) -> str:
        return self.store.identity

    @property
    def round_trips(self) -> RoundTrips:
        return self.store.round_trips

    def get(self, key: Key, deadline: Deadline) -> Versioned | None:
        return self.store.get(key, deadline)

    def get_many(self, keys: Sequence[Key], deadline: Deadline) -> Sequence[Versioned | None]:
        return self.store.get_many(keys, deadline)

    def list(
        self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None, reading: Reading = WHOLE
    ) -> Listing:
        return self.store.list(listing, deadline, revision=revision, reading=reading)

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        return self.store.commit(writes, deadline)

    def watch(self, listing: ListKey, revision: Revision, *, unread_from: int | None = None) -> Watch:
        return self.store.watch(listing, revision, unread_from=unread_from)

    def close(self) -> None:
        """Does nothing: the store belongs to its opener."""
