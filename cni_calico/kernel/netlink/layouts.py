"""PURE: the attributes of netlink messages, by a layout that is remembered for each length of message.

Rule: a remembered layout counts for a message only if every attribute's header is the same there; else the message is
taken apart, and its layout is remembered instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from struct import Struct
from typing import Any

_WORD = Struct("=HH")
_MOST = 64  # lengths that are remembered
_DEEPEST = 4
_ALL = 1 << 20
_HEAD = 6  # bytes of a message's own header: its length and kind
_TOGETHER = 64  # messages, the headers of which are compared at once
_NUMBERS = {1: "B", 2: "H", 4: "I", 8: "Q"}  # by bytes

AttributePath = tuple[int, ...]  # the kinds of attributes, each inside the one before


class AttributeLayout:
    """Of messages that look like ``message``. ``shape`` has what is wanted, ``pick`` puts it in order, None if it is;
    ``mask`` has all bits of the headers.
    """

    __slots__ = ("_mask", "_masked", "_message", "pick", "shape")

    def __init__(
        self, message: bytes, mask: bytes, shape: Struct, pick: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None
    ) -> None:
        self._message, self._mask, self.shape, self.pick = message, mask, shape, pick
        self._masked: dict[int, tuple[int, int]] = {}  # by how many are compared: mask, and what there is under it

    def count(self, data: bytes | bytearray) -> int:
        """How many of these messages, one after the other, have the same headers, from the first on; maybe some less.
        A number of many bytes is compared faster than any other value.
        """
        step, most = len(self._message), len(data) // len(self._message)
        found = 0
        while found < most:
            together = min(_TOGETHER, 1 << (most - found).bit_length() - 1)
            mask, expected = self._masked.get(together) or self._mask_of(together)
            begin = found * step
            if int.from_bytes(data[begin : begin + together * step], "little") & mask == expected:
                found += together
            elif together == 1:
                break
            else:
                most = found + together // 2
        return found

    def _mask_of(self, together: int) -> tuple[int, int]:
        mask, message = (int.from_bytes(one * together, "little") for one in (self._mask, self._message))
        found = self._masked[together] = mask, message & mask
        return found


class Layouts:
    """Of one kind of message, each in a place of its own of ``place`` bytes, or, if that is 0, one after the other.
    ``start``: where the first attribute begins; ``wanted``: what is looked for, at least two attributes without others
    inside; ``nested``: attributes that hold others; ``numbers``: those of what is wanted that are numbers; ``usual``:
    so many of what is wanted are in nearly all messages; ``slow``: how many messages were taken apart.
    """

    def __init__(
        self,
        start: int,
        wanted: Sequence[AttributePath],
        nested: AbstractSet[AttributePath] = frozenset(),
        place: int = 0,
        *,
        numbers: AbstractSet[AttributePath] = frozenset(),
        usual: int = 0,
    ) -> None:
        self.slow = 0
        self._start, self._wanted, self._nested, self._place = start, tuple(wanted), nested, place
        self._numbers, self._usual = numbers, usual
        self._known: dict[int, AttributeLayout] = {}

    def run(self, data: bytes | bytearray, at: int, size: int, most: int = _ALL) -> list[tuple[Any, ...]]:
        """The contents of what is wanted, in that order, b"" for what is not there: of the message of ``size`` bytes
        that begins there, and of those after it, so many at most, as far as they look the same. Where they have what is
        usual in that order and nothing else, there is only that. Raises ValueError if it is none.
        """
        known = self._known.get(size)
        if known is None:
            return [self._take_apart(data, at, size)]
        step, place = size + 3 & ~3, self._place
        joined: bytes | bytearray
        if place:
            most = min(most, (len(data) - at) // place)
            joined = b"".join([data[begin : begin + size] for begin in range(at, at + most * place, place)])
            step = size
        else:
            most = min(most, (len(data) - at) // step)
            for begin in (at, at + 1):  # as far as they have the same length
                column = data[begin : begin + most * step : step]
                most = len(column) - len(column.lstrip(column[:1]))
            joined = data[at : at + most * step]
        count = known.count(joined)
        if not count:
            return [self._take_apart(data, at, size)]
        found = known.shape.iter_unpack(joined if count == most else joined[: count * step])
        return [*found] if known.pick is None else [*map(known.pick, found)]

    def _take_apart(self, data: bytes | bytearray, at: int, size: int) -> tuple[Any, ...]:
        self.slow += 1
        walk = _Walk(self._wanted, self._nested, self._numbers, size if self._place else size + 3 & ~3)
        walk.over(data, at, self._start, size, ())
        if not walk.has_attributes:
            raise ValueError("it has no attributes")
        rest = f"{len(walk.mask) - walk.end}x"
        places = [walk.of_wanted.get(path) for path in self._wanted]
        is_usual = walk.fields == self._usual and places[: self._usual] == [*range(self._usual)]
        pick = None
        if not is_usual:
            absent, rest = walk.fields, f"0s{rest}"  # the last field is always empty
            pick = itemgetter(*(absent if place is None else place for place in places))
        shape = Struct(f">{''.join(walk.shape)}{rest}")
        message = bytes(data[at : at + size].ljust(shape.size, b"\0"))
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[size] = AttributeLayout(message, bytes(walk.mask), shape, pick)
        found = shape.unpack(message)
        wanted: tuple[Any, ...] = found if pick is None else pick(found)
        return wanted


class _Walk:
    """Through the attributes of a message. ``shape``: of what is wanted, as struct writes it, up to ``end``;
    ``fields``: how many it has so far; ``of_wanted``: which of them; ``mask``: of headers.
    """

    def __init__(
        self,
        wanted: Sequence[AttributePath],
        nested: AbstractSet[AttributePath],
        numbers: AbstractSet[AttributePath],
        room: int,
    ) -> None:
        self._wanted, self._nested, self._numbers = wanted, nested, numbers
        self.shape: list[str] = []
        self.of_wanted: dict[AttributePath, int] = {}
        self.fields = self.end = 0
        self.mask = bytearray(room)
        self.mask[:_HEAD] = b"\xff" * _HEAD
        self.has_attributes = False

    def over(self, data: bytes | bytearray, base: int, at: int, end: int, path: AttributePath) -> None:
        """From ``at`` to ``end``, both from ``base`` on. Raises ValueError."""
        while at + 4 <= end:
            size, kind = _WORD.unpack_from(data, base + at)
            if size < 4 or at + size > end or len(path) >= _DEEPEST:
                raise ValueError("an attribute is longer than what it is in")
            self.mask[at : at + 4] = b"\xff" * 4
            self.has_attributes = True
            here = (*path, kind & 0x3FFF)
            if here in self._nested:
                self.over(data, base, at + 4, at + size, here)
            elif here in self._wanted:
                self._note(here, at + 4, size - 4)
            at += min(size + 3 & ~3, end - at)

    def _note(self, path: AttributePath, at: int, size: int) -> None:
        code = f"{size}s"
        if path in self._numbers:
            if size not in _NUMBERS:
                raise ValueError(f"a number has {size} bytes")
            code = _NUMBERS[size]
        self.shape.append(f"{at - self.end}x{code}")
        self.of_wanted[path] = self.fields
        self.fields += 1
        self.end = at + size
