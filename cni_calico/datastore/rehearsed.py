"""A Datastore for dry runs: it reads from another one and keeps all writes in memory.

Rule: compare-and-swap sees the stored records and the earlier writes kept here; nothing is written to the other store.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni_calico.datastore.encoding import plan_commit
from cni_calico.datastore.forwarding import ForwardingStore
from cni_calico.datastore.interface import (
    WHOLE,
    CommitConflict,
    Committed,
    Datastore,
    Failed,
    Listing,
    Reading,
    Revision,
    Versioned,
    Write,
)
from cni_calico.deadline import Deadline
from cni_calico.model.keys import Key, ListKey, covers, etcd_path


class RehearsedStore(ForwardingStore):
    """A dry run over another Datastore. ``written`` has the document that each written key would have; None for a
    deleted record.
    """

    def __init__(self, store: Datastore) -> None:
        super().__init__(store)
        self.written: dict[Key, Versioned | None] = {}
        self._revision = 0

    def get(self, key: Key, deadline: Deadline) -> Versioned | None:
        return self.written[key] if key in self.written else self.store.get(key, deadline)

    def get_many(self, keys: Sequence[Key], deadline: Deadline) -> Sequence[Versioned | None]:
        stored = self.store.get_many(keys, deadline)
        return [self.written.get(key, found) for key, found in zip(keys, stored, strict=True)]

    def list(
        self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None, reading: Reading = WHOLE
    ) -> Listing:
        found = self.store.list(listing, deadline, revision=revision, reading=reading)
        mine = {key: item for key, item in self.written.items() if covers(listing, key)}
        items = [item for item in found.items if item.key not in mine]
        items += [reading.receive(item) for item in mine.values() if item is not None]
        return Listing(sorted(items, key=lambda item: etcd_path(item.key)), found.revision, found.unreadable)

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        plan_commit(writes, self.max_commit)
        compared = [(i, write) for i, write in enumerate(writes) if write.op not in ("put", "remove")]
        current = self.get_many([write.key for _, write in compared], deadline)
        failed = [
            Failed(i, write.key, now)
            for (i, write), now in zip(compared, current, strict=True)
            if (now.revision if now is not None else None) != (None if write.op == "create" else write.revision)
        ]
        if failed:
            raise CommitConflict(failed)
        return Committed(self._revision, [stored for write in writes if (stored := self._write(write)) is not None])

    def _write(self, write: Write) -> Versioned | None:
        if write.op == "expect":
            return None
        self._revision -= 1  # a revision that no store assigns
        stored = None if write.value is None else Versioned(write.key, write.value, self._revision, write.uid)
        self.written[write.key] = stored
        return stored
