"""Follows the cluster's profiles, which have the labels of namespaces and service accounts.

Rule: labels are handed on as they are stored; a profile that cannot be read keeps those it had.
"""

from __future__ import annotations

from collections.abc import Callable

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import decode_resource
from cni_calico.model.documents.fields import Wrong, parse_text_map
from cni_calico.model.keys import Key, ResourceKey, ResourceList
from cni_calico.model.selectors import Labels


class FollowedProfiles:
    """Hands on the labels of the cluster's profiles, which have those of namespaces and service accounts."""

    def __init__(self, store: Datastore, receive: Callable[..., object]) -> None:
        """``receive(labels, complete=True)`` in another thread: the labels of profiles, None for one that is gone."""
        self._receive = receive
        self._changed: dict[str, Labels | None] = {}
        listeners = Listeners(self._changes, hand_over=self._put, gone=self._drop, on_read=self._read)
        kept = Kept(ResourceList("Profile"), _labels_of, keep_documents=False)
        self._cache: Cache[Labels] = Cache(store, kept, listeners, cached=True)

    def stop(self) -> None:
        self._cache.stop()

    def _put(self, key: Key, labels: Labels) -> None:
        assert isinstance(key, ResourceKey)
        self._changed[key.name] = labels

    def _drop(self, key: Key) -> None:
        assert isinstance(key, ResourceKey)
        self._changed[key.name] = None

    def _changes(self, _: frozenset[Key]) -> None:
        changed, self._changed = self._changed, {}
        self._receive(changed, complete=True)

    def _read(self) -> None:
        self._changes(frozenset())


def _labels_of(item: Versioned) -> Labels:
    """Raises CorruptRecord."""
    assert isinstance(item.key, ResourceKey)
    resource = decode_resource(item.key, item.value)
    try:
        return parse_text_map(resource.spec.get("labelsToApply") or {}, "spec.labelsToApply")
    except Wrong as e:
        raise CorruptRecord(f"Profile {item.key.name}: {e}") from e
