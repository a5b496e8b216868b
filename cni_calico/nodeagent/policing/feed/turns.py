"""What the engine takes into its next round: everything until policies are in force, then by the shares of namespaces.

Rule: no change takes long in the engine's thread. A text that was put aside is read in the turn in which its change is
begun; one that waits behind a newer one never is. A large change is decoded, and what it needs is made ahead of it, in
slices of SLICE_S; between two of them the other shares have their turns, and its own share pays for the processor time
of its slices: a transaction of nf_tables is work of the thread that sends it, a program that it waited for counts too,
and what other processes' load makes either wait is nobody's cost. It is taken into a round when nothing is left to do
ahead. A version that has been begun is finished although a newer one waits behind it, unless that one removes the
record or is taken together with others. Whether there is memory for a change is asked once, before it is begun
(memory.py). While anything waits, garbage collections pass over what is there: otherwise they, too, take seconds.

What the first round does not take (starting.py) has a stand-in until it has had its turn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cni_calico.kernel.memory import collect_all, end_sparing, spare_collections
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.policing.feed.ahead import MadeAhead
from cni_calico.nodeagent.policing.feed.changes import (
    FedChange,
    FedRecord,
    PutAside,
    Refusal,
    Undecoded,
    Unread,
    joined,
    read_stand_in,
)
from cni_calico.nodeagent.policing.feed.memory import MemoryGuard
from cni_calico.nodeagent.policing.feed.records import RecordFeed
from cni_calico.nodeagent.policing.feed.shares import Shares, Taken
from cni_calico.nodeagent.policing.feed.starting import NamesChains, describe_later, select_later
from cni_calico.nodeagent.policing.feed.weights import weigh_change
from cni_calico.policy.records import POLICY_KINDS
from cni_calico.policy.sets import NETWORK_SET
from cni_calico.survived import tell_survived

SLICE_S = 0.02
_SPARED_S = 300.0  # so long at most garbage collections skip what is alive
_ADMITTED = (*POLICY_KINDS, NETWORK_SET)  # kinds of which memory may not have room for a record
LONG = 300  # from this weight on a change is taken in slices


def _weigh(change: FedChange) -> int:
    if isinstance(change, Refusal):
        return 1 + sum(map(_weigh, change.first))  # they are decoded and taken with it
    return change.weight if isinstance(change, PutAside | Undecoded) else weigh_change(change)


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Begun:
    """A change that is being made ready. ``record``: once it is decoded."""

    change: FedChange
    steps: Iterator[bool]
    record: FedRecord = None


class Turns:
    """For the engine's thread. True while something waits."""

    def __init__(self, memory: MemoryGuard | None = None, slice_s: float = SLICE_S) -> None:
        self._memory = memory
        self._shares: Shares[FedChange] = Shares(joined, _weigh, lambda change: isinstance(change, WorkloadEndpoint))
        self._begun_at = (0.0, 0.0)
        self._spared_since: float | None = None
        self._slice_s = slice_s
        self._begun: dict[ResourceKey, _Begun] = {}
        self._ended: list[_Begun] = []
        self._starting = True  # until policies are in force, or are not to be
        self._large: dict[ResourceKey, Undecoded] = {}  # what the start has not decided on
        self._later: dict[ResourceKey, Undecoded] = {}  # what the start has given stand-ins
        self._denied: set[ResourceKey] = set()  # of these, what has not been taken in since

    def __bool__(self) -> bool:
        return bool(self._shares) or bool(self._ended)

    def problems(self) -> tuple[str, ...]:
        """A sentence for each namespace whose policies have stand-ins since the start."""
        return describe_later(self._denied)

    def take(
        self,
        feed: RecordFeed,
        ahead: MadeAhead,
        *,
        everything: bool,
        starting: bool = False,
        synced: bool = True,
        chains: NamesChains = frozenset,
    ) -> Taken[FedRecord]:
        """``everything``: nothing is in force yet, and nothing will be before all is taken in. ``ahead`` may have made
        a part of what a change needs even if none is taken.

        ``starting``: whether policies are to be enforced is not decided yet, or they are and nothing is in force.
        ``synced``: what was read until now is complete. ``chains``: those in the kernel.
        """
        self._begun_at = _clocks()
        self._end(ahead)
        changes, since = feed.take()
        if self._starting:
            changes = {key: feed.read(key, change) for key, change in changes.items()}
            changes = self._start(changes, since, starting=starting, synced=synced, chains=chains)
        if everything and not self._shares:
            found: Taken[FedChange] = Taken(changes, since, {})
        else:
            for key, change in changes.items():
                self._shares.put(key, change, since)
            found = self._shares.take_all() if everything else self._shares.take()
        is_alone = not everything and len(found.changes) == 1
        for key, change in found.changes.items() if is_alone else ():
            if key in self._begun and change is not None:
                return self._slice(key, change, found, feed, ahead)
        found = replace(found, changes={key: feed.read(key, change) for key, change in found.changes.items()})
        found = replace(found, changes=self._admitted(found.changes))
        for key, change in found.changes.items() if is_alone else ():
            if _weigh(change) >= LONG:
                return self._slice(key, change, found, feed, ahead)
        decoded: dict[ResourceKey, FedRecord] = {key: feed.decoded(key, one) for key, one in found.changes.items()}
        return self._taken(Taken(decoded, found.since, found.weights))

    def _admitted(self, changes: dict[ResourceKey, FedChange]) -> dict[ResourceKey, FedChange]:
        """What there is memory for, or what stands for it. What was begun is given up: it, or a newer version, is taken
        whole; it has been admitted, but a newer version has not.
        """
        if self._memory is not None and not self._begun:
            self._memory.begin()
        begun = {key: self._begun[key].change for key in self._begun.keys() & changes.keys()}
        for key in begun:
            self._ended.append(self._begun.pop(key))
        if self._memory is None:
            return changes
        found: dict[ResourceKey, FedChange] = {}
        for key, change in changes.items():
            if key.kind not in _ADMITTED:
                found[key] = change
                continue
            if key in self._later:
                self._memory.stand_in(key)
                found[key] = change
                continue
            if key in begun and change is begun[key]:
                found[key] = change
                continue
            if key in begun:
                self._memory.withdraw(key)
            found.update((key, one) for one in self._memory.admit(key, change))
        return found

    def _start(
        self, changes: dict[ResourceKey, FedChange], since: float, *, starting: bool, synced: bool, chains: NamesChains
    ) -> dict[ResourceKey, FedChange]:
        """What of it is to be taken now: what is large once all has been read, or a stand-in for it."""
        if not starting:
            self._starting = False
            for key, large in (self._large | self._later).items():
                self._shares.put(key, large, since)
            self._large, self._later = {}, {}
            return changes
        found: dict[ResourceKey, FedChange] = {}
        for key, change in changes.items():
            before = self._large.pop(key, None) or self._later.pop(key, None)
            self._denied.discard(key)
            if isinstance(change, Undecoded):
                self._large[key] = change
            else:
                found[key] = change if before is None else joined(before, change)
        if not synced:
            return found
        later = select_later(self._large, chains)
        for key, one in self._large.items():
            found[key] = read_stand_in(key, one.item.value) if key in later else one
        self._large = {}
        self._later.update(later)
        self._denied |= later.keys()
        return found

    def _taken(self, taken: Taken[FedRecord]) -> Taken[FedRecord]:
        if not self._starting:
            self._denied.difference_update(taken.changes)
        if self._memory is not None:
            self._memory.note(taken.changes)
        return taken

    def charge(self, taken: Taken[FedRecord]) -> None:
        """At the end of the round."""
        if taken.weights:
            (wall, cpu), (wall_before, cpu_before) = _clocks(), self._begun_at
            self._shares.charge(taken.weights, min(wall - wall_before, cpu - cpu_before))
        self._spare_collections()

    def _spare_collections(self) -> None:
        now = time.monotonic()
        if self:
            if self._spared_since is None:
                self._spared_since = now
            elif now - self._spared_since >= _SPARED_S:
                collect_all()
                self._spared_since = now
            spare_collections()
        elif self._spared_since is not None:
            self._spared_since = None
            end_sparing()

    # -- in slices ----------------------------------------------------------------------------------------------------

    def _slice(
        self, key: ResourceKey, change: FedChange, found: Taken[FedChange], feed: RecordFeed, ahead: MadeAhead
    ) -> Taken[FedRecord]:
        begun = self._begun.get(key)
        if begun is None:
            begun = self._begun[key] = _Begun(change, iter(()))
            begun.steps = _making(begun, key, feed, ahead)
        is_ready = self._advance(begun)
        self._shares.pay_by_time(found)
        if is_ready and isinstance(change, Refusal):  # of the versions before it, this one is taken now
            done = begun.change.first if isinstance(begun.change, Refusal) else (begun.change,)
            left = tuple(one for one in change.first if not any(one is taken for taken in done))
            found = replace(found, changes={key: replace(change, first=left)})
        if not is_ready or change is not begun.change:
            self._shares.give_back(found)
        by_time = dict.fromkeys(found.weights, 1)
        if not is_ready:
            return Taken({}, found.since, by_time)
        self._ended.append(self._begun.pop(key))
        return self._taken(Taken({key: begun.record}, found.since, by_time))

    def _advance(self, begun: _Begun) -> bool:
        """Returns whether nothing is left to do ahead. What the turn has done before, such as reading, counts."""
        end = self._begun_at[1] + self._slice_s  # on a busy machine a slice is as much work as on a quiet one
        return not any(after_round or _clocks()[1] >= end for after_round in begun.steps)

    def _end(self, ahead: MadeAhead) -> None:
        """What was taken in, or given up, needs nothing made ahead any more."""
        ended, self._ended = self._ended, []
        for begun in ended:
            begun.steps = iter(())  # it refers to what is begun, too
            ahead.end(_valid(begun.record))


def _clocks() -> tuple[float, float]:
    """Seconds that have passed, and those of the processor that this thread has had, and ended programs."""
    times = os.times()
    return time.monotonic(), time.thread_time() + times.children_user + times.children_system


def _valid(record: FedRecord) -> FedRecord:
    """What is to be in force: of a refusal the version before it, if that is taken with it."""
    if not isinstance(record, Refusal) or not record.first:
        return record
    valid = record.first[-1]
    assert not isinstance(valid, PutAside | Undecoded | Unread)  # decoded with the refusal
    return valid


def _making(begun: _Begun, key: ResourceKey, feed: RecordFeed, ahead: MadeAhead) -> Iterator[bool]:
    decoding = feed.decoding(key, begun.change)
    while True:
        try:
            next(decoding)
        except StopIteration as e:
            begun.record = e.value
            break
        yield False
    try:
        yield from ahead.steps(key, _valid(begun.record))
    except Exception as e:  # it is taken whole then, and the graph says what is wrong with it
        tell_survived(e)
