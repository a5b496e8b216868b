"""Combines single writes of several threads into one commit.

Rule: a problem of one write (a conflict, a deadline, a record that the store refuses) is an error of that write alone,
and the others are tried again; a lost answer affects all. A commit with more than one member goes to the store
unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cni_calico.batching import Batcher, own_error
from cni_calico.datastore.forwarding import ForwardingStore
from cni_calico.datastore.interface import (
    CommitConflict,
    Committed,
    Datastore,
    Versioned,
    Write,
    has_transactions,
)
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreUnavailable, DeadlineExceeded, OutcomeUnknown
from cni_calico.model.keys import Key

BATCH_MAX = 48

Entry = tuple[Write, Deadline]
AGAIN = DatastoreUnavailable("not written yet")


class GroupedStore(ForwardingStore):
    """A Datastore over another one."""

    def __init__(self, store: Datastore) -> None:
        super().__init__(store)
        self._batcher: Batcher[Entry, Committed] = Batcher(self._run, limit=max(1, min(BATCH_MAX, store.max_commit)))
        self.sizes = self._batcher.sizes

    def close(self) -> None:
        self.store.close()

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        if len(writes) != 1 or not has_transactions(self):
            return self.store.commit(writes, deadline)
        return self._batcher.submit((writes[0], deadline), deadline, f"write {writes[0].key}")

    def _run(self, entries: Sequence[Entry]) -> Sequence[Committed | BaseException]:
        outcomes: dict[int, Committed | BaseException] = {}
        while pending := [i for i in range(len(entries)) if i not in outcomes]:
            batch = _distinct(entries, pending)
            outcomes |= zip(batch, self._commit([entries[i] for i in batch]), strict=True)
            for i in [i for i in batch if outcomes[i] is AGAIN]:
                del outcomes[i]
        return [outcomes[i] for i in range(len(entries))]

    def _commit(self, entries: Sequence[Entry]) -> Sequence[Committed | BaseException]:
        """One commit, and its outcome for each entry; AGAIN for entries that were not written because of another
        entry's problem.
        """
        try:
            committed = self.store.commit([write for write, _ in entries], Deadline(min(d.at for _, d in entries)))
        except CommitConflict as e:
            own = {failed.index: CommitConflict([replace(failed, index=0)]) for failed in e.failed}
            return [own.get(i, AGAIN) for i in range(len(entries))]
        except OutcomeUnknown as e:
            return [own_error(e) for _ in entries]
        # nothing was written: those with more time left try again
        except (DatastoreUnavailable, DeadlineExceeded) as e:
            late = [deadline.expired() for _, deadline in entries]
            return [own_error(e) if is_late or not any(late) else AGAIN for is_late in late]
        # a record that the store refuses: which one it is shows when each is written alone
        except (CalicoError, ValueError) as e:
            return [e] if len(entries) == 1 else [self._commit([entry])[0] for entry in entries]
        stored = {versioned.key: versioned for versioned in committed.stored}
        return [Committed(committed.revision, _found(stored, write.key)) for write, _ in entries]


def _found(stored: Mapping[Key, Versioned], key: Key) -> tuple[Versioned, ...]:
    return (stored[key],) if key in stored else ()


def _distinct(entries: Sequence[Entry], pending: Sequence[int]) -> list[int]:
    """The first write of each key; a later one of the same key is left for the next commit."""
    first: dict[Key, int] = {}
    for i in pending:
        first.setdefault(entries[i][0].key, i)
    return list(first.values())
