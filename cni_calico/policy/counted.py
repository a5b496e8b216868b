"""PURE: the members of one set, counted.

Rule: several endpoints may have an address and networks may overlap, so members are counted; the output is the
difference since the last flush.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cni_calico.policy.cover import Cover, minimal_cover
from cni_calico.policy.sources import SetSource
from cni_calico.policy.wanted import Members, PackedNet, PackedPort, SetChange

Member = bytes | PackedNet | PackedPort


@dataclass(slots=True, eq=False)
class CountedSet:
    """``counts``: how often each member was added; ``touched``: for changed ones, whether they were members at the last
    flush.
    """

    source: SetSource
    is_new: bool = True
    counts: dict[Member, int] = field(default_factory=dict)
    touched: dict[Member, bool] = field(default_factory=dict)
    cover: Cover | None = None  # of the networks, as reported at the last flush

    def add(self, members: Iterable[Member]) -> None:
        for member in members:
            count = self.counts.get(member, 0)
            if not count:
                self.touched.setdefault(member, False)
            self.counts[member] = count + 1

    def discard(self, members: Iterable[Member]) -> None:
        for member in members:
            count = self.counts[member] - 1
            if count:
                self.counts[member] = count
            else:
                del self.counts[member]
                self.touched.setdefault(member, True)

    def members(self) -> Members:
        split = split_members(self.counts)
        return Members(split.addresses, minimal_cover(split.nets), split.ports)

    def take_change(self) -> SetChange:
        """What has changed since the last flush; this counts as a flush."""
        added = split_members(member for member, was in self.touched.items() if not was and member in self.counts)
        removed = split_members(member for member, was in self.touched.items() if was and member not in self.counts)
        more_nets: frozenset[PackedNet] = frozenset()
        fewer_nets: frozenset[PackedNet] = frozenset()
        if added.nets or removed.nets:
            self.cover = self.cover or Cover()
            more_nets, fewer_nets = self.cover.change(added.nets, removed.nets)
        self.touched.clear()
        return SetChange(
            Members(added.addresses, more_nets, added.ports), Members(removed.addresses, fewer_nets, removed.ports)
        )


def split_members(members: Iterable[Member]) -> Members:
    addresses, nets, ports = [], [], []
    for member in members:
        if isinstance(member, bytes):
            addresses.append(member)
        elif len(member) == 2:
            nets.append(member)
        else:
            ports.append(member)
    return Members(frozenset(addresses), frozenset(nets), frozenset(ports))
