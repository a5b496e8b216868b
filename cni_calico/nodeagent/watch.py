"""The agent's view of the datastore: one cache per listing, one Snapshot out of all of them.

Rule: nothing is applied before every listing was read once; afterwards an outage freezes the view (``healthy`` says
so). Changes only call ``on_change``; what changed is not told, the snapshot is. A record that becomes unreadable keeps
what it said before; one that was never readable, or is no document at all, is left out, and ``incomplete`` says that
something is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.client import Datastore, Versioned
from cni_calico.deadline import Deadline
from cni_calico.errors import CorruptRecord
from cni_calico.model.codec import decode_block, decode_endpoint, decode_node, decode_pool, decode_resource, describe
from cni_calico.model.keys import BlockKey, BlockList, Key, ListKey, ResourceKey, ResourceList, endpoints_of_node
from cni_calico.model.resources import IPPool, Node, Resource, WorkloadEndpoint
from cni_calico.nodeagent.snapshot import BlockRoute, Snapshot, pod_cidr_blocks, reduce_block
from cni_calico.nodeagent.unreadable import Unreadable


def _node(item: Versioned) -> Node:
    assert isinstance(item.key, ResourceKey)
    return decode_node(item.key, item.value)


def _pool(item: Versioned) -> IPPool:
    assert isinstance(item.key, ResourceKey)
    return decode_pool(item.key, item.value)


def _block(item: Versioned) -> BlockRoute | None:
    assert isinstance(item.key, BlockKey)
    return reduce_block(decode_block(item.key, item.value))


def _resource(item: Versioned) -> Resource:
    assert isinstance(item.key, ResourceKey)
    return decode_resource(item.key, item.value)


def _present(item: Versioned) -> bool:
    return True


class Sources:
    """The caches. ``stop`` ends their threads. ``use_pod_cidr``: nodes' pod CIDRs count as blocks of theirs."""

    def __init__(
        self, store: Datastore, node: str, on_change: Callable[[], None], *, use_pod_cidr: bool = False
    ) -> None:
        self.node = node
        self._use_pod_cidr = use_pod_cidr
        self._on_change = on_change
        self._corrupt: dict[Key, str] = {}
        self._missing: set[Key] = set()  # those of them of which nothing is known
        self._caches: list[Cache[Any]] = []
        self._no_documents = Unreadable(store, lambda key, why: self._note(key, f"{describe(key)}: {why}"))
        if hasattr(store, "corrupt"):  # a cache takes them for absent
            store.corrupt = self._no_documents.note
        self._nodes: Cache[Node] = self._cache(store, ResourceList("Node"), _node)
        self._pools: Cache[IPPool] = self._cache(store, ResourceList("IPPool"), _pool)
        self._blocks: Cache[BlockRoute | None] = self._cache(store, BlockList(), _block)
        # by their names, which begin with the node's: others' pods come and go all the time and must not wake us
        self._endpoints: Cache[WorkloadEndpoint | None] = self._cache(store, endpoints_of_node(node), self._endpoint)
        self._felix: Cache[Resource] = self._cache(store, ResourceList("FelixConfiguration"), _resource)
        self._policies: list[Cache[bool]] = [
            self._cache(store, ResourceList(kind), _present) for kind in ("NetworkPolicy", "GlobalNetworkPolicy")
        ]

    def _cache(self, store: Datastore, listing: ListKey, decode: Callable[[Versioned], Any]) -> Cache[Any]:
        cache: Cache[Any] | None = None  # its thread may decode before we have it

        def decode_again(item: Versioned) -> Any:
            self._corrupt.pop(item.key, None)
            self._missing.discard(item.key)
            try:
                return decode(item)
            except CorruptRecord as e:
                before = None if cache is None else cache.record(item.key)
                if before is None:
                    self._missing.add(item.key)
                    raise
                self._note(item.key, f"{e}; what it said before stays in force")
                return before

        cache = Cache(
            store, listing, decode=decode_again, on_change=self._changed, corrupt=self._note, keep_documents=False
        )
        self._caches.append(cache)
        return cache

    def _endpoint(self, item: Versioned) -> WorkloadEndpoint | None:
        """An endpoint of this node: the listing may hold those of nodes whose names begin like its."""
        assert isinstance(item.key, ResourceKey)
        spec = item.value.get("spec")
        if isinstance(spec, Mapping) and spec.get("node") not in (None, self.node):
            return None
        return decode_endpoint(item.key, item.value)

    def _changed(self, keys: frozenset[Key]) -> None:
        self._on_change()

    def _note(self, key: Key, why: str) -> None:
        self._corrupt[key] = why

    @property
    def synced(self) -> bool:
        return all(cache.synced for cache in self._caches)

    @property
    def healthy(self) -> bool:
        return all(cache.healthy for cache in self._caches)

    @property
    def error(self) -> str:
        """Why the view is not kept up to date; "" when it is."""
        return next((str(cache.error) for cache in self._caches if cache.error is not None), "")

    def snapshot(self) -> Snapshot:
        """What is known now; only meaningful once ``synced``."""
        felix = {record.metadata.name: record.spec for record in self._felix.records().values()}
        nodes = {node.metadata.name: node for node in self._nodes.records().values()}
        blocks = tuple(block for block in self._blocks.records().values() if block is not None)
        return Snapshot(
            node=self.node,
            nodes=nodes,
            pools=tuple(sorted(self._pools.records().values(), key=lambda pool: pool.metadata.name)),
            blocks=blocks + (pod_cidr_blocks(nodes.values()) if self._use_pod_cidr else ()),
            endpoints=tuple(e for e in self._endpoints.records().values() if e is not None),
            felix_node=felix.get(f"node.{self.node}"),
            felix_default=felix.get("default"),
            policies=sum(len(cache.records()) for cache in self._policies),
            problems=self._problems(),
            incomplete=self._is_incomplete(),
        )

    def _is_incomplete(self) -> bool:
        """Whether a Node, pool or block cannot be read: what it asks for may be in the kernel already."""
        caches: tuple[Cache[Any], ...] = (self._nodes, self._pools, self._blocks)
        if any(cache.get(key) is not None for key in list(self._missing) for cache in caches):
            return True
        return self._no_documents.any_of(cache.listing for cache in caches)

    def _problems(self) -> tuple[str, ...]:
        """Records that cannot be read, as long as they are there."""
        absent = self._no_documents.all_of(cache.listing for cache in self._caches)
        for key in list(self._corrupt):
            if key not in absent and all(cache.get(key) is None for cache in self._caches):
                self._corrupt.pop(key, None)
                self._missing.discard(key)
        return tuple(sorted(self._corrupt.values()))

    def wait_synced(self, deadline: Deadline) -> None:
        """Raises what keeps a listing from being read, DeadlineExceeded."""
        for cache in self._caches:
            cache.wait_synced(deadline)

    def stop(self) -> None:
        for cache in self._caches:
            cache.stop()
