"""A record created in the same transaction as the addresses it names: a pod's endpoint, so that one write serves both.

Rule: it is tried at most once, with the commit that creates its request's handle, and only if there is room for it. In
every case except plain success (it exists, a conflict, a lost answer) the caller writes it as if nothing had been
tried; an address never waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni_calico.datastore.forwarding import ForwardingStore
from cni_calico.datastore.interface import CommitConflict, Committed, Datastore, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import OutcomeUnknown
from cni_calico.ipam.assign import Companion
from cni_calico.ipam.group.items import Item
from cni_calico.model.keys import HandleKey


class AccompaniedStore(ForwardingStore):
    """The store of one batch."""

    def __init__(self, store: Datastore, items: Sequence[Item]) -> None:
        super().__init__(store)
        self._items = {HandleKey(item.handle_id): item for item in items if item.companion is not None}

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        companions, creates = self._companions(writes)
        if not companions:
            return self.store.commit(writes, deadline)
        try:
            committed = self.store.commit([*writes, *creates], deadline)
        except CommitConflict as e:
            own = [failed for failed in e.failed if failed.index < len(writes)]
            if own:
                raise CommitConflict(own) from e
            return self.store.commit(writes, deadline)
        except OutcomeUnknown:
            for companion in companions:
                companion.unknown = True
            raise
        first = len(committed.stored) - len(companions)
        for companion, stored in zip(companions, committed.stored[first:], strict=True):
            companion.stored = stored
        return Committed(committed.revision, committed.stored[:first])

    def _companions(self, writes: Sequence[Write]) -> tuple[list[Companion], list[Write]]:
        """The companions to be written with these writes, and how they are created."""
        companions: list[Companion] = []
        creates: list[Write] = []
        for write in writes:
            item = self._items.get(write.key) if isinstance(write.key, HandleKey) and write.op == "create" else None
            companion = None if item is None else item.companion
            if item is None or companion is None or companion.tried or not item.given:
                continue
            if len(writes) + len(creates) >= self.max_commit:
                break
            companion.tried = True
            companions.append(companion)
            creates.append(companion.create([assigned.address for assigned in item.given]))
        return companions, creates
