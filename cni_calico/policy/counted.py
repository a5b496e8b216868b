"""PURE: the members of one set, counted.

Rule: several endpoints may have an address and networks may overlap, so members are counted; the output is the
difference since the last flush. Networks may be left to a later one: what else has changed does not wait for them, but
for addresses that go while networks come, which may contain them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cni_calico.policy.cover import Cover, minimal_cover
from cni_calico.policy.sources import SetSource
from cni_calico.policy.wanted import Members, PackedNet, PackedPort, SetChange

Member = bytes | PackedNet | PackedPort


@dataclass(slots=True, eq=False)
class CountedSet:
    """``counts``: how often each member was added; ``touched`` and, of networks, ``touched_nets``: for changed ones,
    whether they were members at the last flush that took them.
    """

    source: SetSource
    is_new: bool = True
    counts: dict[Member, int] = field(default_factory=dict)
    touched: dict[Member, bool] = field(default_factory=dict)
    touched_nets: dict[Member, bool] = field(default_factory=dict)
    nets_come: bool = False
    cover: Cover | None = None  # of the networks, as reported at the last flush

    def add(self, members: Iterable[Member]) -> None:
        for member in members:
            count = self.counts.get(member, 0)
            if not count:
                if _is_net(member):
                    self.touched_nets.setdefault(member, False)
                    self.nets_come = True
                else:
                    self.touched.setdefault(member, False)
            self.counts[member] = count + 1

    def discard(self, members: Iterable[Member]) -> None:
        for member in members:
            count = self.counts[member] - 1
            if count:
                self.counts[member] = count
            else:
                del self.counts[member]
                (self.touched_nets if _is_net(member) else self.touched).setdefault(member, True)

    def members(self) -> Members:
        split = split_members(self.counts)
        return Members(split.addresses, minimal_cover(split.nets), split.ports)

    def take_change(self, *, nets: bool = True) -> SetChange:
        """What has changed since the last flush; this counts as a flush. ``nets``: of networks, too."""
        added = split_members(self._added(self.touched))
        removed = split_members(self._removed(self.touched))
        kept: dict[Member, bool] = {}
        if not nets and self.nets_come and (removed.addresses or removed.ports):
            kept = {member: was for member, was in self.touched.items() if was and member not in self.counts}
            removed = Members()
        self.touched = kept
        more_nets: frozenset[PackedNet] = frozenset()
        fewer_nets: frozenset[PackedNet] = frozenset()
        if nets and self.touched_nets:
            come, gone = split_members(self._added(self.touched_nets)), split_members(self._removed(self.touched_nets))
            self.cover = self.cover or Cover()
            more_nets, fewer_nets = self.cover.change(come.nets, gone.nets)
            self.touched_nets, self.nets_come = {}, False
        return SetChange(
            Members(added.addresses, more_nets, added.ports), Members(removed.addresses, fewer_nets, removed.ports)
        )

    @property
    def is_behind(self) -> bool:
        """Whether the last flush has left something to the next."""
        return bool(self.touched) or bool(self.touched_nets)

    @property
    def looked_at(self) -> int:
        """How many networks were looked at for all changes so far."""
        return 0 if self.cover is None else self.cover.looked_at

    def _added(self, touched: dict[Member, bool]) -> Iterator[Member]:
        return (member for member, was in touched.items() if not was and member in self.counts)

    def _removed(self, touched: dict[Member, bool]) -> Iterator[Member]:
        return (member for member, was in touched.items() if was and member not in self.counts)


def _is_net(member: Member) -> bool:
    return not isinstance(member, bytes) and len(member) == 2


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
