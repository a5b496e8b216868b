"""Addresses and their owners according to the caches: enough to suspect an address, not to release it.

Rule: records are reduced while they are read to the part that is looked at, and pods to a few bytes, because a cache of
all pods of a large cluster must fit in memory. For this module, what no cache shows does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from sys import intern
from typing import Any, Protocol

from cni_calico.datastore.interface import PodDocument, Versioned
from cni_calico.ipam.lost.leaks import (
    BlockFacts,
    Holding,
    KeptHolding,
    LostEndpoint,
    LostNode,
    kubernetes_name,
    reduce_block,
    reduce_endpoint,
)
from cni_calico.ipam.lost.packing import pack, unpack
from cni_calico.ipam.lost.pods import Pod, has_let_go
from cni_calico.model.documents import codec
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, Key, ResourceKey
from cni_calico.model.kubernetes.pods import ENDPOINT
from cni_calico.model.names import endpoint_name, escape, parse_endpoint_name
from cni_calico.model.resources import Network, is_deleted


@dataclass(frozen=True, slots=True)
class Seen:
    """An endpoint, or a pod in the form of one. ``orchestrated``: it is a Kubernetes pod's."""

    node: str
    pod: Pod
    name: str
    orchestrated: bool


class RecordCache(Protocol):
    """A listing in memory; datastore.cache.Cache is one."""

    def get(self, key: Key) -> Versioned | None:
        """The record with its revision, perhaps without its document."""

    def record(self, key: Key) -> Any:
        """What ``decode`` made of it; None if it is absent or cannot be read."""


def decode(found: Versioned) -> Any:
    """The part of a record that is kept. Raises CorruptRecord."""
    if isinstance(found.key, BlockKey):
        block = codec.decode_block(found.key, found.value)
        return None if block.deleted else reduce_block(block)
    if isinstance(found.key, ResourceKey) and found.key.kind == "WorkloadEndpoint":
        endpoint = codec.decode_endpoint(found.key, found.value)
        pod = reduce_endpoint(endpoint)
        if isinstance(found.value, PodDocument) and has_let_go(found.value.pod):
            pod = Pod(has_let_go=True)
        if _named(endpoint.node, endpoint.pod, found.key):
            return pack(pod)
        return Seen(intern(endpoint.node), pod, intern(endpoint.pod), endpoint.orchestrator == "k8s")
    if isinstance(found.key, ResourceKey):
        return kubernetes_name(codec.decode_node(found.key, found.value))
    return not is_deleted(codec.decode(found.key, found.value))


def _named(node: str, pod: str, key: ResourceKey) -> bool:
    """Whether an endpoint's name says of which Kubernetes pod, on which node, it is."""
    return bool(node and pod) and key.name.startswith(f"{escape(node)}-k8s-{escape(pod)}-")


def _unfold(key: ResourceKey, record: Any) -> Seen | None:
    if not isinstance(record, bytes):
        return record if isinstance(record, Seen) else None
    node, _, pod, _ = parse_endpoint_name(key.name)
    return Seen(node, unpack(record), pod, True)


@dataclass(frozen=True, slots=True)
class RecordCaches:
    """``pods``: Kubernetes' pods as endpoints, None without Kubernetes; ``endpoints``: the datastore's own, None if the
    datastore is Kubernetes or there are none.
    """

    blocks: RecordCache
    affinities: RecordCache
    handles: RecordCache
    nodes: RecordCache
    endpoints: RecordCache | None
    pods: RecordCache | None
    kubernetes_nodes: RecordCache | None = None  # in addition to the nodes of a separate datastore


class CachedClusterState:
    """What the caches show now. Not to be shared between threads."""

    def __init__(self, caches: RecordCaches) -> None:
        self._caches = caches
        # of pods, by namespace and name; not if the datastore is Kubernetes, where node and pod say the key
        self._keys: dict[tuple[str, str], tuple[ResourceKey, ...]] = {}

    @property
    def knows_pods(self) -> bool:
        return self._caches.pods is not None

    @property
    def is_kubernetes(self) -> bool:
        """Whether the datastore's nodes are Kubernetes' own."""
        return self._caches.pods is not None and self._caches.endpoints is None

    def has_node(self, name: str) -> bool:
        return self._caches.nodes.get(ResourceKey("Node", name)) is not None

    def has_kubernetes_node(self, name: str) -> bool:
        cache = self._caches.kubernetes_nodes
        return cache is None or cache.get(ResourceKey("Node", name)) is not None

    def node(self, name: str) -> LostNode | None:
        """The record of a node of Kubernetes in a separate datastore; None for every other."""
        kubernetes = self._caches.nodes.record(ResourceKey("Node", name))
        known = isinstance(kubernetes, str) and kubernetes and self._caches.kubernetes_nodes is not None
        return LostNode(name, kubernetes) if known else None

    def block(self, cidr: Network) -> BlockFacts | None:
        found: BlockFacts | None = self._caches.blocks.record(BlockKey(cidr))
        return found

    def has_affinity(self, key: AffinityKey) -> bool:
        return bool(self._caches.affinities.record(key))

    def handle(self, handle_id: str) -> str | None:
        """The revision of its record."""
        key = HandleKey(handle_id)
        found = self._caches.handles.get(key) if self._caches.handles.record(key) else None
        return None if found is None else str(found.revision)

    def learn_pod(self, namespace: str, pod: str, key: ResourceKey) -> None:
        """Note that the record behind ``key``, of this pod, was added, changed or removed."""
        if self.is_kubernetes:
            return
        keys = tuple(known for known in self._keys.pop((namespace, pod), ()) if known != key)
        if any(cache is not None and cache.get(key) is not None for cache in self._both()):
            keys = (*keys, key)
        if keys:
            self._keys[intern(namespace), intern(pod)] = keys

    def _both(self) -> tuple[RecordCache | None, RecordCache | None]:
        return self._caches.pods, self._caches.endpoints

    def _seen(self, cache: RecordCache | None, namespace: str, pod: str) -> list[Seen]:
        if cache is None:
            return []
        found = (_unfold(key, cache.record(key)) for key in self._keys.get((namespace, pod), ()))
        return [seen for seen in found if seen is not None]

    def has_pod(self, namespace: str, name: str, node: str) -> bool:
        return self._pod(namespace, name, node) is not None

    def _pod(self, namespace: str, name: str, node: str) -> Pod | None:
        """If the datastore is not Kubernetes' own, Kubernetes may have another name for the node."""
        cache = self._caches.pods
        if cache is None or self._caches.endpoints is not None:
            return Pod() if self._seen(cache, namespace, name) else None
        try:
            key = ResourceKey("WorkloadEndpoint", endpoint_name(node, "k8s", name, ENDPOINT), namespace)
        except ValueError:
            return None  # no pod can have such a name
        seen = _unfold(key, cache.record(key))
        return seen.pod if seen is not None and seen.node == node else None

    def pod(self, namespace: str, name: str, node: str) -> Pod | None:
        """Without the pod its endpoint does not count either: both are suspected from the same moment on."""
        pod = self._pod(namespace, name, node)
        endpoints = self._seen(self._caches.endpoints, namespace, name) if pod is not None else []
        return next((seen.pod for seen in endpoints if seen.node == node), pod)

    def has_owner(self, holding: Holding) -> bool:
        """Looks for the pod only, on the block's node: who else there is, is found out before anything is released."""
        return bool(holding.pod) and self.pod(holding.namespace, holding.pod, holding.node) is not None

    def why_over(self, kept: KeptHolding) -> str:
        """Whether its identity is over is asked before anything is released: here only its pods are followed."""
        return "no pod uses it"

    def endpoint(self, key: ResourceKey) -> LostEndpoint | None:
        """A Kubernetes pod's endpoint in a separate datastore; None for every other record."""
        cache = self._caches.endpoints
        seen, found = (_unfold(key, cache.record(key)), cache.get(key)) if cache is not None else (None, None)
        if found is None or seen is None or not seen.orchestrated or not seen.name:
            return None
        return LostEndpoint(key, str(found.revision), seen.node, seen.name)
