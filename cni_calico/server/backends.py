"""The datastores that the resident server has open, each with what is remembered of it.

Rule: a datastore's key is the request's configuration, with paths in the caller's root, so networks with different
datastores never share one. A datastore that no call has used for a while is closed, with its watches, threads and
descriptors, except the one used last: a quiet node stays warm. Only a few unused ones are kept open.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cni_calico.daemon.exposition import Exposition
from cni_calico.daemon.recent import Recently
from cni_calico.daemon.unattended import Unattended
from cni_calico.datastore.connect import open_datastore, reader
from cni_calico.datastore.grouped import GroupedStore
from cni_calico.datastore.interface import Committed, Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded
from cni_calico.ipam.group.allocator import GroupAllocator
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.model.access import DatastoreConfig
from cni_calico.server.cluster_cache import ClusterCaches
from cni_calico.server.endpoint_memory import NodeEndpoints
from cni_calico.server.pod_cache import KubernetesCaches
from cni_calico.survived import tell_survived

IDLE_S = 300.0
KEPT_MAX = 8  # even if they were used a moment ago: every new configuration, however wrong, opens one
# how long a repeated DEL of something already released is answered from memory; the kubelet's come within seconds
DELETED_S, DELETED_MAX = 60.0, 4096
FINISH_S = 2.0  # at the closing of a datastore, for requests that nobody waits for


@dataclass(frozen=True, slots=True)
class BackendKey:
    """``root`` identifies the caller's root directory, so that equal paths in different roots stay apart."""

    config: DatastoreConfig
    node: str
    root: tuple[int, int, int]


class Backend:
    """One open datastore with what is remembered of it."""

    def __init__(self, config: DatastoreConfig, node: str, files: Files, log: Log) -> None:
        """``files`` are the caller's; their root stays open. Raises InvalidConfig, DatastoreError."""
        self._root = None if files.root_fd is None else os.dup(files.root_fd)
        self._reach = None if self._root is None else Files(self._root).path
        try:
            self.store = store = open_datastore(config, reach=self._reach)
        except BaseException:
            self._close_root()
            raise
        self.config = config
        self._node = node
        self._corrupt = lambda key, why: log.error(f"cannot read {key}: {why}")
        self._opening = threading.Lock()
        self._ordering, self._in_order = threading.Lock(), False
        self._kubernetes: KubernetesCaches | None = None
        self.deleted = Recently(DELETED_S, DELETED_MAX)
        self._unattended = Unattended("finish deletions")
        if config.type == "kubernetes":
            from cni_calico.datastore.kubernetes.store import KubernetesStore

            assert isinstance(store, KubernetesStore)
            store.finish_by(self._unattended.submit)
        self.grouped = GroupedStore(store)
        try:
            self.caches = ClusterCaches(store, node, self._corrupt)
        except BaseException:
            store.close()
            self._close_root()
            raise
        self.allocator = GroupAllocator(store, self.caches)
        self.endpoints = NodeEndpoints(self.grouped, node)
        self.number = 0
        self.users = 0
        self.used_at = 0.0

    def kubernetes(self) -> KubernetesCaches:
        """Pods and namespaces of the Kubernetes that the configuration names. Raises DatastoreError."""
        from cni_calico.datastore.kubernetes.store import KubernetesStore

        with self._opening:
            if self._kubernetes is None:
                store = self.store if isinstance(self.store, KubernetesStore) else None
                self._kubernetes = KubernetesCaches(
                    store or KubernetesStore(self.config.kubernetes, read=reader(self._reach)),
                    self._node,
                    self._corrupt,
                )
            return self._kubernetes

    def before_addresses(self, files: Files, run_dir: str, log: Log, node: str, deadline: Deadline) -> None:
        """Repair older versions' records before the first ADD; other ADDs wait for it. Raises DatastoreError,
        DeadlineExceeded, TryAgain.
        """
        if self._in_order:
            return
        from cni_calico.datastore.kubernetes.store import KubernetesStore
        from cni_calico.plugin.call.first_use import label_once

        doing = "label block affinities of older versions"
        if not self._ordering.acquire(timeout=deadline.require(doing)):
            raise DeadlineExceeded(f"cannot {doing}: another call is still doing it")
        try:
            if not self._in_order and isinstance(self.store, KubernetesStore):
                for labelled in label_once(files, run_dir, log, self.store, node, deadline, has_started=True):
                    self.caches.affinities_of_node.apply(Committed(labelled.revision, (labelled,)))
            self._in_order = True
        finally:
            self._ordering.release()

    def add_kubernetes(self, page: Exposition, **labels: str) -> None:
        known = self._kubernetes
        if known is not None:
            page.gauge("calico_kubernetes_pods", "Known pods of this node.", len(known.pods.items()), **labels)
            count = len(known.namespaces.items())
            page.gauge("calico_kubernetes_namespaces", "Known namespaces.", count, **labels)

    def door(self, *, adding: bool) -> Datastore:
        """The datastore, with this node's endpoints answered from memory.

        An ADD's writes detect by themselves what memory missed; for a DEL, a watch keeps pods stored in Kubernetes
        current.
        """
        if self.config.type == "kubernetes":
            return self.kubernetes().door(self.grouped, may_miss=not adding)
        return self.endpoints.door(may_miss=adding)

    def close(self) -> None:
        self.caches.stop()
        self._unattended.stop(FINISH_S)
        if self._kubernetes is not None:
            self._kubernetes.stop()
            self._kubernetes.api.close()
        self.store.close()
        self._close_root()

    def _close_root(self) -> None:
        if self._root is not None:
            os.close(self._root)
            self._root = None


class Backends:
    """All open datastores. ``clock`` returns seconds."""

    def __init__(self, log: Log, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.closed = 0
        self._log = log
        self._clock = clock
        self._opened = 0
        self._backends: dict[BackendKey, Backend] = {}
        self._openings: dict[BackendKey, threading.Lock] = {}
        self._guard = threading.Lock()

    def use(self, key: BackendKey, files: Files, deadline: Deadline) -> Backend:
        """The backend of a configuration, opened at the first request and in use until ``leave``.

        A datastore that takes long to open holds up only the calls that need it, each until its own deadline. Raises
        InvalidConfig, DatastoreError, DeadlineExceeded.
        """
        found = self._borrow(key)
        if found is not None:
            return found
        doing = f"open the {key.config.type} datastore"
        with self._guard:
            opening = self._openings.setdefault(key, threading.Lock())
        if not opening.acquire(timeout=deadline.require(doing)):
            raise DeadlineExceeded(f"cannot {doing}: another call is still doing it")
        try:
            return self._borrow(key) or self._open(key, files)
        finally:
            opening.release()
            with self._guard:
                self._openings.pop(key, None)

    def _open(self, key: BackendKey, files: Files) -> Backend:
        self._log.info(f"opening datastore {key.config.type} for node {key.node}")
        made = Backend(key.config, key.node, files, self._log)
        with self._guard:
            made.number, self._opened = self._opened, self._opened + 1
            made.users = 1
            # it was opened twice, because its lock was dropped in between: the first one is used
            if key in self._backends:
                made, extra = self._backends[key], made
                made.users += 1
            else:
                self._backends[key], extra = made, None
        if extra is not None:
            extra.close()
        return made

    def _borrow(self, key: BackendKey) -> Backend | None:
        with self._guard:
            found = self._backends.get(key)
            if found is not None:
                found.users += 1
            return found

    def leave(self, backend: Backend) -> None:
        with self._guard:
            backend.users -= 1
            backend.used_at = self._clock()

    def open_now(self) -> list[Backend]:
        with self._guard:
            return list(self._backends.values())

    def close_idle(self, *, all_of_them: bool = False) -> None:
        """Close the datastores that have not been used for IDLE_S, and the oldest above KEPT_MAX; with ``all_of_them``
        every one that is not in use.
        """
        for backend in self._remove_idle(all_of_them):
            self._log.info(f"closing datastore {backend.config.type}: no call has used it for a while")
            try:
                backend.close()
            except Exception as e:  # the next one must be closed anyway
                tell_survived(e)
                self._log.warning(f"cannot close datastore {backend.config.type}: {type(e).__name__}: {e}")
            self.closed += 1

    def _remove_idle(self, all_of_them: bool) -> list[Backend]:
        with self._guard:
            kept = sorted(self._backends.items(), key=lambda entry: (entry[1].users > 0, entry[1].used_at))
            late = self._clock() - IDLE_S
            idle = [
                key
                for i, (key, backend) in enumerate(kept if all_of_them else kept[:-1])  # except the one used last
                if not backend.users and (all_of_them or backend.used_at <= late or len(kept) - i > KEPT_MAX)
            ]
            return [self._backends.pop(key) for key in idle]

    def close(self) -> None:
        while self._backends:
            self._backends.popitem()[1].close()
