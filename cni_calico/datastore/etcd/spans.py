"""PURE: a question for a range of etcd's keys, and its answer, whichever way they travel."""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class RawRecord(Protocol):
        """A record as etcd has it."""

        @property
        def key(self) -> bytes: ...

        @property
        def value(self) -> bytes: ...

        @property
        def mod_revision(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Span:
    """The keys from ``start`` to before ``end``, at most ``limit`` of them, as of ``revision`` (0: the newest).

    Without ``end`` it is the one key; without ``limit`` there is none.
    """

    start: bytes
    end: bytes = b""
    limit: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class SpanAnswer:
    """The answer: what is stored, the store's revision, and whether the limit cut off more."""

    records: Sequence[RawRecord]
    revision: int
    more: bool
