"""Single writes of several threads, in one commit.

Rule: a member whose comparison fails is taken out with its own conflict and the others are tried again; a lost answer
is everybody's. What has more than one member goes to the store as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni_calico.batching import Batcher
from cni_calico.datastore.client import (
    CommitConflict,
    Committed,
    Datastore,
    Listing,
    Revision,
    RoundTrips,
    Versioned,
    Watch,
    Write,
)
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreUnavailable, DeadlineExceeded, OutcomeUnknown
from cni_calico.model.keys import Key, ListKey

BATCH_MAX = 48

Entry = tuple[Write, Deadline]


class GroupedStore:
    """A Datastore over another one."""

    def __init__(self, store: Datastore) -> None:
        self.store = store
        self.max_commit = store.max_commit
        self.identity = store.identity
        self._batcher: Batcher[Entry, Committed] = Batcher(self._run, limit=max(1, min(BATCH_MAX, store.max_commit)))
        self.sizes = self._batcher.sizes

    @property
    def round_trips(self) -> RoundTrips:
        return self.store.round_trips

    def get(self, key: Key, deadline: Deadline) -> Versioned | None:
        return self.store.get(key, deadline)

    def get_many(self, keys: Sequence[Key], deadline: Deadline) -> Sequence[Versioned | None]:
        return self.store.get_many(keys, deadline)

    def list(self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None) -> Listing:
        return self.store.list(listing, deadline, revision=revision)

    def watch(self, listing: ListKey, revision: Revision) -> Watch:
        return self.store.watch(listing, revision)

    def close(self) -> None:
        self.store.close()

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        if len(writes) != 1 or self.max_commit == 1:
            return self.store.commit(writes, deadline)
        return self._batcher.submit((writes[0], deadline), deadline, f"write {writes[0].key}")

    def _run(self, entries: Sequence[Entry]) -> Sequence[Committed | BaseException]:
        outcomes: list[Committed | BaseException | None] = [None] * len(entries)
        deadline = Deadline(min(entry[1].at for entry in entries))
        pending = list(range(len(entries)))
        while pending:
            batch = _distinct(entries, pending)
            try:
                committed = self.store.commit([entries[i][0] for i in batch], deadline)
            except CommitConflict as e:
                for failed in e.failed:
                    outcomes[batch[failed.index]] = CommitConflict([type(failed)(0, failed.key, failed.current)])
            except DeadlineExceeded as e:
                for i in batch:  # not sent: who has more time may try again
                    outcomes[i] = e if entries[i][1].expired() else _not_sent(e)
            except OutcomeUnknown as e:
                for i in batch:
                    outcomes[i] = e
            else:
                stored = {versioned.key: versioned for versioned in committed.stored}
                for i in batch:
                    key = entries[i][0].key
                    outcomes[i] = Committed(committed.revision, (stored[key],) if key in stored else ())
            pending = [i for i in pending if outcomes[i] is None]
        return [outcome for outcome in outcomes if outcome is not None]


def _distinct(entries: Sequence[Entry], pending: Sequence[int]) -> list[int]:
    """The first write of each key; a later one of the same key comes with the next commit."""
    first: dict[Key, int] = {}
    for i in pending:
        first.setdefault(entries[i][0].key, i)
    return list(first.values())


def _not_sent(error: DeadlineExceeded) -> DatastoreUnavailable:
    return DatastoreUnavailable(error.message)
