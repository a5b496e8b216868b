"""PURE: what came first into a dict, where much is taken out of it again.

Rule: a dict's begin is found by walking over all that was taken out since it last grew, which for a hundred thousand
connections is the cost of ten others. So some are looked up at once, and each is looked at again before it counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, takewhile
from typing import Generic, TypeVar

KeptKey = TypeVar("KeptKey")
KeptValue = TypeVar("KeptValue")
_AT_ONCE = 1000


class OldestKeys(Generic[KeptKey]):
    """Of ``kept``, where a key that is set again after it was taken out comes last, with another value (object)."""

    def __init__(self, kept: Mapping[KeptKey, object]) -> None:
        self._kept = kept
        self._next: list[tuple[KeptKey, object]] = []  # the first one is at the end

    def first(self) -> KeptKey:
        """Raises StopIteration if nothing is kept."""
        kept, following = self._kept, self._next
        while following:
            key, value = following[-1]
            if kept.get(key) is value:
                return key
            following.pop()
        following += islice(kept.items(), _AT_ONCE)
        following.reverse()
        if not following:
            raise StopIteration
        return following[-1][0]


def forget_oldest(kept: dict[KeptKey, tuple[KeptValue, int]], before: int) -> None:
    """Those with an earlier time; the oldest come first."""
    for key in list(takewhile(lambda key: kept[key][1] < before, kept)):
        del kept[key]
