"""PURE: where the attributes of netlink messages are, remembered for each length of message.

Rule: a remembered layout counts for a message only if every attribute's header is the same there; else the message is
taken apart, and its layout is remembered instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from struct import Struct
from typing import NamedTuple

_WORD = Struct("=HH")
_MOST = 64  # lengths that are remembered
_DEEPEST = 4
_ABSENT = 0, 0

AttributePath = tuple[int, ...]  # the kinds of attributes, each inside the one before


class AttributePlaces(NamedTuple):
    """``places``: begin and end of each wanted attribute's content, from the message's begin; 0 and 0 for none."""

    headers: tuple[int, ...]
    shape: Struct
    places: tuple[tuple[int, int], ...]


class Layouts:
    """Of one kind of message. ``start``: where the first attribute begins; ``wanted``: what is looked for; ``nested``:
    attributes that hold others; ``slow``: how many messages were taken apart.
    """

    def __init__(
        self, start: int, wanted: Sequence[AttributePath], nested: AbstractSet[AttributePath] = frozenset()
    ) -> None:
        self.slow = 0
        self._start, self._wanted, self._nested = start, tuple(wanted), nested
        self._known: dict[int, AttributePlaces] = {}

    def places(self, data: bytes, at: int, size: int) -> tuple[tuple[int, int], ...]:
        """Of what is wanted, in that order, in the message of ``size`` bytes that begins there. Raises ValueError if it
        is none.
        """
        known = self._known.get(size)
        if known is not None and known.shape.unpack_from(data, at) == known.headers:
            return known.places
        self.slow += 1
        headers: list[int] = []
        places: dict[AttributePath, tuple[int, int]] = {}
        shape = f"={self._start}x" + self._walk(data, at, self._start, size, (), headers, places)
        if len(self._known) >= _MOST:
            self._known.clear()
        found = tuple(places.get(path, _ABSENT) for path in self._wanted)
        self._known[size] = AttributePlaces(tuple(headers), Struct(shape), found)
        return found

    def _walk(
        self,
        data: bytes,
        base: int,
        at: int,
        end: int,
        path: AttributePath,
        headers: list[int],
        places: dict[AttributePath, tuple[int, int]],
    ) -> str:
        """The shape, as struct writes it, of the attributes from ``at`` to ``end``."""
        shape = ""
        while at + 4 <= end:
            size, kind = _WORD.unpack_from(data, base + at)
            if size < 4 or at + size > end or len(path) >= _DEEPEST:
                raise ValueError("an attribute is longer than what it is in")
            here = (*path, kind & 0x3FFF)
            places[here] = at + 4, at + size
            headers += (size, kind)
            padded = min(size + 3 & ~3, end - at)
            if here in self._nested:
                shape += "HH" + self._walk(data, base, at + 4, at + size, here, headers, places)
                shape += f"{padded - size}x" if padded > size else ""
            else:
                shape += f"HH{padded - 4}x"
            at += padded
        return shape + (f"{end - at}x" if end > at else "")
