"""PURE: whose changes are taken into the next round, so that one namespace's cost never delays another's for long.

Rule: each namespace has a share of its own, and what belongs to none of them has one together. Within a share changes
keep the order in which they came; of one record only the newest counts, at the place of its first. While little waits,
all of it is taken together. Otherwise the share goes first that will have cost least after it: small ones together, a
large one alone, and no more of it than ROUND_WEIGHT at once (a change that weighs more is calculated in slices:
turns.py; what is begun is finished before others as large are begun). A share that begins to wait starts at
the present cost, so it neither saves up its idle time nor has to wait for what others cost before. After each large one
the small ones that wait have a turn, whatever they have cost: a share that has waited long because its change is large
would otherwise hold them up until all of it is made.

A workload's endpoint waits for what came before it and concerns every namespace, because its status file says that
everything before it is in force.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cni_calico.model.keys import ResourceKey

FairChange = TypeVar("FairChange")
GLOBAL = ""
ROUND_WEIGHT = 500  # about as much as 50 policies of ten rules; a twentieth of a second
SMALL_WEIGHT = 100
WEIGHT_S = 0.0001  # what one unit costs, about
_NAMESPACE, _ACCOUNT = "kns.", "ksa."


def share_of(key: ResourceKey) -> str:
    """The namespace that a record belongs to; GLOBAL for none."""
    if key.kind == "Profile":
        if key.name.startswith(_NAMESPACE):
            return key.name[len(_NAMESPACE) :]
        if key.name.startswith(_ACCOUNT):
            return key.name[len(_ACCOUNT) :].partition(".")[0]
    return key.namespace or GLOBAL


@dataclass(slots=True)
class _QueuedChange(Generic[FairChange]):
    change: FairChange
    weight: int
    since: float
    number: int


@dataclass(slots=True, eq=False)
class _NamespaceShare(Generic[FairChange]):
    """``cost``: what it has cost so far, in units of weight. ``begun``: the change of which it has paid ``paid``."""

    cost: float
    begun: ResourceKey | None = None
    paid: float = 0.0
    waiting: dict[ResourceKey, _QueuedChange[FairChange]] = field(default_factory=dict)
    weight: int = 0

    def next_cost(self) -> float:
        """What it will have cost after its next round, or after all slices of its first change."""
        key, first = next(iter(self.waiting.items()))
        left = first.weight - (self.paid if key == self.begun else 0.0)
        return self.cost + min(self.weight, max(left, ROUND_WEIGHT))


@dataclass(frozen=True, slots=True)
class Taken(Generic[FairChange]):
    """What the next round takes in, and since when the first of it has waited. ``weights``: of each share. ``places``:
    in the queue.
    """

    changes: dict[ResourceKey, FairChange]
    since: float
    weights: dict[str, int]
    places: dict[ResourceKey, tuple[float, int]] = field(default_factory=dict)


class Shares(Generic[FairChange]):
    """``join(before, after)``: the change that stands for both, of one record. ``follows_all``: whether a change waits
    for what came before it and concerns every namespace.
    """

    def __init__(
        self,
        join: Callable[[FairChange, FairChange], FairChange],
        weigh: Callable[[FairChange], int],
        follows_all: Callable[[FairChange], bool],
    ) -> None:
        self._follows_all = follows_all
        self._join = join
        self._weigh = weigh
        self._shares: dict[
            str, _NamespaceShare[FairChange]
        ] = {}  # those that wait, and those that have cost more than ``_now``
        self._now = 0.0  # the cost at which a new share starts
        self._weight = 0
        self._was_large = False  # whether the last turn was that of a large share
        self._count = 0

    def __bool__(self) -> bool:
        return any(share.waiting for share in self._shares.values())

    def put(self, key: ResourceKey, change: FairChange, since: float) -> None:
        """``since``: when it came."""
        name = share_of(key)
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = _NamespaceShare(self._now)
        elif not share.waiting:
            share.cost = min(max(share.cost, self._now), self._now + ROUND_WEIGHT)  # it owes a round at most
        before = share.waiting.get(key)
        if before is not None:
            change = self._join(before.change, change)
            self._reweigh(share, -before.weight)
        weight = self._weigh(change)
        self._count += 1
        first = (before.since, before.number) if before is not None else (since, self._count)
        share.waiting[key] = _QueuedChange(change, weight, *first)
        self._reweigh(share, weight)

    def take(self) -> Taken[FairChange]:
        """At least one change, if any waits."""
        taken: Taken[FairChange]
        if self._weight <= ROUND_WEIGHT:
            taken = self.take_all()
        else:
            chosen = self._next()
            self._was_large = self._shares[chosen[0]].weight > SMALL_WEIGHT
            taken = self._joined([self._taken(name) for name in chosen])
        for name, weight in taken.weights.items():
            self._add_cost(name, weight, len(taken.weights))
        return taken

    def _add_cost(self, name: str, weight: float, taken: int) -> None:
        """Let the present cost grow as much as that of a share which gets an equal part."""
        if name in self._shares:
            self._shares[name].cost += weight
        self._now += weight / max(1, taken + sum(1 for share in self._shares.values() if share.waiting))

    def pay_by_time(self, taken: Taken[FairChange]) -> None:
        """``taken``, of one share, was not calculated in one round: the share does not pay for its weight, but only
        what ``charge`` says.
        """
        for name, weight in taken.weights.items():
            self._add_cost(name, -weight, len(taken.weights))

    def give_back(self, taken: Taken[FairChange]) -> None:
        """Let ``taken`` be the first that waits again; nothing was put since."""
        for key, change in taken.changes.items():
            share = self._shares[share_of(key)]
            one = _QueuedChange(change, self._weigh(change), *taken.places[key])
            share.waiting = {key: one, **share.waiting}
            if share.begun != key:
                share.begun, share.paid = key, 0.0
            self._reweigh(share, one.weight)

    def take_all(self) -> Taken[FairChange]:
        """Everything that waits, in the order in which it came."""
        everything = [(one.number, key, one) for share in self._shares.values() for key, one in share.waiting.items()]
        everything.sort(key=lambda found: found[0])
        weights = {name: share.weight for name, share in self._shares.items() if share.waiting}
        for share in self._shares.values():
            share.waiting.clear()
            share.weight = 0
        self._weight = 0
        since = min((one.since for _, _, one in everything), default=0.0)
        places = {key: (one.since, one.number) for _, key, one in everything}
        return Taken({key: one.change for _, key, one in everything}, since, weights, places)

    def charge(self, weights: dict[str, int], seconds: float) -> None:
        """What a round with these shares has really cost, if that is more than it weighed."""
        total = sum(weights.values())
        more = seconds / WEIGHT_S - total
        if more > 0 and total:
            for name, weight in weights.items():
                self._add_cost(name, more * weight / total, len(weights))
                share = self._shares.get(name)
                if share is not None and share.begun is not None and next(iter(share.waiting), None) == share.begun:
                    share.paid += more * weight / total
        if not self:
            self._now = max((share.cost for share in self._shares.values()), default=self._now)
        idle = [name for name, share in self._shares.items() if not share.waiting and share.cost <= self._now]
        for name in idle:
            del self._shares[name]

    def _reweigh(self, share: _NamespaceShare[FairChange], by: int) -> None:
        share.weight += by
        self._weight += by

    def _next(self) -> list[str]:
        """The shares to take from: the one that will have cost least, and if it is a small one all others like it
        that will have cost less than any large one; after a large one the small ones.
        """
        barrier = self._first_global()
        able = sorted(
            (share.next_cost(), next(iter(share.waiting.values())).number, name)
            for name, share in self._shares.items()
            if share.waiting and not self._waits(next(iter(share.waiting.values())), barrier)
        )
        small = [found for found in able if self._shares[found[2]].weight <= SMALL_WEIGHT]
        chosen: list[str] = []
        weight = 0
        for _, _, name in small if self._was_large and small else able:
            its = self._shares[name].weight
            if its > SMALL_WEIGHT or weight + its > ROUND_WEIGHT:
                return chosen or [name]
            chosen.append(name)
            weight += its
        return chosen

    def _first_global(self) -> float:
        """The number of the oldest change that concerns every namespace."""
        share = self._shares.get(GLOBAL)
        return min((one.number for one in share.waiting.values()), default=float("inf")) if share else float("inf")

    def _taken(self, name: str) -> Taken[FairChange]:
        share, barrier = self._shares[name], self._first_global()
        changes: dict[ResourceKey, FairChange] = {}
        places: dict[ResourceKey, tuple[float, int]] = {}
        weight, since = 0, float("inf")
        for key, one in tuple(share.waiting.items()):
            if changes and (weight + one.weight > ROUND_WEIGHT or self._waits(one, barrier)):
                break
            del share.waiting[key]
            changes[key], places[key] = one.change, (one.since, one.number)
            weight += one.weight
            since = min(since, one.since)
        self._reweigh(share, -weight)
        return Taken(changes, since, {name: weight}, places)

    @staticmethod
    def _joined(some: list[Taken[FairChange]]) -> Taken[FairChange]:
        changes = {key: change for one in some for key, change in one.changes.items()}
        weights = {name: weight for one in some for name, weight in one.weights.items()}
        places = {key: place for one in some for key, place in one.places.items()}
        return Taken(changes, min((one.since for one in some), default=0.0), weights, places)

    def _waits(self, one: _QueuedChange[FairChange], barrier: float) -> bool:
        """Whether a change has to wait for one that concerns every namespace."""
        return one.number > barrier and self._follows_all(one.change)
