"""PURE: the connections that are followed until they end, at most so many.

Rule: the oldest goes first, but while one end has more than half of them, its own beyond that: a workload that opens
connections without end costs itself their ends, and nobody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

from cni_calico.flows.by_age import NumbersByAge
from cni_calico.flows.packets import V4_BYTES


class LastingConnections:
    """The number of a record by the key of its connection."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._within, self._beyond = NumbersByAge(), NumbersByAge()  # the others: of ends that had their half already
        self._counts: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._within) + len(self._beyond)

    def __contains__(self, key: bytes) -> bool:
        return key in self._within or key in self._beyond

    @property
    def is_full(self) -> bool:
        return len(self) >= self._most

    def limit(self, most: int) -> int:
        """From now on; returns how many had to go."""
        self._most, too_many = most, max(0, len(self) - most)
        if too_many and not self._beyond:
            self._count_all_out(self._within.take_oldest(too_many))
        else:
            for _ in range(too_many):
                self._drop_one()
        return too_many

    def has_before(self, number: int) -> bool:
        """Whether one has this number or an earlier one."""
        firsts = (kept.first_number() for kept in (self._within, self._beyond))
        return any(first is not None and first <= number for first in firsts)

    def get(self, key: bytes) -> int | None:
        found = self._within.get(key)
        return self._beyond.get(key) if found is None else found

    def numbers_of(self, keys: Sequence[bytes]) -> list[int | None]:
        """Of each; None also for those of ends that have too many."""
        return self._within.numbers_of(keys)

    def add(self, key: bytes, number: int, owner: bytes) -> bool:
        """One that is not there. ``owner``: whose share it is, b"" for nobody's. Returns whether another one had to
        go.
        """
        count = 0
        if owner:
            count = self._counts[owner] = self._counts.get(owner, 0) + 1
        (self._beyond if 2 * count > self._most else self._within).put(key, number)
        if len(self._within) + len(self._beyond) <= self._most:
            return False
        self._drop_one()
        return True

    def add_all(self, keys: Sequence[bytes], first: int, shares: Iterable[tuple[bytes, int]]) -> int:
        """Some that are not there, with numbers from ``first`` on. ``shares``: how many are of each owner, as for
        ``add``. Returns how many others had to go.
        """
        of_owners = Counter[bytes]()
        for owner, times in shares:
            if owner:
                of_owners[owner] += times
        counts, most = self._counts, self._most
        totals = {owner: counts.get(owner, 0) + times for owner, times in of_owners.items()}
        if any(2 * total > most for total in totals.values()):
            owners = [owner if (owner := owner_of(key)) in totals else b"" for key in keys]
            return sum(map(self.add, keys, range(first, first + len(keys)), owners))
        counts.update(totals)
        self._within.put_all(keys, first)
        return self.limit(most)

    def known_among(self, keys: AbstractSet[bytes]) -> set[bytes]:
        within = self._within.among(keys)
        return within | self._beyond.among(keys) if self._beyond else within

    def _drop_one(self) -> None:
        first = (self._within or self._beyond).first()
        if not self._beyond:
            self.pop(first)
            return
        beyond = self._beyond.first()
        if owner_of(first) != owner_of(beyond):
            self.pop(beyond)
            return
        self.pop(first)
        number = self._beyond.pop(beyond)
        if number is not None:
            self._within.put(beyond, number)  # its place is free

    def pop(self, key: bytes) -> int | None:
        number = self._within.pop(key)
        if number is None:
            number = self._beyond.pop(key)
        if number is not None:
            self._count_out(owner_of(key))
        return number

    def pop_all(self, keys: Collection[bytes]) -> None:
        """Of those for which ``numbers_of`` has a number."""
        self._within.pop_all(keys)
        self._count_all_out(keys)

    def _count_all_out(self, keys: Iterable[bytes]) -> None:
        for owner, times in Counter(map(owner_of, keys)).items():
            self._count_out(owner, times)

    def _count_out(self, owner: bytes, times: int = 1) -> None:
        """Approximate where an end got its name later than its first connection."""
        count = self._counts.get(owner)
        if count is not None:
            if count > times:
                self._counts[owner] = count - times
            else:
                del self._counts[owner]

    def everything(self) -> set[bytes]:
        """The keys."""
        return {*self._within, *self._beyond}


def owner_of(key: bytes) -> bytes:
    """Who has begun a connection: the source's address."""
    return key[:4] if len(key) == V4_BYTES else key[:16]
