"""The loop of the controllers that copy: takes changed keys, reconciles each, and retries those that fail.

Rule: one thread, which works only while the lease is ours, on caches made for that time. A key that fails never holds
up the others and is never given up; in every period all keys are checked again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni_calico.controllers.due import DueTasks
from cni_calico.controllers.follow.follower import Follower
from cni_calico.controllers.follow.rules import Content, Following
from cni_calico.daemon.fresh import Fresh
from cni_calico.datastore.cache import Cache, stop_caches
from cni_calico.datastore.changed_keys import ChangedKeys
from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.log import Log
from cni_calico.model.keys import Key, ResourceKey

CALL_S = 30.0
BATCH = 100
LOOK_S = 0.5


@dataclass(slots=True)
class LoopNumbers:
    """One controller's counters, for metrics and status: one thread writes."""

    writes: int = 0
    failures: int = 0
    waiting: int = 0
    failing: int = 0
    left_out: dict[ResourceKey, tuple[str, ...]] = field(default_factory=dict)
    error: str = ""


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
        self._said: dict[ResourceKey, str] = {}

    def run(self, stopping: threading.Event) -> None:
        """Run until ``stopping``, working whenever we lead."""
        while not stopping.is_set():
            if self._leads():
                self._lead(stopping)
            stopping.wait(LOOK_S)

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
            follower = Follower(
                following, caches[0], caches[1], self._kubernetes, self._store, fresh=self._fresh, say=self._tell
            )
            self._rounds(follower, caches, objects, records, stopping)
        finally:
            stop_caches(caches)
            self.numbers.waiting = self.numbers.failing = 0

    def _rounds(
        self,
        follower: Follower,
        caches: Sequence[Cache[Any]],
        objects: ChangedKeys,
        records: ChangedKeys,
        stopping: threading.Event,
    ) -> None:
        tasks: DueTasks[ResourceKey] = DueTasks()
        everything_at = 0.0
        while not stopping.is_set() and self._leads():
            self.numbers.error = next((str(cache.error) for cache in caches if cache.error is not None), "")
            if not all(cache.healthy for cache in caches):
                # what a broken watch shows may be long gone: nothing is decided by it
                stopping.wait(LOOK_S)
                continue
            now = self._clock()
            # records first: the index must know the records of an object that changed with them
            tasks.note(follower.concerned_by_records(records.take()), now)
            tasks.note(follower.concerned_by_objects(objects.take()), now)
            if now >= everything_at:
                tasks.note(follower.everything(), now)
                everything_at = now + self._period_s()
            self.round(follower, tasks)
            if not tasks.due(self._clock(), 1) and not records.any.is_set():
                objects.any.wait(LOOK_S)

    def round(self, follower: Follower, tasks: DueTasks[ResourceKey]) -> None:
        """Everything that is due now, up to BATCH tasks."""
        for key in tasks.due(self._clock(), BATCH):
            if not self._leads():
                return
            try:
                self.numbers.writes += follower.reconcile(key, Deadline.after(CALL_S))
                tasks.done(key)
                self._said.pop(key, None)
            except CalicoError as e:
                self.numbers.failures += 1
                pause_s = tasks.failed(key, self._clock())
                if self._said.get(key) != str(e):
                    self._said[key] = str(e)
                    self._log.warning(f"{self.following.name}: {e}; next try in {pause_s:g} s")
        self.numbers.waiting, self.numbers.failing = len(tasks), tasks.failing

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
