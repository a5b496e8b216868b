"""The node's own WorkloadEndpoints in memory, as a datastore that answers for them.

Rule: this node's CNI is the only writer of its endpoints, so they are listed once and then tracked by our own commits;
no watch over the whole cluster's endpoints is needed. A one-shot process that writes while the server runs reports that
(``forget``), but may die before. Hence ``may_miss``: an endpoint that is not in memory is looked up, unless the
caller's write detects it by itself (an ADD creates the record, and a conflict shows that it exists).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from cni_calico.datastore.forwarding import ForwardingStore
from cni_calico.datastore.interface import (
    WHOLE,
    CommitConflict,
    Committed,
    Datastore,
    Listing,
    Reading,
    Revision,
    Versioned,
    Write,
    has_transactions,
)
from cni_calico.datastore.remembered import order_of
from cni_calico.deadline import Deadline
from cni_calico.model.keys import Key, ListKey, ResourceKey, ResourceList
from cni_calico.model.names import escape, parse_endpoint_name
from cni_calico.plugin.attachment import KUBERNETES

ENDPOINT = "WorkloadEndpoint"
Stem = tuple[str, str, str]  # namespace, orchestrator, the common part of the names
PROFILE_TTL_S = 60.0


class NodeEndpoints:
    """The memory; ``door`` gives the datastore for one call."""

    def __init__(self, store: Datastore, node: str) -> None:
        self.store = store
        self.node = node
        self._escaped = escape(node) + "-"
        self._known: dict[ResourceKey, Versioned] | None = None
        self._index: dict[Stem, set[ResourceKey]] = {}
        self._meanwhile: list[tuple[Sequence[Versioned], Sequence[Key]]] = []  # learned while they are being listed
        self._generation = 0
        self._guard = threading.Lock()
        self._loading = threading.Lock()
        self._profiles: dict[Key, tuple[Versioned, float]] = {}

    def door(self, *, may_miss: bool) -> Datastore:
        """A datastore for one call. On a store without transactions (Kubernetes) this is the store itself."""
        return _EndpointDoor(self, may_miss) if has_transactions(self.store) else self.store

    # -- endpoints ----------------------------------------------------------------------------------------------------

    def serves(self, listing: ListKey) -> bool:
        """Whether a listing asks for this node's endpoints in one namespace."""
        return (
            isinstance(listing, ResourceList)
            and listing.kind == ENDPOINT
            and bool(listing.namespace)
            and listing.name_prefix.startswith(self._escaped)
        )

    def select(self, listing: ResourceList, deadline: Deadline) -> list[Versioned]:
        """The remembered endpoints of a listing that ``serves`` accepts."""
        known = self._load(deadline)
        with self._guard:
            keys = self._index.get(self._stem_asked(listing), set()) & known.keys()
            return sorted((known[key] for key in keys), key=lambda versioned: str(versioned.key))

    def _stem_asked(self, listing: ResourceList) -> Stem:
        orchestrator, _, stem = listing.name_prefix[len(self._escaped) :].partition("-")
        if orchestrator == KUBERNETES:
            stem = stem.removesuffix("-")
        return listing.namespace, orchestrator, stem.replace("--", "-")

    def learn(self, found: Sequence[Versioned], removed: Sequence[Key] = ()) -> None:
        """Update the memory with what was read or written."""
        with self._guard:
            if self._known is None:
                self._meanwhile.append((found, removed))
            else:
                self._learn(self._known, found, removed)

    def _learn(self, known: dict[ResourceKey, Versioned], found: Sequence[Versioned], removed: Sequence[Key]) -> None:
        for versioned in found:
            if isinstance(versioned.key, ResourceKey) and versioned.key.kind == ENDPOINT:
                old = known.get(versioned.key)
                if old is not None and order_of(old.revision) > order_of(versioned.revision):
                    continue  # the list was read before our later writes
                known[versioned.key] = versioned
                self._index.setdefault(_stem_of(versioned.key), set()).add(versioned.key)
        for key in removed:
            if isinstance(key, ResourceKey) and known.pop(key, None) is not None:
                self._forget(_stem_of(key), key)

    def forget(self) -> None:
        """Forget everything, because another process has written: the endpoints are listed again, even if a list is
        being read now.
        """
        with self._guard:
            self._known, self._index = None, {}
            self._generation += 1

    def _forget(self, stem: Stem, key: ResourceKey) -> None:
        keys = self._index.get(stem, set())
        keys.discard(key)
        if not keys:
            self._index.pop(stem, None)

    def _load(self, deadline: Deadline) -> Mapping[ResourceKey, Versioned]:
        known = self._known
        if known is not None:
            return known
        with self._loading:
            while True:
                with self._guard:
                    if self._known is not None:
                        return self._known
                    generation, self._meanwhile = self._generation, []
                items = self.store.list(ResourceList(ENDPOINT), deadline).items
                with self._guard:
                    if generation == self._generation:
                        known = {}
                        self._learn(known, [item for item in items if _node_of(item) == self.node], ())
                        for found, removed in self._meanwhile:
                            self._learn(known, found, removed)
                        self._known, self._meanwhile = known, []
                        return known

    # -- profiles -----------------------------------------------------------------------------------------------------

    def profile(self, key: Key) -> Versioned | None:
        found = self._profiles.get(key)
        return found[0] if found is not None and time.monotonic() - found[1] < PROFILE_TTL_S else None

    def learn_profile(self, found: Versioned) -> None:
        self._profiles[found.key] = found, time.monotonic()


def _stem_of(key: ResourceKey) -> Stem:
    """The common part of endpoints that could want the same host interface name (plugin/attachment.py,
    ``siblings``).
    """
    try:
        _, orchestrator, workload, _ = parse_endpoint_name(key.name)
    except ValueError:
        return key.namespace, "", key.name
    return key.namespace, orchestrator, workload if orchestrator == KUBERNETES else workload[:11]


def _node_of(item: Versioned) -> object:
    spec = item.value.get("spec")
    return spec.get("node") if isinstance(spec, Mapping) else None


class _EndpointDoor(ForwardingStore):
    """The datastore, with this node's endpoints answered from memory."""

    def __init__(self, endpoints: NodeEndpoints, may_miss: bool) -> None:
        super().__init__(endpoints.store)
        self._endpoints = endpoints
        self._may_miss = may_miss

    def get(self, key: Key, deadline: Deadline) -> Versioned | None:
        is_profile = isinstance(key, ResourceKey) and key.kind == "Profile"
        if is_profile and (known := self._endpoints.profile(key)) is not None:
            return known
        found = self.store.get(key, deadline)
        if is_profile and found is not None:
            self._endpoints.learn_profile(found)
        return found

    def list(
        self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None, reading: Reading = WHOLE
    ) -> Listing:
        if revision is None and isinstance(listing, ResourceList) and self._endpoints.serves(listing):
            found = self._endpoints.select(listing, deadline)
            if found or self._may_miss:
                return Listing(found, 0)
            listed = self.store.list(listing, deadline)
            self._endpoints.learn(listed.items)
            return listed
        return self.store.list(listing, deadline, revision=revision, reading=reading)

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        try:
            committed = self.store.commit(writes, deadline)
        except CommitConflict as e:
            current = [failed.current for failed in e.failed if failed.current is not None]
            self._endpoints.learn(current, [failed.key for failed in e.failed if failed.current is None])
            raise
        removed = [write.key for write in writes if write.op in ("delete", "remove")]
        self._endpoints.learn(committed.stored, removed)
        for versioned in committed.stored:
            if isinstance(versioned.key, ResourceKey) and versioned.key.kind == "Profile":
                self._endpoints.learn_profile(versioned)
        return committed
