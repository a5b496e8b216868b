"""PURE: connections whose addresses and ports are used again before their end was read.

Rule: decisions are read before ends, so the end of a connection may come after the begin of the next one with the same
key. Ends come in the order of the connections: each is for the oldest that has none. What was decided about a key twice
at once is one connection with two first packets, until a second end tells that it was two.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import islice, takewhile

from cni_calico.flows.oldest import OldestKeys

_MOST, _MOST_REPEATS = 10_000, 8


class ReusedKeys:
    """Times are microseconds since 1970."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[tuple[int, int]]] = {}  # for their ends: (record, since when), the oldest first
        self._repeats: dict[bytes, tuple[list[int], int]] = {}  # numbers that decided again, and when the last did
        self._oldest_repeats = OldestKeys(self._repeats)

    def wait_for_end(self, key: bytes, record: int, now: int) -> None:
        """A younger connection has the key now."""
        self._waiting.setdefault(key, []).append((record, now))

    def waiting_among(self, keys: Iterable[bytes]) -> set[bytes]:
        return self._waiting.keys() & keys if self._waiting else set()

    @property
    def has_repeats(self) -> bool:
        return bool(self._repeats)

    def take_waiting(self, key: bytes) -> int | None:
        """The oldest record that waits for an end of this key."""
        if not self._waiting:
            return None
        waiting = self._waiting.get(key)
        if waiting is None:
            return None
        record = waiting.pop(0)[0]
        if not waiting:
            del self._waiting[key]
        return record

    def take_overdue(self, before: int) -> list[int]:
        """The records that have waited since an earlier time, or that are too many: their ends were lost."""
        overdue = []
        keys = [*takewhile(lambda key: self._waiting[key][0][1] < before, self._waiting)]
        keys += islice(self._waiting, len(keys), max(len(keys), len(self._waiting) - _MOST))
        for key in keys:
            overdue += [record for record, _ in self._waiting.pop(key)]
        return overdue

    def note_repeat(self, key: bytes, number: int, now: int) -> None:
        """Of the newest only so many are kept."""
        numbers = self._repeats.pop(key, ([], 0))[0]
        self._repeats[key] = [*numbers, number][-_MOST_REPEATS:], now
        if len(self._repeats) > _MOST:
            del self._repeats[self._oldest_repeats.first()]

    def repeated_among(self, keys: AbstractSet[bytes]) -> set[bytes]:
        return keys & self._repeats.keys()

    def forget_repeats(self, key: bytes) -> None:
        self._repeats.pop(key, None)

    def take_repeats(self, key: bytes, began: int) -> list[int]:
        """The numbers that decided about one more connection, which began then; none if there was none."""
        numbers, now = self._repeats.pop(key, ([], 0))
        if not began or began > now:
            return []
        taken: list[int] = []
        for number in numbers:
            if number in taken:
                break
            taken.append(number)
        rest = numbers[len(taken) :]
        if rest:
            self._repeats[key] = rest, now
        return taken
