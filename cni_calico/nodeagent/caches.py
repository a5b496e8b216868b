"""What the resident server knows of one datastore for one node: pools, reservations, configuration, the node, its
affinities, the cluster's state. Kept by watches; a call reads nothing of it from the store.

Rule: until everything has been read once there are no facts, and calls go to the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.client import Datastore, Document, Versioned
from cni_calico.ipam.pools import NodeFacts
from cni_calico.ipam.view import Facts
from cni_calico.model import codec
from cni_calico.model.keys import (
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

CLUSTER = ResourceKey("ClusterInformation", "default")


def _decode(versioned: Versioned) -> Any:
    return codec.decode(versioned.key, versioned.value)


class ClusterCaches:
    """The ``Snapshot`` of ipam/group.py. ``corrupt(key, why)`` is told of records that cannot be read."""

    def __init__(self, store: Datastore, node: str, corrupt: Callable[[Key, str], None]) -> None:
        self.node = node
        self._facts: Facts | None = None

        def follow(listing: ListKey) -> Cache[Any]:
            return Cache(store, listing, decode=_decode, on_change=self._changed, corrupt=corrupt)

        self.pools = follow(ResourceList("IPPool"))
        self.reservations = follow(ResourceList("IPReservation"))
        self.config = follow(IPAMConfigList())
        self.nodes = follow(ResourceList("Node", "", node))
        self.affinities_of_node = follow(AffinityList(node))
        self.cluster = follow(ResourceList("ClusterInformation"))

    @property
    def all(self) -> tuple[Cache[Any], ...]:
        return (self.pools, self.reservations, self.config, self.nodes, self.affinities_of_node, self.cluster)

    @property
    def synced(self) -> bool:
        return all(cache.synced for cache in self.all)

    def _changed(self, _: frozenset[Key]) -> None:
        self._facts = None

    def facts(self, node: str) -> Facts | None:
        """Of this node; of "" what holds for every node."""
        if node not in ("", self.node) or not self.synced:
            return None
        facts = self._facts
        if facts is None:
            facts = self._facts = self._make_facts()
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
        """(is it known?, the record)."""
        if not self.cluster.synced:
            return False, None
        found = self.cluster.get(CLUSTER)
        return True, None if found is None else found.value

    def stop(self) -> None:
        for cache in self.all:
            cache.stop()
