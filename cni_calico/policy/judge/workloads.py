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


class WorkloadJudge:
    """Of one state, which does not change."""

    def __init__(self, wanted: Wanted) -> None:
        self.judge = Judge(wanted, addresses=_EVERY_ADDRESS)
        self._wanted = wanted
        self._names: dict[AskedGroup, AskedNames] = {}
        self._classes: dict[tuple[AskedGroup, bool, Packed], AddressClass] = {}
        self._same: dict[AddressClass, AddressClass] = {}  # so that a class is found by which object it is
        self._cells: dict[tuple[AskedGroup, int, int, int], Cell | AskedEachTime] = {}

    def cell(
        self, key: ResourceKey, direction: Direction, source: Packed, destination: Packed, protocol: int
    ) -> Cell | AskedEachTime:
        """What decides at a workload, which must be known."""
        group = self.judge.of_workload(key, direction)
        one, other = self._class(group, source, source=True), self._class(group, destination, source=False)
        at = group, id(one), id(other), protocol
        found = self._cells.get(at)
        if found is None:
            if len(self._cells) >= CELLS:
                self._cells.clear()
            found = self._cells[at] = self.judge.cell_of(group, one, other, protocol)
        return found

    def _class(self, group: AskedGroup, address: Packed, *, source: bool) -> AddressClass:
        at = group, source, address
        found = self._classes.get(at)
        if found is None:
            if len(self._classes) >= _REMEMBERED:
                self._classes.clear()
            made = narrowed(self.judge.classes.of(address), *self._asked(group).of_side(source=source))
            found = self._classes[at] = self._same.setdefault(made, made)
        return found

    def _asked(self, group: AskedGroup) -> AskedNames:
        known = self._names.get(group)
        if known is None:
            name, direction, _ = group
            known = self._names[group] = AskedNames()
            for policy in self._wanted.classes[name].policy_ids():
                known.add(names_of((self._wanted.policies.get(policy),), direction))
        return known
