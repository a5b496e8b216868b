"""What the resident server remembers of one datastore for one node: pools, reservations, configuration, the node, its
affinities, the cluster's state. Watches keep it current, so a call reads none of it from the store.

Rule: until everything has been read once there are no facts, and calls go to the store. The same holds while a watch is
broken, so that changes count as soon as the store answers again, and while a record cannot be read, because the store's
error then names it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.datastore.cache import Cache, stop_caches
from cni_calico.datastore.interface import Datastore, Document
from cni_calico.datastore.remembered import Kept, Listeners, decoding
from cni_calico.datastore.unreadable import Unreadable
from cni_calico.ipam.pools import NodeFacts
from cni_calico.ipam.view import Facts
from cni_calico.model.documents import codec
from cni_calico.model.keys import (
    CLUSTER,
    AffinityKey,
    AffinityList,
    IPAMConfigKey,
    IPAMConfigList,
    Key,
    ListKey,
    ResourceKey,
    ResourceList,
)
from cni_calico.model.resources import Affinity, IPAMConfig, IPPool, IPReservation, Network


class ClusterCaches:
    """The ``Snapshot`` of ipam/group/allocator.py. ``corrupt(key, why)`` is called for records that cannot be read."""

    def __init__(self, store: Datastore, node: str, corrupt: Callable[[Key, str], None]) -> None:
        self.node = node
        self._facts: Facts | None = None
        self._guard = threading.Lock()
        self._changes = 0
        self._unreadable = Unreadable(store, corrupt)
        store.corrupt = self._unreadable.note
        made: list[Cache[Any]] = []

        def follow(listing: ListKey) -> Cache[Any]:
            cache: Cache[Any] = Cache(
                store,
                Kept(listing, decoding(codec.decode)),
                Listeners(on_change=self._changed, corrupt=self._unreadable.note),
            )
            made.append(cache)
            return cache

        try:
            self.pools = follow(ResourceList("IPPool"))
            self.reservations = follow(ResourceList("IPReservation"))
            self.config = follow(IPAMConfigList())
            self.nodes = follow(ResourceList("Node", "", node))
            self.affinities_of_node = follow(AffinityList(node))
            self.cluster = follow(ResourceList("ClusterInformation"))
        except BaseException:  # short of threads
            stop_caches(made)
            raise

    @property
    def all(self) -> tuple[Cache[Any], ...]:
        return (self.pools, self.reservations, self.config, self.nodes, self.affinities_of_node, self.cluster)

    @property
    def healthy(self) -> bool:
        """Whether everything is kept up to date."""
        return all(cache.healthy for cache in self.all)

    @property
    def _facts_of(self) -> tuple[ListKey, ...]:
        return tuple(cache.listing for cache in (self.pools, self.reservations, self.config, self.nodes))

    def _changed(self, _: frozenset[Key]) -> None:
        with self._guard:
            self._changes += 1
            self._facts = None

    def facts(self, node: str) -> Facts | None:
        """The facts for this node; for "" those that hold for every node."""
        if node not in ("", self.node) or not self.healthy or self._unreadable.any_of(self._facts_of):
            return None
        facts = self._facts
        if facts is not None:
            return facts
        changes = self._changes
        facts = self._make_facts()
        with self._guard:
            if changes == self._changes:  # otherwise they are correct now, but may be out of date later
                self._facts = facts
        return facts

    def _make_facts(self) -> Facts:
        pools = [item for item in self.pools.records().values() if isinstance(item, IPPool)]
        reservations = [item for item in self.reservations.records().values() if isinstance(item, IPReservation)]
        config = self.config.record(IPAMConfigKey())
        record = self.nodes.record(ResourceKey("Node", self.node))
        labels: Mapping[str, str] | None = record.metadata.labels if record is not None else None
        return Facts(
            pools=sorted(pools, key=lambda pool: pool.metadata.name),
            reservations=reservations,
            config=config if isinstance(config, IPAMConfig) else None,
            node=NodeFacts(self.node, known=False) if labels is None else NodeFacts(self.node, labels),
            handle=None,
        )

    def affinities(self, node: str, family: int) -> Mapping[Network, Affinity]:
        if node != self.node:
            return {}
        return {
            key.cidr: record
            for key, record in self.affinities_of_node.records().items()
            if isinstance(key, AffinityKey) and isinstance(record, Affinity) and key.cidr.version == family
        }

    def cluster_information(self) -> tuple[bool, Document | None]:
        """(whether it is known, the record)."""
        if not self.cluster.healthy or self._unreadable.any_of((self.cluster.listing,)):
            return False, None
        found = self.cluster.get(CLUSTER)
        return True, None if found is None else found.value

    def stop(self) -> None:
        stop_caches(self.all)
