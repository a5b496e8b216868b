"""PURE: which of many networks have an address, the smallest first.

Rule: one look for each length that there is, however many networks there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from cni_calico.policy.wanted import Packed, PackedNet

OfNet = TypeVar("OfNet")


class NetworksAround(Generic[OfNet]):
    """``nets``: each with what it stands for; several may be the same network."""

    def __init__(self, nets: Iterable[tuple[PackedNet, OfNet]]) -> None:
        by_size: dict[int, dict[int, dict[int, list[OfNet]]]] = {4: {}, 16: {}}  # bytes -> length -> beginning
        for (packed, length), named in nets:
            there = by_size[len(packed)].setdefault(length, {})
            there.setdefault(_beginning(packed, length), []).append(named)
        self._by_size = {size: sorted(lengths.items(), reverse=True) for size, lengths in by_size.items()}

    def of(self, address: Packed) -> Iterator[OfNet]:
        """Of the same network in the order in which they were given."""
        for length, there in self._by_size[len(address)]:
            yield from there.get(_beginning(address, length), ())


def _beginning(packed: Packed, length: int) -> int:
    return int.from_bytes(packed, "big") >> (8 * len(packed) - length)
