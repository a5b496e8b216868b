"""The controllers of pools and tiers of ``projectcalico.org/v3``: conditions, and finalizers that keep what is in use.

Rule: level-triggered. Before an object is let go, what keeps it is listed again: a cache may lack the newest. In a pool
that is going, blocks leave their nodes as soon as they are empty, so the last address takes the pool with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cni_calico.controllers.attempts import CALL_S, LOOK_S, Leading, Sight
from cni_calico.controllers.conditions import pools, tiers
from cni_calico.controllers.conditions.wishes import Wish, apply_wish, is_going
from cni_calico.daemon.fresh import Fresh
from cni_calico.daemon.said import Said
from cni_calico.datastore.cache import Cache, stop_caches
from cni_calico.datastore.interface import CommitConflict, Datastore, Document, Versioned, Write
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.ipam.allocator import Allocator
from cni_calico.model.documents.codec import decode_block
from cni_calico.model.keys import (
    AffinityKey,
    AffinityList,
    BlockKey,
    BlockList,
    Key,
    ListKey,
    ResourceKey,
    ResourceList,
)
from cni_calico.model.resources import is_within

AGAIN_S = 5.0  # after a failure

Objects = Mapping[ResourceKey, Document]
# what may keep an object of a kind from going: key -> the tier that a policy is in
Keepers = Mapping[Key, str]
Desire = Callable[[Objects, Keepers], dict[ResourceKey, Wish]]


@dataclass(frozen=True, slots=True)
class Guarded:
    """A kind with its controller: ``keepers`` are what ``desire`` looks at beside the objects; ``leave`` is done for an
    object that is going.
    """

    name: str
    kind: str
    finalizer: str
    keepers: tuple[ListKey, ...]
    desire: Desire
    leave: Callable[[Datastore, Document, Deadline], None]


def _desired_pools(objects: Objects, keepers: Keepers) -> dict[ResourceKey, Wish]:
    return pools.desired_pools(objects, [key.cidr for key in keepers if isinstance(key, BlockKey)])


def _desired_tiers(objects: Objects, keepers: Keepers) -> dict[ResourceKey, Wish]:
    policies = [(key, tier) for key, tier in keepers.items() if isinstance(key, ResourceKey)]
    return tiers.desired_tiers(objects, policies)


def leave_pool(store: Datastore, pool: Document, deadline: Deadline) -> None:
    """Take the pool's blocks from their nodes, and remove the empty ones; the others go with their last address."""
    cidr = pools.network_of(pool)
    if cidr is None:
        return
    allocator = Allocator(store)
    for item in store.list(AffinityList(), deadline).items:
        if isinstance(item.key, AffinityKey) and is_within(item.key.cidr, cidr):
            allocator.release_node_block(item.key.node, item.key.cidr, deadline, require_empty=False)
    for item in store.list(BlockList(cidr.version), deadline).items:
        if isinstance(item.key, BlockKey) and is_within(item.key.cidr, cidr):
            block = decode_block(item.key, item.value)
            if block.affinity is None and block.empty:
                _remove(store, item, deadline)


def _remove(store: Datastore, item: Versioned, deadline: Deadline) -> None:
    try:
        store.commit([Write.delete(item)], deadline)
    except CommitConflict:
        return  # somebody was faster, or took an address: the watch will tell


def _nothing(store: Datastore, document: Document, deadline: Deadline) -> None:
    pass


POOLS = Guarded("pools", "IPPool", pools.FINALIZER, (BlockList(),), _desired_pools, leave_pool)
TIERS = Guarded(
    "tiers",
    "Tier",
    tiers.FINALIZER,
    tuple(ResourceList(kind) for kind in tiers.POLICIES),
    _desired_tiers,
    _nothing,
)


class ObjectGuard:
    """``store`` is fenced. To be used by one thread."""

    def __init__(self, guarded: Guarded, store: Datastore, now: Callable[[], str]) -> None:
        self._guarded, self._store, self._now = guarded, store, now

    def apply(self, objects: Objects, keepers: Keepers, deadline: Deadline) -> int:
        """Returns the number of writes. Raises CalicoError."""
        guarded, writes = self._guarded, 0
        for key, wish in guarded.desire(objects, keepers).items():
            document = objects[key]
            if is_going(document) and guarded.finalizer in (document["metadata"].get("finalizers") or ()):
                guarded.leave(self._store, document, deadline)
                if not wish.holds:
                    wish = guarded.desire({key: document}, self._read_keepers(deadline))[key]
            if apply_wish(document, wish, guarded.finalizer, "") != document:
                writes += self._write(key, wish, deadline)
        return writes

    def _read_keepers(self, deadline: Deadline) -> Keepers:
        found = [item for listing in self._guarded.keepers for item in self._store.list(listing, deadline).items]
        return {item.key: _tier(item) for item in found}

    def _write(self, key: ResourceKey, wish: Wish, deadline: Deadline) -> int:
        current = self._store.get(key, deadline)
        if current is None:
            return 0
        going = is_going(current.value)
        # the status of what goes with this write cannot be written any more
        wanted = apply_wish(
            current.value, Wish(wish.holds) if going and not wish.holds else wish, self._guarded.finalizer, self._now()
        )
        if wanted == current.value:
            return 0
        try:
            self._store.commit([Write.update(current, wanted)], deadline)
        except CommitConflict:
            return 0  # the watch will report the present record
        return 1


def _tier(item: Versioned) -> str:
    return tiers.tier_of(item.value) if isinstance(item.key, ResourceKey) else ""


class GuardLoop:
    """One controller, for as long as this process leads."""

    def __init__(self, guarded: Guarded, leading: Leading) -> None:
        self._guarded, self._leading = guarded, leading
        self._log, self.numbers = leading.log, leading.numbers
        self._said = Said(leading.log)
        self._sight = Sight(guarded.name, leading.numbers, leading.log)

    def run(self, stopping: threading.Event) -> None:
        """Work whenever we lead, until ``stopping``."""
        self._leading.work(lambda: self._lead(stopping), stopping)

    def _lead(self, stopping: threading.Event) -> None:
        changed = threading.Event()
        store, guarded = self._leading.store, self._guarded
        objects: Cache[Document] = Cache(
            store,
            Kept(ResourceList(guarded.kind), lambda item: item.value),
            Listeners(on_change=lambda keys: changed.set()),
        )
        keepers: list[Cache[str]] = [
            Cache(store, Kept(each, _tier, keep_documents=False), Listeners(on_change=lambda keys: changed.set()))
            for each in guarded.keepers
        ]
        guard = ObjectGuard(guarded, store, Fresh().timestamp)
        again_at = 0.0
        try:
            while not stopping.is_set() and self._leading.leads():
                if self._sight.is_clear((objects, *keepers)) and (changed.is_set() or time.monotonic() >= again_at):
                    changed.clear()
                    done = self._try(guard, objects, keepers)
                    again_at = time.monotonic() + (self._leading.period_s() if done else AGAIN_S)
                changed.wait(LOOK_S)
                stopping.wait(LOOK_S)  # handle a burst of changes in one go
        finally:
            stop_caches((objects, *keepers))

    def _try(self, guard: ObjectGuard, objects: Cache[Document], keepers: Sequence[Cache[str]]) -> bool:
        known = {key: document for key, document in objects.records().items() if isinstance(key, ResourceKey)}
        kept = {key: tier for cache in keepers for key, tier in cache.records().items()}
        try:
            self.numbers.writes += guard.apply(known, kept, Deadline.after(CALL_S))
        except CalicoError as e:
            self.numbers.failures += 1
            self.numbers.failing = 1
            self._said.say("", [f"{self._guarded.name}: {e}"])
            return False
        self._said.say("", ())
        self.numbers.failing = 0
        return True
