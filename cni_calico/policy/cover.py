"""PURE: networks as few disjoint ones that contain the same addresses, kept up to date change by change.

Rule: the result is that of ``minimal_cover``, but what is calculated for a change depends on what it touches: only
copying and sorting what is sorted already takes longer where there are more networks. Uses integers, not ``ipaddress``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from cni_calico.policy.wanted import PackedNet

_Net = tuple[int, int]  # first address, prefix length
_FEW = 200  # changes that are made one by one
_MANY = 8  # where more than one of so many networks changes, everything is calculated anew


def minimal_cover(nets: Iterable[PackedNet]) -> frozenset[PackedNet]:
    """As few disjoint networks as possible that contain the same addresses."""
    return Cover().change(nets, ())[0]


class Cover:
    """The networks are those that came with ``change`` and have not gone again."""

    __slots__ = ("_by_size",)

    def __init__(self) -> None:
        self._by_size: dict[int, _FamilyCover] = {}

    @property
    def looked_at(self) -> int:
        """How many networks all changes so far looked at: what they cost."""
        return sum(family.looked_at for family in self._by_size.values())

    def change(
        self, added: Iterable[PackedNet], removed: Iterable[PackedNet]
    ) -> tuple[frozenset[PackedNet], frozenset[PackedNet]]:
        """Returns what has come and gone of the cover. None of ``added`` is there, all of ``removed`` are."""
        more: list[PackedNet] = []
        fewer: list[PackedNet] = []
        new, old = _by_size(added), _by_size(removed)
        for size in new.keys() | old.keys():
            cover = self._by_size.setdefault(size, _FamilyCover(size * 8))
            come, gone = cover.change(new.get(size, set()), old.get(size, set()))
            more += [(first.to_bytes(size, "big"), length) for first, length in come]
            fewer += [(first.to_bytes(size, "big"), length) for first, length in gone]
        return frozenset(more), frozenset(fewer)


def _by_size(nets: Iterable[PackedNet]) -> dict[int, set[_Net]]:
    found: dict[int, set[_Net]] = {}
    for address, length in nets:
        found.setdefault(len(address), set()).add((int.from_bytes(address, "big"), length))
    return found


class _FamilyCover:
    """``nets`` and ``kept``, their cover, are sorted: a network comes before those that it contains."""

    __slots__ = ("bits", "kept", "looked_at", "nets")

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.looked_at = 0
        self.nets: list[_Net] = []
        self.kept: list[_Net] = []

    def change(self, added: set[_Net], removed: set[_Net]) -> tuple[set[_Net], set[_Net]]:
        """Where a network was kept, the cover changes only inside of it. Elsewhere it changes inside of what has come,
        and then two halves of a network may have become one.
        """
        self.nets = _exchanged(self.nets, added, removed)
        if _MANY * (len(added) + len(removed)) > len(self.nets):
            self.looked_at += len(self.nets) + len(self.kept)
            before, self.kept = set(self.kept), _covered(self.nets, self.bits)
            after = set(self.kept)
            return after - before, before - after
        come: set[_Net] = set()
        gone: set[_Net] = set()

        def add(net: _Net) -> None:
            if net in gone:
                gone.discard(net)
            else:
                come.add(net)

        def drop(net: _Net) -> None:
            if net in come:
                come.discard(net)
            else:
                gone.add(net)

        def is_kept(net: _Net) -> bool:
            return net in come or (net not in gone and _has(self.kept, net))

        new: list[_Net] = []
        for region in self._regions(sorted(added | removed)):
            kept, nets = _inside(self.kept, region, self.bits), _inside(self.nets, region, self.bits)
            self.looked_at += len(kept) + len(nets)
            gone.update(kept)
            new += _covered(nets, self.bits)
        for net in new:
            add(net)
        for net in new:
            while net[1] and is_kept(net) and is_kept(half := (net[0] ^ 1 << (self.bits - net[1]), net[1])):
                drop(net)
                drop(half)
                net = min(net, half)[0], net[1] - 1
                add(net)
        self.kept = _exchanged(self.kept, come, gone)
        return come, gone

    def _regions(self, changed: list[_Net]) -> list[_Net]:
        """Disjoint."""
        found: list[_Net] = []
        for net in changed:
            if found and self._contains(found[-1], net):
                continue
            place = bisect_right(self.kept, net) - 1
            found.append(self.kept[place] if place >= 0 and self._contains(self.kept[place], net) else net)
        return found

    def _contains(self, outer: _Net, inner: _Net) -> bool:
        return outer[1] <= inner[1] and (outer[0] ^ inner[0]) >> (self.bits - outer[1]) == 0


def _exchanged(listed: list[_Net], added: set[_Net], removed: set[_Net]) -> list[_Net]:
    if len(added) + len(removed) > _FEW:
        return sorted([net for net in listed if net not in removed] + sorted(added))
    for net in removed:
        del listed[bisect_left(listed, net)]
    for net in added:
        insort(listed, net)
    return listed


def _has(listed: list[_Net], net: _Net) -> bool:
    place = bisect_left(listed, net)
    return place < len(listed) and listed[place] == net


def _inside(listed: list[_Net], region: _Net, bits: int) -> list[_Net]:
    first, length = region
    return listed[bisect_left(listed, region) : bisect_left(listed, (first + (1 << (bits - length)), 0))]


def _covered(nets: list[_Net], bits: int) -> list[_Net]:
    kept: list[_Net] = []
    for net in nets:
        start = net[0]
        if kept and (start ^ kept[-1][0]) >> (bits - kept[-1][1]) == 0:
            continue
        kept.append(net)
        while len(kept) > 1 and kept[-1][1] == kept[-2][1] and kept[-1][0] ^ kept[-2][0] == 1 << (bits - kept[-1][1]):
            kept.pop()  # two halves
            kept[-1] = kept[-1][0], kept[-1][1] - 1
    return kept
