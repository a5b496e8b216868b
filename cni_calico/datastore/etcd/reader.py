"""The etcd datastore of a process that reads little and ends: without gRPC's library as long as that goes well.

Rule: from the first question on that the short way leaves open, and for everything else, it is an EtcdStore, so that
failures, refusals and limits are that store's, in its words.
"""

from __future__ import annotations

import threading

from cni_calico.datastore.etcd.config import cluster_name, parse_endpoints
from cni_calico.datastore.etcd.credentials import as_it_is
from cni_calico.datastore.etcd.light import LightClient, NoAnswer
from cni_calico.datastore.etcd.reads import EtcdReads, ignore_corrupt
from cni_calico.datastore.interface import RoundTrips

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cni_calico.datastore.etcd.config import EtcdConfig
    from cni_calico.datastore.etcd.spans import Span, SpanAnswer
    from cni_calico.datastore.etcd.store import EtcdStore
    from cni_calico.datastore.etcd.watch import EtcdWatch
    from cni_calico.datastore.interface import Committed, Revision, Versioned, Write
    from cni_calico.deadline import Deadline
    from cni_calico.model.keys import Key, ListKey


class EtcdReader(EtcdReads):
    """A Datastore (see interface.py) on an etcd cluster, which imports gRPC only when it needs it.

    Safe with threads; not to be used in a forked child.
    """

    def __init__(
        self,
        config: EtcdConfig,
        *,
        corrupt: Callable[[Key, str], None] = ignore_corrupt,
        reach: Callable[[str], str] = as_it_is,
    ) -> None:
        super().__init__(corrupt)
        endpoints = parse_endpoints(config)
        self.identity = f"etcdv3:{cluster_name(config, endpoints)}"
        self.round_trips = RoundTrips()
        self._config = config
        self._reach = reach
        # endpoints that are found by DNS are looked for by the store
        self._light = None if config.discovery_srv else LightClient(config, endpoints, reach)
        self._store: EtcdStore | None = None
        self._opening = threading.Lock()
        self._closed = False

    def ask(self, span: Span, doing: str, deadline: Deadline) -> SpanAnswer:
        light = self._light
        if light is not None:
            self.round_trips.count("Range")
            try:
                return light.ask(span, deadline)
            except NoAnswer:
                self.round_trips.errors += 1
                self._light = None
                light.close()
        return self._whole().ask(span, doing, deadline)

    def _whole(self) -> EtcdStore:
        with self._opening:
            if self._store is None:
                from cni_calico.datastore.etcd.store import EtcdStore

                self._store = EtcdStore(self._config, corrupt=self._tell_corrupt, reach=self._reach)
                self._store.cluster.round_trips = self.round_trips
                if self._closed:
                    self._store.close()
            return self._store

    def _tell_corrupt(self, key: Key, why: str) -> None:
        self.corrupt(key, why)

    def get_many(self, keys: Sequence[Key], deadline: Deadline) -> Sequence[Versioned | None]:
        return self._whole().get_many(keys, deadline)

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        return self._whole().commit(writes, deadline)

    def watch(self, listing: ListKey, revision: Revision) -> EtcdWatch:
        return self._whole().watch(listing, revision)

    def close(self) -> None:
        self._closed = True
        light, self._light = self._light, None
        if light is not None:
            light.close()
        if self._store is not None:
            self._store.close()
