"""PURE: parses the items of a list from its JSON text, one by one as the text arrives.

Rule: of the text, only the item that is not complete yet is kept. The rest of the list's document, which may be before
or after the items, is returned at the end.
"""

from __future__ import annotations

import codecs
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

_BEGIN, _MEMBERS, _ITEMS, _END = range(4)
_BLANK = " \t\r\n"
_DECODER = json.JSONDecoder()
_UNPACKED_BYTES = 256 * 1024


def unpacked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """What gzip packed, at most _UNPACKED_BYTES at a time. Raises ValueError."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        for piece in pieces:
            packed = piece
            while packed:
                yield unpacker.decompress(packed, _UNPACKED_BYTES)
                packed = unpacker.unconsumed_tail
        yield unpacker.flush()
    except zlib.error as e:
        raise ValueError(f"it is not gzip: {e}") from e


class _More(Exception):
    """The text received so far ends inside an item or a member."""


class ItemParser:
    """``feed`` it the text piece by piece; ``finish`` returns the other members of the document."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0
        self._state = _BEGIN
        self._rest: dict[str, Any] = {}

    def feed(self, data: bytes) -> Iterator[Any]:
        """The items that are complete now. Raises ValueError if the text is not a JSON object."""
        self._text = self._text[self._at :] + self._utf8.decode(data)
        self._at = 0
        try:
            while self._state != _END:
                if self._state == _ITEMS:
                    if self._sign(",]") == "]":
                        self._state = _MEMBERS
                    else:
                        item = self._value()
                        yield item
                else:
                    self._member()
        except _More:
            return
        if self._text[self._at :].strip(_BLANK):
            raise ValueError("something follows the document")

    def finish(self) -> dict[str, Any]:
        """Raises ValueError if the document is not complete."""
        if self._state != _END:
            raise ValueError("the document ends too early")
        return self._rest

    def _member(self) -> None:
        """Read one member of the document; of "items" only its beginning."""
        begun = self._at
        try:
            sign = self._sign("{" if self._state == _BEGIN else ",}")
            if sign == "}" or (sign == "{" and self._peek() == "}"):
                self._state = _END
                self._at += sign == "{"
                return
            name = self._value()
            self._sign(":", needed=True)
            if name == "items" and self._peek() == "[":
                self._at += 1
                self._state = _ITEMS
                return
            self._rest[name] = self._value()
            self._state = _MEMBERS
        except _More:
            self._at = begun
            raise

    def _sign(self, signs: str, *, needed: bool = False) -> str:
        """The next character if it is one of these; "" if none is needed, as for a list's first item. Raises
        ValueError.
        """
        found = self._peek()
        if found in signs:
            self._at += 1
            return found
        if needed or self._state != _ITEMS:
            raise ValueError(f"expected one of {signs!r}, not {found!r}")
        return ""

    def _peek(self) -> str:
        while self._at < len(self._text) and self._text[self._at] in _BLANK:
            self._at += 1
        if self._at == len(self._text):
            raise _More
        return self._text[self._at]

    def _value(self) -> Any:
        begin = self._peek()
        if begin not in '{["':
            return self._plain_value()
        try:
            value, self._at = _DECODER.raw_decode(self._text, self._at)
        except ValueError as e:
            raise _More from e
        return value

    def _plain_value(self) -> Any:
        """A number or a name, which ends only at the next character."""
        end = self._at
        while end < len(self._text) and self._text[end] not in ",]}" + _BLANK:
            end += 1
        if end == len(self._text):
            raise _More
        value = json.loads(self._text[self._at : end])
        self._at = end
        return value
