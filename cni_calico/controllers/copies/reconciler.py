"""Brings one controller's records into agreement with Kubernetes' objects, key by key. Rule: the caches only show what
to check. Every write is compared with the record as it was just read from the datastore, and before a record is
removed, the API server is asked whether its object is really gone. A record that cannot be read is left alone, and so
is one whose name is not ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cni_calico.controllers.copies.rules import NOTHING, Content, CopyRule
from cni_calico.daemon.fresh import Fresh
from cni_calico.datastore.cache import Cache
from cni_calico.datastore.cas import update
from cni_calico.datastore.interface import CommitConflict, Datastore, Document, Versioned, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied, TryAgain
from cni_calico.model.keys import Key, ResourceKey


@dataclass(frozen=True, slots=True)
class CopySources:
    """The caches of objects and records, and where these are; ``store`` is fenced."""

    objects: Cache[Any]
    records: Cache[Any]
    kubernetes: Datastore
    store: Datastore


class Reconciler:
    """For one thread."""

    def __init__(
        self,
        rule: CopyRule,
        sources: CopySources,
        *,
        fresh: Fresh | None = None,
        say: Callable[[ResourceKey, tuple[str, ...]], None] = lambda key, texts: None,
    ) -> None:
        self.rule = rule
        self._objects, self._records = sources.objects, sources.records
        self._kubernetes, self._store = sources.kubernetes, sources.store
        self._fresh = fresh or Fresh()
        self._say = say
        self._records_of: defaultdict[ResourceKey, set[ResourceKey]] = defaultdict(set)
        self._object_of: dict[ResourceKey, ResourceKey] = {}  # the reverse map

    # -- which records a change concerns ------------------------------------------------------------------------------

    def concerned_by_objects(self, changed: Iterable[Key]) -> set[ResourceKey]:
        found = set()
        for key in changed:
            assert isinstance(key, ResourceKey)
            found |= self._records_of.get(key, set())
            record = self.rule.record_of(key)
            if record is not None:
                found.add(record)
        return found

    def concerned_by_records(self, changed: Iterable[Key]) -> set[ResourceKey]:
        """The changed records that are ours; also remembers the object of each."""
        found = set()
        for key in changed:
            assert isinstance(key, ResourceKey)
            owner = self._owner(key)
            if owner is not None:
                found.add(key)
            self._remember(key, owner if self._records.get(key) is not None else None)
        return found

    def _owner(self, key: ResourceKey) -> ResourceKey | None:
        return self.rule.object_of(key, self._records.record(key))

    def _remember(self, key: ResourceKey, owner: ResourceKey | None) -> None:
        before = self._object_of.pop(key, None)
        if before is not None:
            self._records_of[before].discard(key)
            if not self._records_of[before]:
                del self._records_of[before]
        if owner is not None:
            self._object_of[key] = owner
            self._records_of[owner].add(key)

    def everything(self) -> set[ResourceKey]:
        return self.concerned_by_records(self._records.items()) | self.concerned_by_objects(self._objects.items())

    # -- one record ---------------------------------------------------------------------------------------------------

    def reconcile(self, key: ResourceKey, deadline: Deadline) -> bool:
        """Write or remove one record if it needs that; returns whether it was written. Raises CalicoError."""
        owner = self._owner(key)
        if owner is None:
            return False
        if self._objects.get(owner) is None:
            if self._records.get(key) is None or self.rule.record_of(owner) != key:
                return False
            return self._remove(key, owner, deadline)
        content = self._objects.record(owner)
        if content is None or content is NOTHING:
            return False
        if self._records.get(key) is None:
            if self.rule.record_of(owner) != key:
                return False
        elif self._is_up_to_date(content, self._records.record(key)):
            return False
        return self._ensure(key, owner, content, deadline)

    def _is_up_to_date(self, content: Content, found: Any) -> bool:
        return found is not None and self.rule.is_current(content.value, found)

    def _ensure(self, key: ResourceKey, owner: ResourceKey, content: Content, deadline: Deadline) -> bool:
        makes = self.rule.record_of(owner) == key
        wrote = False

        def change(current: Versioned | None) -> Document | None:
            nonlocal wrote
            old = None if current is None else current.value
            if old is None and not makes:
                return None
            if old is not None:
                found = self.rule.read_record(old)
                if self.rule.object_of(key, found) != owner or self.rule.is_current(content.value, found):
                    return old
            wrote = True
            return self._with_identity(self.rule.render(key, content.value, old), old)

        update(self._store, key, change, deadline)
        self._say(key, content.left_out)
        return wrote

    def _with_identity(self, document: dict[str, Any], old: Document | None) -> Document:
        if old is not None:
            return document
        identity = {"uid": self._fresh.uid(), "creationTimestamp": self._fresh.timestamp()}
        return {**document, "metadata": {**document["metadata"], **identity}}

    def _is_there(self, owner: ResourceKey, deadline: Deadline) -> bool:
        """Whether the object exists at the API server. (Upstream's roles allow listing policies, but not getting
        one.)
        """
        try:
            return self._kubernetes.get(owner, deadline) is not None
        except DatastoreDenied:
            listed = self._kubernetes.list(self.rule.objects, deadline)
            return any(item.key == owner for item in listed.items)

    def _remove(self, key: ResourceKey, owner: ResourceKey, deadline: Deadline) -> bool:
        current = self._store.get(key, deadline)
        if current is None:
            return False
        if self._is_there(owner, deadline):
            raise TryAgain(f"cannot remove {key.kind} {key.name}: its object exists again, or still exists")
        try:
            self._store.commit([Write.delete(current)], deadline)
        except CommitConflict as e:
            if e.failed[0].current is None:
                return False
            raise TryAgain(f"cannot remove {key.kind} {key.name}: it has just been changed") from e
        self._say(key, ())
        return True
