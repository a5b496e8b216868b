"""The loop of the controllers that copy: takes changed keys and reconciles each.

Rule: one thread, which works only while the lease is ours, on caches made for that time; in every period all keys are
checked again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from cni_calico.controllers.attempts import LOOK_S, Attempts, Leading, Sight
from cni_calico.controllers.copies.reconciler import CopySources, Reconciler
from cni_calico.controllers.copies.rules import Content, CopyRule
from cni_calico.datastore.cache import Cache, stop_caches
from cni_calico.datastore.changed_keys import ChangedKeys
from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.model.keys import Key, ResourceKey


class CopyLoop:
    """One controller."""

    def __init__(self, rule: CopyRule, kubernetes: Datastore, leading: Leading) -> None:
        self.rule = rule
        self._kubernetes, self._leading = kubernetes, leading
        self._sight = Sight(rule.name, leading.numbers, leading.log)
        self._attempts = Attempts(lambda key: rule.name, leading.leads, leading.numbers, leading.log)

    def run(self, stopping: threading.Event) -> None:
        """Run until ``stopping``, working whenever we lead."""
        self._leading.work(lambda: self._lead(stopping), stopping)

    def _lead(self, stopping: threading.Event) -> None:
        objects, records = ChangedKeys(), ChangedKeys()
        rule = self.rule
        caches: Sequence[Cache[Any]] = (
            Cache(
                self._kubernetes,
                Kept(rule.objects, self._read_object, keep_documents=False),
                Listeners(on_change=objects.note, corrupt=self._cannot_read),
            ),
            Cache(
                self._leading.store,
                Kept(rule.records, lambda item: rule.read_record(item.value), keep_documents=False),
                Listeners(on_change=records.note),
            ),
        )
        try:
            sources = CopySources(caches[0], caches[1], self._kubernetes, self._leading.store)
            reconciler = Reconciler(rule, sources, say=self._tell)
            self._rounds(reconciler, caches, objects, records, stopping)
        finally:
            stop_caches(caches)
            self._attempts.forget()

    def _rounds(
        self,
        reconciler: Reconciler,
        caches: Sequence[Cache[Any]],
        objects: ChangedKeys,
        records: ChangedKeys,
        stopping: threading.Event,
    ) -> None:
        tasks = self._attempts.tasks
        everything_at = 0.0
        while not stopping.is_set() and self._leading.leads():
            if not self._sight.is_clear(caches):
                # nothing is decided from a broken watch: its objects may be long gone
                stopping.wait(LOOK_S)
                continue
            now = time.monotonic()
            # records first: the index must know the records of an object that changed with them
            tasks.note(reconciler.concerned_by_records(records.take()), now)
            tasks.note(reconciler.concerned_by_objects(objects.take()), now)
            if now >= everything_at:
                tasks.note(reconciler.everything(), now)
                everything_at = now + self._leading.period_s()
            self._attempts.round(reconciler.reconcile)
            if not tasks.due(time.monotonic(), 1) and not records.any.is_set():
                objects.any.wait(LOOK_S)

    def _read_object(self, item: Versioned) -> Content:
        return self.rule.read_object(item.value)

    def _cannot_read(self, key: Key, why: str) -> None:
        self._leading.log.warning(f"{self.rule.name}: {why}")

    def _tell(self, key: ResourceKey, texts: tuple[str, ...]) -> None:
        """Log what could not be converted of an object: once, until it changes."""
        if texts and self._leading.numbers.left_out.get(key) != texts:
            self._leading.log.warning(f"{self.rule.name}: {key.namespace}/{key.name}: " + "; ".join(texts))
        if texts:
            self._leading.numbers.left_out[key] = texts
        else:
            self._leading.numbers.left_out.pop(key, None)
