"""A Datastore that logs each request and how long its answer took.

Rule: etcd keys are named (whatever the backend), never documents, because those hold secrets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from cni_calico.datastore.forwarding import ForwardingStore
from cni_calico.datastore.interface import (
    WHOLE,
    Committed,
    Datastore,
    Listing,
    Reading,
    Revision,
    Versioned,
    Watch,
    Write,
)
from cni_calico.deadline import Deadline
from cni_calico.model.keys import PLURALS, Key, ListKey, ResourceList, etcd_path, etcd_prefix

TracedAnswer = TypeVar("TracedAnswer")


def _named(listing: ListKey) -> str:
    if isinstance(listing, ResourceList) and listing.kind not in PLURALS:
        return listing.kind  # Kubernetes' own kinds, for which etcd has no key
    return etcd_prefix(listing)


class TracedStore(ForwardingStore):
    """A Datastore on top of another one; ``say`` is called with a line for each request."""

    def __init__(self, store: Datastore, say: Callable[[str], None]) -> None:
        super().__init__(store)
        self._say = say

    def get(self, key: Key, deadline: Deadline) -> Versioned | None:
        return self._timed(f"get {etcd_path(key)}", lambda: self.store.get(key, deadline))

    def get_many(self, keys: Sequence[Key], deadline: Deadline) -> Sequence[Versioned | None]:
        return self._timed(f"get {', '.join(map(etcd_path, keys))}", lambda: self.store.get_many(keys, deadline))

    def list(
        self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None, reading: Reading = WHOLE
    ) -> Listing:
        def ask() -> Listing:
            return self.store.list(listing, deadline, revision=revision, reading=reading)

        return self._timed(f"list {_named(listing)}", ask)

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        named = ", ".join(f"{write.op} {etcd_path(write.key)}" for write in writes)
        return self._timed(f"commit {named}", lambda: self.store.commit(writes, deadline))

    def watch(self, listing: ListKey, revision: Revision, *, unread_from: int | None = None) -> Watch:
        doing = f"watch {_named(listing)}"
        return self._timed(doing, lambda: self.store.watch(listing, revision, unread_from=unread_from))

    def _timed(self, what: str, ask: Callable[[], TracedAnswer]) -> TracedAnswer:
        started = time.monotonic()
        try:
            answer = ask()
        except Exception as e:
            self._say(f"{what}: {e} after {1000 * (time.monotonic() - started):.1f} ms")
            raise
        self._say(f"{what}: {1000 * (time.monotonic() - started):.1f} ms")
        return answer
