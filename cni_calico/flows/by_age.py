"""PURE: a number for each of many keys, in the order in which they came, in no more memory than they need.

Rule: a dict never shrinks, grows to three times what is left in it, and has both tables meanwhile: where keys come and
go all the time that is up to four times what they need. So they are in several dicts, the oldest first, of which each
takes so many keys once, and none after that. One that is empty goes as a whole, and neighbours that have become small
are put together, so that there are few to look into.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from cni_calico.flows.oldest import OldestKeys

_PART = (2 << 17) // 3  # keys that fit into a table of 2^17 places, 30 bytes each; more parts are looked into longer


class NumbersByAge:
    """As a dict, where what is put last is the youngest; a key that is there has to be taken out before."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._first = dict[bytes, int]()
        self._parts = [self._first]  # the oldest first
        self._room = _PART  # keys that the last one still takes
        self._oldest = OldestKeys(self._first)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __contains__(self, key: bytes) -> bool:
        return any(key in part for part in self._parts)

    def __iter__(self) -> Iterator[bytes]:
        """The keys."""
        for part in self._parts:
            yield from part

    def get(self, key: bytes) -> int | None:
        for part in self._parts:
            if key in part:
                return part[key]
        return None

    def numbers_of(self, keys: Sequence[bytes]) -> list[int | None]:
        """Of each."""
        first, *others = self._parts
        found = [*map(first.get, keys)]
        for part in others:
            if None not in found:
                break
            found = [part.get(key) if number is None else number for key, number in zip(keys, found, strict=True)]
        return found

    def among(self, keys: AbstractSet[bytes]) -> set[bytes]:
        """Those that are there."""
        found = set[bytes]()
        for part in self._parts:
            found |= part.keys() & keys
        return found

    def put(self, key: bytes, number: int) -> None:
        if not self._room:
            self._begin_part()
        self._room -= 1
        self._parts[-1][key] = number

    def put_all(self, keys: Sequence[bytes], first: int) -> None:
        """With numbers from ``first`` on."""
        at = 0
        while at < len(keys):
            if not self._room:
                self._begin_part()
            those = keys[at : at + self._room]
            self._room -= len(those)
            self._parts[-1].update(zip(those, range(first + at, first + at + len(those)), strict=True))
            at += len(those)

    def pop(self, key: bytes) -> int | None:
        for part in self._parts:
            if key in part:
                number = part.pop(key)
                if not part:
                    self._forget_empty()
                return number
        return None

    def pop_all(self, keys: Collection[bytes]) -> None:
        """Of those that are there."""
        left: Iterable[bytes] = keys
        for part in self._parts:
            others = []
            for key in left:
                if key in part:
                    del part[key]
                else:
                    others.append(key)
            left = others
        self._forget_empty()

    def first(self) -> bytes:
        """The oldest key. Raises StopIteration if there is none."""
        return self._oldest.first()

    def take_oldest(self, count: int) -> list[bytes]:
        """So many keys, or all there are: they are not there any more."""
        taken: list[bytes] = []
        while count > len(taken) and self:
            those = [*islice(self._first, count - len(taken))]
            if len(those) < len(self._first):
                for key in those:
                    del self._first[key]
            else:
                self._first.clear()
            taken += those
            self._forget_empty()
        return taken

    def first_number(self) -> int | None:
        """Of the oldest key, None if there is none."""
        return next(iter(self._first.values()), None)

    def numbers(self) -> Iterator[int]:
        """Of the oldest key first."""
        for part in self._parts:
            yield from part.values()

    def newest_first(self) -> Iterator[tuple[bytes, int]]:
        for part in reversed(self._parts):
            yield from reversed(part.items())

    def _begin_part(self) -> None:
        parts: list[dict[bytes, int]] = []
        for part in self._parts:
            if parts and len(parts[-1]) + len(part) <= _PART:
                parts[-1] = {**parts[-1], **part}
            else:
                parts.append(part)
        self._parts, self._room = [*parts, {}], _PART
        self._forget_empty()

    def _forget_empty(self) -> None:
        """The last one stays, because it takes what comes."""
        *others, last = self._parts
        self._parts = [part for part in others if part] + [last]
        if self._parts[0] is not self._first:
            self._first = self._parts[0]
            self._oldest = OldestKeys(self._first)
