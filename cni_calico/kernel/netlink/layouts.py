"""PURE: the attributes of netlink messages, by a layout that is remembered for each length of message.

Rule: a remembered layout counts for a message only if every attribute's header is the same there; else the message is
taken apart, and its layout is remembered instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

_WORD = Struct("=HH")
_MOST = 64  # lengths that are remembered
_DEEPEST = 4

AttributePath = tuple[int, ...]  # the kinds of attributes, each inside the one before


class AttributeLayout(NamedTuple):
    """``shape`` has all headers, and what is wanted; ``of_headers`` and ``of_wanted`` pick them out of that."""

    headers: tuple[int, ...]
    shape: Struct
    of_headers: Callable[[tuple[Any, ...]], tuple[int, ...]]
    of_wanted: Callable[[tuple[Any, ...]], tuple[bytes, ...]]


class Layouts:
    """Of one kind of message. ``start``: where the first attribute begins; ``wanted``: what is looked for, at least two
    attributes without others inside; ``nested``: attributes that hold others; ``slow``: how many messages were taken
    apart.
    """

    def __init__(
        self, start: int, wanted: Sequence[AttributePath], nested: AbstractSet[AttributePath] = frozenset()
    ) -> None:
        self.slow = 0
        self._start, self._wanted, self._nested = start, tuple(wanted), nested
        self._known: dict[int, AttributeLayout] = {}

    def values(self, data: bytes, at: int, size: int) -> tuple[bytes, ...]:
        """The contents of what is wanted, in that order, b"" for what is not there, of the message of ``size`` bytes
        that begins there. Raises ValueError if it is none.
        """
        known = self._known.get(size)
        if known is not None:
            found = known.shape.unpack_from(data, at)
            if known.of_headers(found) == known.headers:
                return known.of_wanted(found)
        self.slow += 1
        walk = _Walk(self._wanted, self._nested)
        walk.over(data, at, self._start, size, ())
        if len(walk.of_headers) < 2:
            raise ValueError("it has no attributes")
        shape = Struct(f"={self._start}x{''.join(walk.shape)}0s")
        absent = walk.fields  # the last field is always empty
        of_wanted = itemgetter(*(walk.of_wanted.get(path, absent) for path in self._wanted))
        layout = AttributeLayout(tuple(walk.headers), shape, itemgetter(*walk.of_headers), of_wanted)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[size] = layout
        return layout.of_wanted(shape.unpack_from(data, at))


class _Walk:
    """Through the attributes of a message. ``shape``: as struct writes it; ``fields``: how many it has so far;
    ``of_headers``, ``of_wanted``: which of them.
    """

    def __init__(self, wanted: Sequence[AttributePath], nested: AbstractSet[AttributePath]) -> None:
        self._wanted, self._nested = wanted, nested
        self.shape: list[str] = []
        self.headers: list[int] = []
        self.of_headers: list[int] = []
        self.of_wanted: dict[AttributePath, int] = {}
        self.fields = 0

    def over(self, data: bytes, base: int, at: int, end: int, path: AttributePath) -> None:
        """From ``at`` to ``end``, both from ``base`` on. Raises ValueError."""
        while at + 4 <= end:
            size, kind = _WORD.unpack_from(data, base + at)
            if size < 4 or at + size > end or len(path) >= _DEEPEST:
                raise ValueError("an attribute is longer than what it is in")
            here = (*path, kind & 0x3FFF)
            self.shape.append("HH")
            self.headers += (size, kind)
            self.of_headers += (self.fields, self.fields + 1)
            self.fields += 2
            if here in self._nested:
                self.over(data, base, at + 4, at + size, here)
            elif here in self._wanted:
                self.shape.append(f"{size - 4}s")
                self.of_wanted[here] = self.fields
                self.fields += 1
            else:
                self.shape.append(f"{size - 4}x")
            padded = min(size + 3 & ~3, end - at)
            self.shape.append(f"{padded - size}x")
            at += padded
        self.shape.append(f"{end - at}x")
