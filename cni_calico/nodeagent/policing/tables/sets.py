"""PURE: the sets that rules look up, in the tables of both families.

Rule: single addresses are in a set with direct lookup, networks in another one, which exists only while there are any,
or while the rules of a large policy look it up (``pin``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cni_calico.netfilter.tables import NftSet
from cni_calico.nodeagent.policing.tables.matches import ADDRESS_TYPE, NETWORKS
from cni_calico.nodeagent.policing.tables.members import Elements, elements_of
from cni_calico.nodeagent.policing.tables.touched import FILTER, GoalTables
from cni_calico.policy.wanted import PORT_SET, Members, SetChange


class FilterSets:
    """The sets in ``tables``, by the names that policies use."""

    def __init__(self, tables: GoalTables) -> None:
        self._tables = tables
        self._made: set[str] = set()
        self._pins: Counter[str] = Counter()  # by name, how many need its set of networks

    def pin(self, names: Iterable[str]) -> None:
        """Keep the sets of networks of these, even without members."""
        for name in names:
            self._pins[name] += 1
            if self._pins[name] == 1:
                for family in FILTER:
                    self._make_pinned(family, name)

    def unpin(self, names: Iterable[str]) -> None:
        for name in names:
            self._pins[name] -= 1
            if not self._pins[name]:
                del self._pins[name]
                for table in FILTER.values():
                    if not self._tables.of[table].elements.get(name + NETWORKS, ()):
                        self._tables.drop_set(table, name + NETWORKS)

    def _make_pinned(self, family: int, name: str) -> None:
        sets = self._tables.of[FILTER[family]].sets
        if name in sets and name + NETWORKS not in sets and not name.startswith(PORT_SET):
            self._tables.put_set(FILTER[family], _networks(name, family))

    def make(self, name: str, members: Members) -> None:
        self._made.add(name)
        for family, table in FILTER.items():
            kind = ADDRESS_TYPE[family]
            key = (kind, "inet_proto", "inet_service") if name.startswith(PORT_SET) else (kind,)
            found = elements_of(members, family)
            self._tables.put_set(table, NftSet(name, key), found.single)
            if found.ranges:
                self._tables.put_set(table, _networks(name, family), found.ranges)
            elif self._pins[name]:
                self._make_pinned(family, name)

    def remove(self, name: str) -> None:
        self._made.discard(name)
        for table in FILTER.values():
            self._tables.drop_set(table, name)
            self._tables.drop_set(table, name + NETWORKS)

    def change(self, name: str, change: SetChange) -> bool:
        """Returns whether rules that use it must be rendered again: it has networks now, or none any more."""
        flipped = False
        for family, table in FILTER.items():
            added, removed = elements_of(change.added, family), elements_of(change.removed, family)
            self._tables.change_elements(table, name, added.single, removed.single)
            if added.ranges or removed.ranges:
                flipped = self._change_networks(family, name, added, removed) or flipped
        return flipped

    def _change_networks(self, family: int, name: str, added: Elements, removed: Elements) -> bool:
        table, networks = FILTER[family], name + NETWORKS
        there = self._tables.of[table].elements.get(networks)
        if there is None:
            self._tables.put_set(table, _networks(name, family), added.ranges)
            return True
        before = bool(there)
        self._tables.change_elements(table, networks, added.ranges, removed.ranges)
        if not there and not self._pins[name]:
            self._tables.drop_set(table, networks)
        return before != bool(there)

    def has(self, name: str) -> bool:
        return name in self._made

    def has_networks(self, family: int, name: str) -> bool:
        return bool(self._tables.of[FILTER[family]].elements.get(name + NETWORKS))


def _networks(name: str, family: int) -> NftSet:
    return NftSet(name + NETWORKS, (ADDRESS_TYPE[family],), interval=True)
