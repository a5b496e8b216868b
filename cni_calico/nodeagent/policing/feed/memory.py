"""Memory: which policies are taken into the graph while memory is short, and which wait.

Rule: waiting never opens anything and never undoes anything: of a policy that waits the version in force stays, or, if
there is none, a stand-in denies what it governs. Removing a policy, and making one smaller, never waits. There is a
limit only where the control group has one, or the setting names one; where there is none, nothing is measured.

From 80 % on (USABLE), caches are dropped, and a policy waits whose estimated size (sizes.py) does not fit. What lies
above is left to small changes of namespaces that cost less than the average, up to 90 % (RESERVE). A policy that was
taken in counts with its whole size even while no pod here needs it, if it is large or its namespace has many.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cni_calico.kernel.cgroup import LimitedGroup, read_limited_groups
from cni_calico.kernel.memory import collect_all, resident_bytes
from cni_calico.model.keys import ResourceKey
from cni_calico.model.selectors import parse_selector
from cni_calico.nodeagent.policing.feed.changes import FedChange, FedRecord, Refusal, Undecoded, Unread, read_stand_in
from cni_calico.nodeagent.policing.feed.shares import share_of
from cni_calico.nodeagent.policing.feed.sizes import estimate_document, estimate_record
from cni_calico.nodeagent.policing.feed.standins import stand_in_of
from cni_calico.nodeagent.policing.gate import listed
from cni_calico.policy.records import POLICY_KINDS, PolicyRecord
from cni_calico.policy.sources import peer_selector, port_source, selector_source

SETTING = "FELIX_POLICYMEMORYLIMITMIB"
USABLE, RESERVE, DOCUMENTS = 0.8, 0.9, 0.5  # DOCUMENTS: up to here documents wait for their turn in memory
LARGE_BYTES, SMALL_BYTES = 2 << 20, 1 << 20
_NAMESPACE_PART = 32  # a namespace's policies count as measured, not as estimated, up to this part of the limit
_RENDERED_PART = 0.7  # of a policy's size: what comes after it has been taken in
_MARGIN = 0.05
_USED_S, _LIMITS_S, _DROP_S, _AGAIN_S = 0.05, 60.0, 20.0, 10.0
_LOOK_S = 1.0  # how often what waits is looked at while nothing of it fits
_MIB = 1 << 20


@dataclass(slots=True)
class _MemoryLimit:
    """``base``: what was used at first, or later if that is less."""

    name: str
    limit: int
    read_used: Callable[[], int]
    base: int
    used: int


class MemoryGuard:
    """For the engine's thread, but for ``judge``."""

    def __init__(
        self,
        limit_mib: int = 0,
        now: Callable[[], float] = time.monotonic,
        groups: Callable[[], tuple[LimitedGroup, ...]] = read_limited_groups,
        own_bytes: Callable[[], int] = resident_bytes,
        forget_cached: Callable[[], None] = lambda: None,
    ) -> None:
        """``forget_cached``: have the packet filter free what it keeps only to be faster."""
        self._setting, self._forget_cached = limit_mib, forget_cached
        self._now, self._groups, self._own_bytes = now, groups, own_bytes
        self._limits: tuple[_MemoryLimit, ...] = ()
        self._used_at = self._limits_at = self._dropped_at = self._looked_at = float("-inf")
        self._held: dict[ResourceKey, int] = {}  # what has been taken in: the estimated sizes
        self._costs: Counter[str] = Counter()  # the same of each namespace
        self._large: Counter[str] = Counter()  # of them, those of large policies
        self._reserved = 0  # what counts as estimated
        self._coming = 0.0  # how much of it the present round will still need
        self._in_graph: set[ResourceKey] = set()  # those with a version in the graph, not only a stand-in
        self._stands_in: set[ResourceKey] = set()  # those of which a stand-in was handed over last
        self._replaced: dict[ResourceKey, int] = {}  # in the graph while a newer version is made ready: their sizes
        self._waiting: dict[ResourceKey, int] = {}
        self._asked: dict[ResourceKey, float] = {}  # when a waiting policy was read again
        self._read_limits()

    def configure(self, limit_mib: int) -> None:
        if limit_mib != self._setting:
            self._setting, self._limits_at = limit_mib, float("-inf")

    # -- what is there ------------------------------------------------------------------------------------------------

    def _read_limits(self) -> None:
        """The limits may change while the process runs."""
        self._limits_at = self._now()
        before = {one.name: one for one in self._limits}
        sources = [(f"the limit of {one.path}", one.limit_bytes, one.read_used_bytes) for one in self._groups()]
        if self._setting:
            sources.append((SETTING, self._setting * _MIB, self._own_bytes))
        found = []
        for name, limit, read_used in sources:
            used = read_used()
            base = before[name].base if name in before else used
            found.append(_MemoryLimit(name, limit, read_used, base, used))
        self._limits = tuple(found)
        self._free = min((one.limit for one in found), default=0) // _NAMESPACE_PART
        self._reserved = sum(map(self._reserved_of, self._costs))

    def _measure(self, *, anew: bool = False) -> None:
        if self._now() - self._limits_at >= _LIMITS_S:
            self._read_limits()
        self._read_used(anew=anew)

    def _read_used(self, *, anew: bool = False) -> None:
        """For any thread."""
        now = self._now()
        if anew or now - self._used_at >= _USED_S:
            self._used_at = now
            for one in self._limits:
                one.used = one.read_used()
                one.base = min(one.base, one.used)

    def _room(self, part: float) -> float:
        """Bytes up to this part of the limit, of the one that leaves least; infinite without any."""
        return min(
            (part * one.limit - max(one.used + self._coming, one.base + self._reserved) for one in self._limits),
            default=float("inf"),
        )

    def _reserved_of(self, namespace: str) -> int:
        large = self._large[namespace]
        return large + max(0, self._costs[namespace] - large - self._free) if namespace else large

    def judge(self, kind: str, spec: Mapping[str, Any]) -> tuple[int, bool]:
        """How many bytes a policy needs, and whether its document may wait for its turn in memory. For any thread."""
        if not self._limits:
            return 0, True
        needs = estimate_document(kind, spec)
        self._read_used()
        return needs, self._room(DOCUMENTS if needs >= LARGE_BYTES else USABLE) >= needs

    # -- what is taken in ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before the first change of a round, when everything that was admitted has been taken in."""
        self._measure()
        self._coming = 0.0

    def admit(self, key: ResourceKey, change: FedChange) -> tuple[FedChange, ...]:
        """What is to be decoded and taken in: the change, what stands for it, or nothing if what is in force stays."""
        if key.kind not in POLICY_KINDS:
            return (change,)
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

    def stand_in(self, key: ResourceKey) -> None:
        """What is taken in is only a stand-in, and the policy will be admitted later."""
        self._stands_in.add(key)

    def withdraw(self, key: ResourceKey) -> None:
        """What was admitted last will not be taken in: what is in the graph counts again."""
        before = self._replaced.pop(key, 0)
        if key in self._held:
            self._forget(key)
            if before:
                self._held[key] = before
                self._charge(key, before, before)

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
            self._replaced[key] = self._held.get(key, 0)
        self._forget(key)
        self._held[key] = needs
        before = self._reserved
        self._charge(key, needs, needs)
        self._coming += _RENDERED_PART * max(0, self._reserved - before)

    def _forget(self, key: ResourceKey) -> None:
        self._waiting.pop(key, None)
        self._asked.pop(key, None)
        needs = self._held.pop(key, 0)
        self._charge(key, needs, -needs)

    def _charge(self, key: ResourceKey, needs: int, by: int) -> None:
        name = share_of(key)
        self._reserved -= self._reserved_of(name)
        self._costs[name] += by
        if needs >= LARGE_BYTES:
            self._large[name] += by
        self._reserved += self._reserved_of(name)
        if not self._costs[name]:
            del self._costs[name], self._large[name]

    def _is_smaller(self, key: ResourceKey, needs: int) -> bool:
        return key in self._in_graph and needs <= self._held.get(key, 0)

    def _fits(self, key: ResourceKey, needs: int) -> bool:
        return self._has_room(needs) or (self._is_cheap(key, needs, self._average()) and self._room(RESERVE) >= needs)

    def _has_room(self, needs: int, margin: float = 0.0) -> bool:
        """``margin``: a part of the limit that is to be left."""
        self._measure(anew=needs >= SMALL_BYTES)
        if self._room(USABLE - margin) >= needs:
            return True
        if self._now() - self._dropped_at >= _DROP_S:
            self._drop_caches()
        return self._room(USABLE - margin) >= needs

    def _average(self) -> float:
        return self._costs.total() / max(1, len(self._costs))

    def _is_cheap(self, key: ResourceKey, needs: int, average: float) -> bool:
        """Whether it may have what is left to small changes."""
        return needs < SMALL_BYTES and self._costs[share_of(key)] + needs <= max(average, SMALL_BYTES)

    def _drop_caches(self) -> None:
        self._dropped_at = self._now()
        self._forget_cached()
        for cached in (parse_selector, selector_source, port_source, peer_selector):
            cached.cache_clear()
        collect_all()
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
        average = self._average()
        for key in sorted(due, key=lambda key: (self._waiting[key], str(key))):
            needs = self._waiting[key]
            fits = self._is_smaller(key, needs) or (left is None and self._has_room(needs, _MARGIN))
            if not fits:
                left = self._room(RESERVE - _MARGIN) if left is None else left
                fits = left >= needs and self._is_cheap(key, needs, average)
            if fits:
                self._asked[key] = now
                return key
        self._looked_at = now
        return None

    def waiting(self) -> dict[str, int]:
        """How many policies of each namespace wait; "" for those of none."""
        return dict(sorted(Counter(share_of(key) for key in self._waiting).items()))

    def problems(self) -> tuple[str, ...]:
        """A sentence for each namespace."""
        return tuple(self._describe(name) for name in self.waiting())

    def _describe(self, namespace: str) -> str:
        keys = [key for key in self._waiting if share_of(key) == namespace]
        new = sorted(f"{key.kind} {key.name}" for key in keys if key not in self._in_graph)
        old = sorted(f"{key.kind} {key.name}" for key in keys if key in self._in_graph)
        parts = [f"{listed(new)}: what they govern is denied"] if new else []
        parts += [f"{listed(old)}: their earlier versions stay in force"] if old else []
        whose = f"of namespace {namespace}" if namespace else "without a namespace"
        limits = " and ".join(f"{one.name}, {one.limit // _MIB} MiB" for one in self._limits)
        said = f"{len(keys)} policies {whose} wait for memory ({'; '.join(parts)})"
        return f"{said}; there is {limits}, of which {USABLE:.0%} may be used" if limits else said


def _stand_in(key: ResourceKey, one: PolicyRecord | Undecoded | Unread) -> FedChange:
    if isinstance(one, PolicyRecord):
        return stand_in_of(one)
    return one.stand_in if isinstance(one, Unread) else read_stand_in(key, one.item.value)
