"""PURE: the attributes of netlink messages, by a layout that is remembered for each length of message.

Rule: a remembered layout counts for a message only if every attribute's header is the same there; else the message is
taken apart, and its layout is remembered instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

_WORD = Struct("=HH")
_MOST = 64  # lengths that are remembered
_DEEPEST = 4
_ALL = 1 << 20
_HEAD = 6  # bytes of a message's own header: its length and kind

AttributePath = tuple[int, ...]  # the kinds of attributes, each inside the one before


class AttributeLayout(NamedTuple):
    """``shape`` has all headers, those of neighbours as one, and what is wanted; ``of_headers`` and ``of_wanted`` pick
    them out of that.
    """

    headers: tuple[bytes, ...]
    shape: Struct
    of_headers: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]
    of_wanted: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]


class Layouts:
    """Of one kind of message, each in a place of its own of ``place`` bytes, or, if that is 0, one after the other.
    ``start``: where the first attribute begins; ``wanted``: what is looked for, at least two attributes without others
    inside; ``nested``: attributes that hold others; ``slow``: how many messages were taken apart.
    """

    def __init__(
        self,
        start: int,
        wanted: Sequence[AttributePath],
        nested: AbstractSet[AttributePath] = frozenset(),
        place: int = 0,
    ) -> None:
        self.slow = 0
        self._start, self._wanted, self._nested, self._place = start, tuple(wanted), nested, place
        self._known: dict[int, AttributeLayout] = {}

    def run(self, data: bytes | bytearray, at: int, size: int, most: int = _ALL) -> list[tuple[bytes, ...]]:
        """The contents of what is wanted, in that order, b"" for what is not there: of the message of ``size`` bytes
        that begins there, and of those after it, so many at most, as far as they look the same. Raises ValueError if it
        is none.
        """
        known = self._known.get(size)
        if known is None:
            return [self._take_apart(data, at, size)]
        headers, shape, of_headers, of_wanted = known
        count = min(most, (len(data) - at) // shape.size)
        found: list[tuple[bytes, ...]] = []
        for one in shape.iter_unpack(memoryview(data)[at : at + count * shape.size]):
            if of_headers(one) != headers:
                break
            found.append(of_wanted(one))
        return found or [self._take_apart(data, at, size)]

    def _take_apart(self, data: bytes | bytearray, at: int, size: int) -> tuple[bytes, ...]:
        self.slow += 1
        walk = _Walk(self._wanted, self._nested)
        walk.over(data, at, self._start, size, ())
        walk.end()
        if not walk.of_headers:
            raise ValueError("it has no attributes")
        rest = max(0, (self._place or size + 3 & ~3) - size)
        shape = Struct(f"={_HEAD}s{self._start - _HEAD}x{''.join(walk.shape)}0s{rest}x")
        absent = walk.fields  # the last field is always empty
        of_headers = itemgetter(0, *walk.of_headers)
        of_wanted = itemgetter(*(walk.of_wanted.get(path, absent) for path in self._wanted))
        found = shape.unpack(data[at : at + size].ljust(shape.size, b"\0"))
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[size] = AttributeLayout(of_headers(found), shape, of_headers, of_wanted)
        wanted: tuple[bytes, ...] = of_wanted(found)
        return wanted


class _Walk:
    """Through the attributes of a message. ``shape``: as struct writes it; ``fields``: how many it has so far;
    ``of_headers``, ``of_wanted``: which of them.
    """

    def __init__(self, wanted: Sequence[AttributePath], nested: AbstractSet[AttributePath]) -> None:
        self._wanted, self._nested = wanted, nested
        self.shape: list[str] = []
        self.of_headers: list[int] = []
        self.of_wanted: dict[AttributePath, int] = {}
        self.fields = 1  # the message's own header
        self._headers = self._skipped = 0  # bytes of headers, or of what is not looked at, that are in no field yet

    def over(self, data: bytes | bytearray, base: int, at: int, end: int, path: AttributePath) -> None:
        """From ``at`` to ``end``, both from ``base`` on. Raises ValueError."""
        while at + 4 <= end:
            size, kind = _WORD.unpack_from(data, base + at)
            if size < 4 or at + size > end or len(path) >= _DEEPEST:
                raise ValueError("an attribute is longer than what it is in")
            here = (*path, kind & 0x3FFF)
            if self._skipped:
                self.end()
            self._headers += 4
            if here in self._nested:
                self.over(data, base, at + 4, at + size, here)
            elif here in self._wanted:
                self.end()
                self.shape.append(f"{size - 4}s")
                self.of_wanted[here] = self.fields
                self.fields += 1
            else:
                self._skipped += size - 4
            padded = min(size + 3 & ~3, end - at)
            self._skipped += padded - size
            at += padded
        self._skipped += end - at

    def end(self) -> None:
        """Have fields for what was passed."""
        if self._headers:
            self.shape.append(f"{self._headers}s")
            self.of_headers.append(self.fields)
            self.fields += 1
        if self._skipped:
            self.shape.append(f"{self._skipped}x")
        self._headers = self._skipped = 0
