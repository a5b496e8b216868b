"""The node's pods, and the namespaces, in memory for the resident server: the objects for which a call would ask the
API server.

Rule: a remembered pod counts only if it has the UID that the runtime passes; otherwise, and while the watch is not up
to date, the API server is asked. Our own writes are remembered at once, before the watch reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cni_calico.datastore.cache import Cache
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
    pod_of,
)
from cni_calico.datastore.kubernetes.layout import NAMESPACE, pod_of_prefix
from cni_calico.datastore.kubernetes.objects import KubernetesObjects, is_pod
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.deadline import Deadline
from cni_calico.model.keys import Key, ListKey, ResourceKey, ResourceList
from cni_calico.model.kubernetes.pods import endpoint_key
from cni_calico.model.names import escape


def _as_it_is(versioned: Versioned) -> Versioned:
    return versioned


class KubernetesCaches(KubernetesObjects):
    """Kubernetes' objects for one node, from watches."""

    def __init__(self, store: KubernetesStore, node: str, corrupt: Callable[[Key, str], None]) -> None:
        super().__init__(store.api)
        self._node = node
        escaped = escape(node)
        self.pods: Cache[Versioned] = Cache(
            store, Kept(ResourceList("WorkloadEndpoint", "", f"{escaped}-k8s-"), _as_it_is), Listeners(corrupt=corrupt)
        )
        self.namespaces: Cache[Versioned] = Cache(
            store, Kept(ResourceList(NAMESPACE), _as_it_is), Listeners(corrupt=corrupt)
        )

    def pod(self, namespace: str, name: str, uid: str, deadline: Deadline) -> Mapping[str, Any] | None:
        found = self.pods.get(endpoint_key(namespace, name, self._node))
        pod = pod_of(found)
        if pod is not None and self.pods.healthy and is_pod(pod, uid):
            return pod
        return super().pod(namespace, name, uid, deadline)

    def namespace(self, name: str, deadline: Deadline) -> Mapping[str, Any] | None:
        found = self.namespaces.get(ResourceKey(NAMESPACE, name)) if self.namespaces.healthy else None
        return super().namespace(name, deadline) if found is None else found.value

    def door(self, store: Datastore, *, may_miss: bool) -> Datastore:
        """``store`` with this node's endpoints answered from memory. ``may_miss``: what is not in memory counts as
        absent.
        """
        return _PodDoor(self, store, may_miss)

    def stop(self) -> None:
        self.pods.stop()
        self.namespaces.stop()


class _PodDoor(ForwardingStore):
    def __init__(self, caches: KubernetesCaches, store: Datastore, may_miss: bool) -> None:
        super().__init__(store)
        self._pods = caches.pods
        self._may_miss = may_miss

    def list(
        self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None, reading: Reading = WHOLE
    ) -> Listing:
        key = pod_of_prefix(listing) if isinstance(listing, ResourceList) and revision is None else None
        if key is None or not self._pods.healthy:
            return self.store.list(listing, deadline, revision=revision, reading=reading)
        found = self._pods.get(key)
        if found is not None:
            return Listing([found], found.revision)
        return Listing([], "") if self._may_miss else self.store.list(listing, deadline)

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        try:
            committed = self.store.commit(writes, deadline)
        except CommitConflict as e:
            for failed in e.failed:
                if failed.current is not None:
                    self._pods.apply(Committed(failed.current.revision, (failed.current,)))
            raise
        self._pods.apply(committed)
        return committed
