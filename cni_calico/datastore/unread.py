"""PURE: a document whose text has arrived and has not been read.

Rule: a watch that is asked for such documents spends next to nothing on a large one, so what comes after it is not held
up: whoever gets it reads it when it is its turn, once. What the text says is only then known to be a record, or not to
be one. A deletion never waits for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class UnreadDocument(Mapping[str, Any]):
    """``size``: of its text, in bytes. Whoever looks into it reads it, each time: call ``read`` instead."""

    __slots__ = ("_read", "size")

    def __init__(self, size: int, read: Callable[[], Mapping[str, Any]]) -> None:
        self.size = size
        self._read = read

    def read(self) -> Mapping[str, Any]:
        """The document. Raises CorruptRecord."""
        return self._read()

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())
