"""The present state of the cluster, as far as the owner of an address depends on it: asked for, not remembered.

Rule: in doubt an error is raised, and what it is about counts as unknown, so that it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import CorruptRecord
from cni_calico.ipam.lost import leaks
from cni_calico.ipam.lost.endpointed import Endpointed
from cni_calico.ipam.lost.leaks import BlockFacts, Holding, KeptHolding
from cni_calico.ipam.lost.pods import Pod, has_let_go, parse_pod
from cni_calico.ipam.view import stored
from cni_calico.model.documents import codec
from cni_calico.model.keys import AffinityKey, AffinityList, BlockKey, ResourceKey, ResourceList
from cni_calico.model.names import endpoint_name
from cni_calico.model.resources import Block, Network, WorkloadEndpoint


class Kubernetes(Protocol):
    """Kubernetes' objects as they are now; see datastore.kubernetes.objects.KubernetesObjects. Raises
    DatastoreError.
    """

    def pod(self, namespace: str, name: str, uid: str, deadline: Deadline) -> Mapping[str, Any] | None: ...

    def node(self, name: str, deadline: Deadline) -> Mapping[str, Any] | None: ...

    def why_over(self, kind: str, namespace: str, name: str, deadline: Deadline) -> str:
        """Why an identity that keeps addresses will not come again; "" if it may."""


@dataclass(frozen=True, slots=True)
class FreshFacts:
    """The present state. ``kubernetes`` is None if there is none.

    ``is_kubernetes``: the datastore is Kubernetes too, where pods are endpoints; elsewhere endpoints are looked at.
    ``everybody``: all nodes' endpoints, listed a moment ago.
    """

    store: Datastore
    kubernetes: Kubernetes | None
    deadline: Deadline
    is_kubernetes: bool
    everybody: Callable[[Deadline], Endpointed]

    @property
    def knows_pods(self) -> bool:
        return self.kubernetes is not None

    def has_node(self, name: str) -> bool:
        return self.store.get(ResourceKey("Node", name), self.deadline) is not None

    def has_pod(self, namespace: str, name: str, node: str) -> bool:
        return self._read(namespace, name, node) is not None

    def pod(self, namespace: str, name: str, node: str) -> Pod | None:
        """The pod with its endpoints: as long as one is recorded, its addresses are in use."""
        pod = self._read(namespace, name, node)
        endpoints = [] if self.is_kubernetes else self.endpoints(namespace, name, node)
        if not endpoints:
            return pod
        addresses = frozenset(a for e in endpoints for a in leaks.reduce_endpoint(e).addresses)
        return Pod(endpoints[0].container_id, addresses | (pod.addresses if pod is not None else frozenset()))

    def has_owner(self, holding: Holding) -> bool:
        """Such an address may be in use on any node. Raises CorruptRecord."""
        if holding.pod and self.kubernetes is not None:
            found = self.kubernetes.pod(holding.namespace, holding.pod, "", self.deadline)
            if found is not None and not has_let_go(found):
                return True
        return self.everybody(self.deadline).may_have(holding)

    def why_over(self, kept: KeptHolding) -> str:
        assert self.kubernetes is not None
        return self.kubernetes.why_over(kept.kind, kept.namespace, kept.name, self.deadline)

    def _read(self, namespace: str, name: str, node: str) -> Pod | None:
        assert self.kubernetes is not None
        found = self.kubernetes.pod(namespace, name, "", self.deadline)
        return None if found is None else parse_pod(found, self._kubernetes_node(node))

    def _kubernetes_node(self, node: str) -> str | None:
        """A node's Kubernetes name: in a separate datastore the names may differ."""
        if self.is_kubernetes:
            return node
        key = ResourceKey("Node", node)
        found = self.store.get(key, self.deadline)
        return None if found is None else leaks.kubernetes_name(codec.decode_node(key, found.value)) or None

    def has_kubernetes_node(self, name: str) -> bool:
        assert self.kubernetes is not None
        return self.kubernetes.node(name, self.deadline) is not None

    def blocks_of(self, node: str, family: int) -> dict[Network, BlockFacts]:
        """The node's blocks. Raises CorruptRecord."""
        listing = self.store.list(AffinityList(node, family), self.deadline)
        keys = [BlockKey(item.key.cidr) for item in listing.items if isinstance(item.key, AffinityKey)]
        found = (item for item in self.store.get_many(keys, self.deadline) if item is not None) if keys else ()
        records = (stored(item).record for item in found)
        blocks = (record for record in records if isinstance(record, Block) and not record.deleted)
        return {block.cidr: leaks.reduce_block(block) for block in blocks}

    def endpoints(self, namespace: str, pod: str, node: str) -> list[WorkloadEndpoint]:
        """The pod's endpoints. Raises CorruptRecord."""
        prefix = endpoint_name(node, "k8s", pod, "e")[:-1]
        return list_endpoints(self.store, ResourceList("WorkloadEndpoint", namespace, prefix), self.deadline)


def list_endpoints(store: Datastore, what: ResourceList, deadline: Deadline) -> list[WorkloadEndpoint]:
    """Raises CorruptRecord: one that cannot be read may have any address."""
    listing = store.list(what, deadline)
    for _, why in listing.unreadable:
        raise CorruptRecord(why)
    return [codec.decode_endpoint(i.key, i.value) for i in listing.items if isinstance(i.key, ResourceKey)]
