"""The loop of the controllers that copy: takes changed keys and reconciles each.

Rule: one thread, which works only while the lease is ours, on caches made for that time; in every period all keys are
checked again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from cni_calico.controllers.attempts import LOOK_S, Attempts, Sight, work_while_leading
from cni_calico.controllers.counters import LoopNumbers
from cni_calico.controllers.follow.reconciler import Reconciler
from cni_calico.controllers.follow.rules import Content, Following
from cni_calico.daemon.fresh import Fresh
from cni_calico.datastore.cache import Cache, stop_caches
from cni_calico.datastore.changed_keys import ChangedKeys
from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.log import Log
from cni_calico.model.keys import Key, ResourceKey


class CopyLoop:
    """One controller. ``fenced`` is the datastore for the leader only, ``leads`` says whether we lead now."""

    def __init__(
        self,
        following: Following,
        kubernetes: Datastore,
        fenced: Datastore,
        leads: Callable[[], bool],
        period_s: Callable[[], float],
        log: Log,
        *,
        numbers: LoopNumbers | None = None,
        fresh: Fresh | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.following = following
        self.numbers = numbers or LoopNumbers()
        self._kubernetes, self._store = kubernetes, fenced
        self._leads, self._period_s, self._log = leads, period_s, log
        self._fresh, self._clock = fresh, clock
        self._sight = Sight(following.name, self.numbers, log)
        self._attempts = Attempts(lambda key: following.name, leads, self.numbers, log, clock)

    def run(self, stopping: threading.Event) -> None:
        """Run until ``stopping``, working whenever we lead."""
        work_while_leading(self._leads, lambda: self._lead(stopping), stopping)

    def _lead(self, stopping: threading.Event) -> None:
        objects, records = ChangedKeys(), ChangedKeys()
        following = self.following
        caches: Sequence[Cache[Any]] = (
            Cache(
                self._kubernetes,
                following.objects,
                decode=self._read_object,
                on_change=objects.note,
                corrupt=self._cannot_read,
                keep_documents=False,
            ),
            Cache(
                self._store,
                following.records,
                decode=lambda item: following.read_record(item.value),
                on_change=records.note,
                keep_documents=False,
            ),
        )
        try:
            reconciler = Reconciler(
                following, caches[0], caches[1], self._kubernetes, self._store, fresh=self._fresh, say=self._tell
            )
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
        while not stopping.is_set() and self._leads():
            if not self._sight.is_clear(caches):
                # nothing is decided from a broken watch: its objects may be long gone
                stopping.wait(LOOK_S)
                continue
            now = self._clock()
            # records first: the index must know the records of an object that changed with them
            tasks.note(reconciler.concerned_by_records(records.take()), now)
            tasks.note(reconciler.concerned_by_objects(objects.take()), now)
            if now >= everything_at:
                tasks.note(reconciler.everything(), now)
                everything_at = now + self._period_s()
            self._attempts.round(reconciler.reconcile)
            if not tasks.due(self._clock(), 1) and not records.any.is_set():
                objects.any.wait(LOOK_S)

    def _read_object(self, item: Versioned) -> Content:
        return self.following.read_object(item.value)

    def _cannot_read(self, key: Key, why: str) -> None:
        self._log.warning(f"{self.following.name}: {why}")

    def _tell(self, key: ResourceKey, texts: tuple[str, ...]) -> None:
        """Log what could not be converted of an object: once, until it changes."""
        if texts and self.numbers.left_out.get(key) != texts:
            self._log.warning(f"{self.following.name}: {key.namespace}/{key.name}: " + "; ".join(texts))
        if texts:
            self.numbers.left_out[key] = texts
        else:
            self.numbers.left_out.pop(key, None)
