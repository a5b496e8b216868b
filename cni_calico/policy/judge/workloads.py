"""PURE: judges what workloads send and get, for whoever asks about many of them.

Rule: as the judge, with classes of addresses that have only what the rules of the workload in question ask for: there
are far fewer of them, and so fewer cells.
"""

from __future__ import annotations

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.judge.asked import AskedNames, names_of, narrowed
from cni_calico.policy.judge.cells import AskedEachTime, Cell
from cni_calico.policy.judge.classes import AddressClass
from cni_calico.policy.judge.trace import CELLS, AskedGroup, Judge
from cni_calico.policy.wanted import Direction, Packed, Wanted

_EVERY_ADDRESS = 1 << 30
_REMEMBERED = 500_000


class _GroupAsked:
    """What is known of one who is asked: classes of sources and of destinations, and cells by which classes. Where no
    rule asks for a side (``tells`` False), all addresses of a family are one, and stand there by their length.
    """

    __slots__ = ("cells", "classes", "names", "tells")

    def __init__(self, names: AskedNames) -> None:
        self.names = names
        self.tells = any(names.of_side(source=True)), any(names.of_side(source=False))
        self.classes: tuple[dict[Packed | int, AddressClass], dict[Packed | int, AddressClass]] = {}, {}
        self.cells: dict[tuple[int, int, int], Cell | AskedEachTime] = {}


class WorkloadJudge:
    """Of one state, which does not change."""

    def __init__(self, wanted: Wanted) -> None:
        self.judge = Judge(wanted, addresses=_EVERY_ADDRESS)
        self._wanted = wanted
        self._groups: dict[AskedGroup, _GroupAsked] = {}
        self._of: dict[Direction, dict[ResourceKey, tuple[AskedGroup, _GroupAsked]]] = {"ingress": {}, "egress": {}}
        self._classes = self._cells = 0  # that are remembered
        self._same: dict[AddressClass, AddressClass] = {}  # so that a class is found by which object it is

    def cell(
        self, key: ResourceKey, direction: Direction, source: Packed, destination: Packed, protocol: int
    ) -> Cell | AskedEachTime:
        """What decides at a workload, which must be known."""
        found = self._of[direction].get(key)
        if found is None:
            found = self._of[direction][key] = self._find(key, direction)
        group, asked = found
        tells = asked.tells
        one = asked.classes[0].get(source if tells[0] else len(source))
        if one is None:
            one = self._class(asked, source, source=True)
        other = asked.classes[1].get(destination if tells[1] else len(destination))
        if other is None:
            other = self._class(asked, destination, source=False)
        at = id(one), id(other), protocol
        cell = asked.cells.get(at)
        if cell is None:
            if self._cells >= CELLS:
                self._cells = 0
                for each in self._groups.values():
                    each.cells.clear()
            self._cells += 1
            cell = asked.cells[at] = self.judge.cell_of(group, one, other, protocol)
        return cell

    def _find(self, key: ResourceKey, direction: Direction) -> tuple[AskedGroup, _GroupAsked]:
        group = self.judge.of_workload(key, direction)
        asked = self._groups.get(group)
        if asked is None:
            asked = self._groups[group] = _GroupAsked(self._asked(group))
        return group, asked

    def _class(self, asked: _GroupAsked, address: Packed, *, source: bool) -> AddressClass:
        if self._classes >= _REMEMBERED:
            self._classes = 0
            for each in self._groups.values():
                for classes in each.classes:
                    classes.clear()
        self._classes += 1
        made = narrowed(self.judge.classes.of(address), *asked.names.of_side(source=source))
        found = self._same.setdefault(made, made)
        asked.classes[not source][address if asked.tells[not source] else len(address)] = found
        return found

    def _asked(self, group: AskedGroup) -> AskedNames:
        name, direction, _ = group
        asked = AskedNames()
        for policy in self._wanted.classes[name].policy_ids():
            asked.add(names_of((self._wanted.policies.get(policy),), direction))
        return asked
