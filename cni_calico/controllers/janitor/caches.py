"""The janitor's caches: blocks, affinities, handles, nodes, endpoints, and Kubernetes' pods.

Rule: only the elected janitor makes them, because they follow the whole cluster. Records are kept in the reduced form
that ipam/lost/cached_state.py makes of them.
"""

from __future__ import annotations

from typing import Any

from cni_calico.controllers.cluster import Cluster
from cni_calico.datastore.cache import Cache, error_of, stop_caches
from cni_calico.datastore.changed_keys import ChangedKeys
from cni_calico.datastore.interface import Datastore
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.datastore.remembered import Kept, Listeners, decoding
from cni_calico.ipam.lost.cached_state import CachedClusterState, RecordCaches, decode
from cni_calico.ipam.lost.fresh_facts import Kubernetes
from cni_calico.model.documents.codec import decode_pool
from cni_calico.model.keys import AffinityList, BlockList, HandleList, ListKey, ResourceList
from cni_calico.model.resources import IPPool

_ENDPOINTS, _NODES = ResourceList("WorkloadEndpoint"), ResourceList("Node")


class JanitorCaches:
    """``changes`` collects what has changed; ``state`` is for the thread that takes the changes."""

    def __init__(self, cluster: Cluster) -> None:
        self.changes = ChangedKeys()
        self._caches: list[Cache[Any]] = []
        store, kubernetes = cluster.store, cluster.kubernetes
        # endpoints are only needed to be compared with pods
        own = None if cluster.is_kubernetes_datastore or kubernetes is None else self._cache(store, _ENDPOINTS)
        self.state = CachedClusterState(
            RecordCaches(
                blocks=self._cache(store, BlockList()),
                affinities=self._cache(store, AffinityList()),
                handles=self._cache(store, HandleList()),
                nodes=self._cache(store, _NODES),
                endpoints=own,
                pods=None if kubernetes is None else self._cache(kubernetes, _ENDPOINTS),
                kubernetes_nodes=None if own is None or kubernetes is None else self._cache(kubernetes, _NODES),
            )
        )

        self._pools: Cache[IPPool] = Cache(
            store, Kept(ResourceList("IPPool"), decoding(decode_pool), keep_documents=False)
        )
        self._caches.append(self._pools)

    def _cache(self, store: Datastore, listing: ListKey) -> Cache[Any]:
        cache: Cache[Any] = Cache(
            store, Kept(listing, decode, keep_documents=False), Listeners(on_change=self.changes.note)
        )
        self._caches.append(cache)
        return cache

    def pools(self) -> tuple[IPPool, ...]:
        """For metrics; from any thread."""
        return tuple(self._pools.records().values())

    @property
    def healthy(self) -> bool:
        """Whether everything has been read and is kept up to date."""
        return all(cache.healthy for cache in self._caches)

    @property
    def error(self) -> str:
        """Why they cannot be read; "" if no reason is known."""
        return error_of(self._caches)

    def stop(self) -> None:
        stop_caches(self._caches)


def open_objects(kubernetes: KubernetesStore | None) -> Kubernetes | None:
    """How to ask Kubernetes for its present state; None without Kubernetes."""
    if kubernetes is None:
        return None
    from cni_calico.datastore.kubernetes.searched import SearchedObjects

    return SearchedObjects(kubernetes.api)
