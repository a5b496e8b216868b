"""Memory: which policies and network sets are taken into the graph while memory is short, and which wait.

Rule: waiting never opens anything and never undoes anything: of a policy that waits the version in force stays, or, if
there is none, a stand-in denies what it governs. Removing a policy, and making one smaller, never waits. There is a
limit only where the control group has one, or the setting names one; where there is none, nothing is measured.

From 80 % on (USABLE), caches are dropped, and a policy waits whose estimated size (sizes.py) does not fit. What lies
above is left to small changes of namespaces that cost less than the average, up to 90 % (RESERVE). A policy that was
taken in counts with its whole size even while no pod here needs it, if it is large or its namespace has many. How many
members its selectors' sets have no text says: the graph asks while it makes them (``admits_members``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cni_calico.kernel.memory import collect_all
from cni_calico.model.keys import ResourceKey
from cni_calico.model.selectors import parse_selector
from cni_calico.nodeagent.policing.feed.changes import FedChange, FedRecord, Refusal, Undecoded, Unread, read_stand_in
from cni_calico.nodeagent.policing.feed.held import LARGE_BYTES, SMALL_BYTES, HeldPolicies
from cni_calico.nodeagent.policing.feed.limits import MemoryLimits
from cni_calico.nodeagent.policing.feed.shares import share_of
from cni_calico.nodeagent.policing.feed.sizes import MEMBER_BYTES, NET_BYTES, estimate_document, estimate_record
from cni_calico.nodeagent.policing.feed.standins import stand_in_of
from cni_calico.nodeagent.policing.gate import listed
from cni_calico.policy.flushed import WaitsForMemory
from cni_calico.policy.records import POLICY_KINDS, PolicyRecord
from cni_calico.policy.rules import side_of_selector
from cni_calico.policy.sets import NETWORK_SET

USABLE, RESERVE, DOCUMENTS = 0.8, 0.9, 0.5  # DOCUMENTS: up to here documents wait for their turn in memory
_NAMESPACE_PART = 32  # a namespace's policies count as measured, not as estimated, up to this part of the limit
_RENDERED_PART = 0.7  # of a policy's size: what comes after it has been taken in
_MARGIN = 0.05
_DROP_S, _DROP_PART = 20.0, 0.01
_AGAIN_S = 10.0
_LOOK_S = 1.0  # how often what waits is looked at while nothing of it fits


class MemoryGuard:
    """For the engine's thread, but for ``judge`` and ``keeps_text``."""

    def __init__(
        self,
        limits: MemoryLimits | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = MemoryLimits() if limits is None else limits
        self._now = now
        self._forget_cached: Callable[[], None] = lambda: None
        self._drop_due_at = self._looked_at = float("-inf")
        self._held = HeldPolicies()
        self._coming = 0.0  # how much of what is reserved the present round will still need
        self._in_graph: set[ResourceKey] = set()  # those with a version in the graph, not only a stand-in
        self._stands_in: set[ResourceKey] = set()  # those of which a stand-in was handed over last
        self._replaced: dict[ResourceKey, int] = {}  # in the graph while a newer version is made ready: their sizes
        self._waiting: dict[ResourceKey, int] = {}
        self._asked: dict[ResourceKey, float] = {}  # when a waiting policy was read again
        self._unread_sets: dict[ResourceKey, int] = {}
        self._read_limits()

    def configure(self, limit_mib: int) -> None:
        self._limits.configure(limit_mib)

    def use(self, forget_cached: Callable[[], None]) -> None:
        """``forget_cached``: has the packet filter free what it keeps only to be faster."""
        self._forget_cached = forget_cached

    # -- what is there ------------------------------------------------------------------------------------------------

    def _read_limits(self) -> None:
        if self._limits.read_again():
            self._held.allow(self._limits.smallest // _NAMESPACE_PART)

    def _measure(self, *, anew: bool = False) -> None:
        self._read_limits()
        self._limits.read_used(anew=anew)

    def _room(self, part: float) -> float:
        """Bytes up to this part of the limit that leaves least."""
        return self._limits.room(part, coming=self._coming, reserved=self._held.reserved)

    def judge(self, kind: str, spec: Mapping[str, Any]) -> tuple[int, bool]:
        """How many bytes a policy needs, and whether its document may wait for its turn in memory. For any thread."""
        if not self._limits:
            return 0, True
        needs = estimate_document(kind, spec)
        self._limits.read_used()
        return needs, self._room(DOCUMENTS if needs >= LARGE_BYTES else USABLE) >= needs

    def keeps_text(self, size: int) -> bool:
        """Whether a text of so many bytes may wait in memory, before anything is known of it. For any thread."""
        if not self._limits:
            return True
        self._limits.read_used()
        return self._room(USABLE) >= size

    # -- what is taken in ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before the first change of a round, when everything that was admitted has been taken in."""
        self._measure()
        self._coming = 0.0

    def admit(self, key: ResourceKey, change: FedChange) -> tuple[FedChange, ...]:
        """What is to be decoded and taken in: the change, what stands for it, or nothing if what is in force stays."""
        if key.kind not in POLICY_KINDS:
            return self._admit_set(key, change) if key.kind == NETWORK_SET else (change,)
        if isinstance(change, Refusal):
            first = tuple(found for earlier in change.first for found in self.admit(key, earlier))
            self._waiting.pop(key, None)
            return (replace(change, first=tuple(found for found in first if not isinstance(found, Refusal))),)
        self._stands_in.discard(key)
        if not (self._limits or self._waiting or self._held or isinstance(change, Unread)):
            return (change,)
        if isinstance(change, PolicyRecord):
            needs = estimate_record(change)
        elif isinstance(change, Undecoded | Unread):
            needs = change.needs
        else:
            self._forget(key)
            self._in_graph.discard(key)
            return (change,)
        if not isinstance(change, Unread) and (self._is_smaller(key, needs) or self._fits(key, needs)):
            self._hold(key, needs)
            return (change,)
        self._waiting[key] = needs
        if key in self._in_graph:
            return ()
        self._stands_in.add(key)
        return (_stand_in(key, change),)

    def _admit_set(self, key: ResourceKey, change: FedChange) -> tuple[FedChange, ...]:
        """The graph itself judges what has been read: the members are a product of what selectors select."""
        self._unread_sets.pop(key, None)
        if isinstance(change, Refusal):
            first = tuple(found for earlier in change.first for found in self._admit_set(key, earlier))
            return (replace(change, first=tuple(found for found in first if not isinstance(found, Refusal))),)
        if isinstance(change, Unread):
            self._unread_sets[key] = change.needs // NET_BYTES
            return ()
        return (change,)

    def take_unread_sets(self) -> dict[ResourceKey, int]:
        """The network sets that there was no memory to read since the last call, and how many networks each has."""
        found, self._unread_sets = self._unread_sets, {}
        return found

    def admits_members(self, members: int) -> bool:
        """Whether there is memory for so many members of sets that are in the graph, and nowhere else yet."""
        return not self._limits or self._has_room(members * MEMBER_BYTES)

    def stand_in(self, key: ResourceKey) -> None:
        """What is taken in is only a stand-in, and the policy will be admitted later."""
        self._stands_in.add(key)

    def withdraw(self, key: ResourceKey) -> None:
        """What was admitted last will not be taken in: what is in the graph counts again."""
        before = self._replaced.pop(key, 0)
        if key in self._held.sizes:
            self._forget(key)
            if before:
                self._held.hold(key, before)

    def note(self, taken: Mapping[ResourceKey, FedRecord]) -> None:
        """These have been decoded, and are taken in."""
        for key, record in taken.items():
            self._replaced.pop(key, None)
            for one in record.first if isinstance(record, Refusal) else (record,):
                if isinstance(one, PolicyRecord) and key not in self._stands_in:
                    self._in_graph.add(key)
                elif one is None:
                    self._in_graph.discard(key)

    def _hold(self, key: ResourceKey, needs: int) -> None:
        if key in self._in_graph:
            self._replaced[key] = self._held.sizes.get(key, 0)
        self._forget(key)
        before = self._held.reserved
        self._held.hold(key, needs)
        self._coming += _RENDERED_PART * max(0, self._held.reserved - before)

    def _forget(self, key: ResourceKey) -> None:
        self._waiting.pop(key, None)
        self._asked.pop(key, None)
        self._held.let_go(key)

    def _is_smaller(self, key: ResourceKey, needs: int) -> bool:
        return key in self._in_graph and needs <= self._held.sizes.get(key, 0)

    def _fits(self, key: ResourceKey, needs: int) -> bool:
        return self._has_room(needs) or (
            self._held.is_cheap(key, needs, self._held.average()) and self._room(RESERVE) >= needs
        )

    def _has_room(self, needs: int, margin: float = 0.0) -> bool:
        """``margin``: a part of the limit that is to be left."""
        self._measure(anew=needs >= SMALL_BYTES)
        part = USABLE - margin
        if self._room(part) >= needs:
            return True
        if self._limits.allows(part, reserved=self._held.reserved) >= needs and self._now() >= self._drop_due_at:
            self._drop_caches()
        return self._room(part) >= needs

    def _drop_caches(self) -> None:
        """It holds up all threads, with millions of objects for seconds: at most _DROP_PART of the time."""
        begun = self._now()
        self._forget_cached()
        for cached in (parse_selector, side_of_selector):
            cached.cache_clear()
        collect_all()
        ended = self._now()
        self._drop_due_at = ended + max(_DROP_S, (ended - begun) / _DROP_PART)
        self._measure(anew=True)

    # -- what waits ---------------------------------------------------------------------------------------------------

    def next_due(self) -> ResourceKey | None:
        """A policy that has waited and fits now, to be read again; the smallest first. While none fits, they are looked
        at once in _LOOK_S, and memory is measured for one of them, because the others are larger.
        """
        now = self._now()
        if not self._waiting or now - self._looked_at < _LOOK_S:
            return None
        due = (key for key in self._waiting if now - self._asked.get(key, float("-inf")) >= _AGAIN_S)
        left: float | None = None  # to small changes, once there is no room for others
        average = self._held.average()
        for key in sorted(due, key=lambda key: (self._waiting[key], str(key))):
            needs = self._waiting[key]
            fits = self._is_smaller(key, needs) or (left is None and self._has_room(needs, _MARGIN))
            if not fits:
                left = self._room(RESERVE - _MARGIN) if left is None else left
                fits = left >= needs and self._held.is_cheap(key, needs, average)
            if fits:
                self._asked[key] = now
                return key
        self._looked_at = now
        return None

    def waiting(self, in_graph: Sequence[WaitsForMemory] = ()) -> dict[str, int]:
        """How many policies and network sets of each namespace wait; "" for those of none. ``in_graph``: what the graph
        has, and waits there.
        """
        keys = {*self._waiting, *(one.key for one in in_graph)}
        return dict(sorted(Counter(share_of(key) for key in keys).items()))

    def problems(self, in_graph: Sequence[WaitsForMemory] = ()) -> tuple[str, ...]:
        """A sentence for each namespace. ``in_graph``: as for ``waiting``."""
        denied = {key: key not in self._in_graph for key in self._waiting}
        denied.update((one.key, one.is_denied) for one in in_graph)
        return tuple(self._describe(name, denied) for name in self.waiting(in_graph))

    def _describe(self, namespace: str, denied: Mapping[ResourceKey, bool]) -> str:
        keys = [key for key in denied if share_of(key) == namespace]
        policies = [key for key in keys if key.kind != NETWORK_SET]
        new = sorted(f"{key.kind} {key.name}" for key in policies if denied[key])
        old = sorted(f"{key.kind} {key.name}" for key in policies if not denied[key])
        sets = sorted(f"{key.kind} {key.name}" for key in keys if key.kind == NETWORK_SET)
        parts = [f"{listed(new)}: what they govern is denied"] if new else []
        parts += [f"{listed(old)}: their earlier versions stay in force"] if old else []
        parts += [f"{listed(sets)}: as before, and new policies of the namespace wait"] if sets else []
        counts = [f"{len(policies)} policies"] if policies else []
        counts += [f"{len(sets)} network sets"] if sets else []
        whose = f"of namespace {namespace}" if namespace else "without a namespace"
        limits = self._limits.describe()
        said = f"{' and '.join(counts)} {whose} wait for memory ({'; '.join(parts)})"
        return f"{said}; there is {limits}, of which {USABLE:.0%} may be used" if limits else said


def _stand_in(key: ResourceKey, one: PolicyRecord | Undecoded | Unread) -> FedChange:
    if isinstance(one, PolicyRecord):
        return stand_in_of(one)
    return one.stand_in if isinstance(one, Unread) else read_stand_in(key, one.item.value)
