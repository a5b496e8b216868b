"""Kubernetes' services, as a driver is told them.

Rule: where there is no Kubernetes there are none; where they may not be read, that is said, and nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import eq

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Versioned
from cni_calico.datastore.kubernetes.layout import SERVICE
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.errors import DatastoreDenied, DatastoreUnsupported
from cni_calico.model.keys import Key, ResourceKey, ResourceList
from cni_calico.nodeagent.driver.cluster import OTHER, Fact, FactName, encode_service


class FollowedServices:
    """``changed``: since the last ``facts``."""

    def __init__(self, store: KubernetesStore | None, wake: Callable[[], None]) -> None:
        self.changed = True
        self._wake = wake
        self._cache: Cache[Fact] | None = None
        if store is not None:
            kept = Kept(ResourceList(SERVICE), _encode, keep_documents=False, same=eq)
            self._cache = Cache(store, kept, Listeners(on_change=self._note, on_read=self._read))

    def _note(self, _: frozenset[Key]) -> None:
        self.changed = True
        self._wake()

    def _read(self) -> None:
        self._note(frozenset())

    @property
    def complete(self) -> bool:
        """Whether there is nothing to wait for."""
        return self._cache is None or self._cache.synced or bool(self.problem)

    @property
    def problem(self) -> str:
        """Why they may not be read, "" if they may."""
        cache = self._cache
        if cache is None or cache.synced or not isinstance(cache.error, (DatastoreDenied, DatastoreUnsupported)):
            return ""
        return f"the data plane driver is told of no services: {cache.error}"

    def facts(self) -> dict[FactName, Fact]:
        """Those that are there."""
        self.changed = False
        records = {} if self._cache is None else self._cache.records()
        return {(OTHER, f"service {key}"): fact for key, fact in sorted(records.items(), key=lambda item: str(item[0]))}

    def stop(self) -> None:
        if self._cache is not None:
            self._cache.stop()


def _encode(item: Versioned) -> Fact:
    assert isinstance(item.key, ResourceKey)
    return encode_service(item.key.namespace, item.key.name, item.value)
