"""PURE: which record is of a connection that was denied and may be tried again, and when it was last denied.

Rule: there may be as many as connections that last, so each is one number beside its key: that of the record, and the
second in its last bits. What has let one through since is kept apart, because few are read in that order.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import takewhile

from cni_calico.flows.by_age import NumbersByAge
from cni_calico.flows.outcomes import NOBODY, DecidedSides

_BITS = 32
_SECOND = (1 << _BITS) - 1
_SECOND_US = 1_000_000


class DeniedAttempts:
    """By key. ``now``, ``since``: microseconds since 1970, which never go back."""

    def __init__(self) -> None:
        self._kept = NumbersByAge()
        self._let_through: dict[bytes, DecidedSides] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._kept

    def get(self, key: bytes) -> int | None:
        """The number of the record."""
        found = self._kept.get(key)
        return None if found is None else found >> _BITS

    def pop(self, key: bytes) -> int | None:
        """The number of the record."""
        found = self._kept.pop(key)
        self._let_through.pop(key, None)
        return None if found is None else found >> _BITS

    def put(self, key: bytes, record: int, now: int) -> None:
        """One that is not there."""
        self._kept.put(key, record << _BITS | now // _SECOND_US)

    def let_through(self, key: bytes, decided: DecidedSides) -> None:
        """One that is there is tried again, and these have not denied it."""
        self._let_through[key] = decided

    def let_through_by(self, key: bytes) -> DecidedSides:
        """Since it was last denied."""
        return self._let_through.get(key, NOBODY)

    def limit(self, most: int) -> None:
        """The oldest go."""
        too_many = len(self._kept) - most
        if too_many > 0:
            self._take_oldest(too_many)

    def among(self, keys: AbstractSet[bytes]) -> set[bytes]:
        return self._kept.among(keys)

    def newest_first(self, since: int) -> Iterator[tuple[bytes, int]]:
        """(key, record) of those that were last denied since then, or within the second before."""
        first = since // _SECOND_US
        for key, kept in takewhile(lambda one: one[1] & _SECOND >= first, self._kept.newest_first()):
            yield key, kept >> _BITS

    def forget(self, before: int) -> None:
        """Those that were last denied in an earlier second than that."""
        first, count = before // _SECOND_US, 0
        for kept in self._kept.numbers():
            if kept & _SECOND >= first:
                break
            count += 1
        self._take_oldest(count)

    def _take_oldest(self, count: int) -> None:
        taken = self._kept.take_oldest(count)
        if self._let_through:
            for key in taken:
                self._let_through.pop(key, None)

    def clear(self) -> None:
        self._kept.clear()
        self._let_through.clear()
