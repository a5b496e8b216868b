"""PURE: the sets that rules look up, in the tables of both families.

Rule: single addresses are in a set with direct lookup, networks in another one, which exists only while there are any.
"""

from __future__ import annotations

from cni_calico.model.netfilter import NftSet
from cni_calico.nodeagent.dataplane.policy.matches import ADDRESS_TYPE, NETWORKS
from cni_calico.nodeagent.dataplane.policy.members import Elements, elements_of
from cni_calico.nodeagent.dataplane.policy.tables import FILTER, GoalTables
from cni_calico.policy.wanted import PORT_SET, Members, SetChange


class FilterSets:
    """The sets in ``tables``, by the names that policies use."""

    def __init__(self, tables: GoalTables) -> None:
        self._tables = tables

    def make(self, name: str, members: Members) -> None:
        for family, table in FILTER.items():
            kind = ADDRESS_TYPE[family]
            key = (kind, "inet_proto", "inet_service") if name.startswith(PORT_SET) else (kind,)
            found = elements_of(members, family)
            self._tables.put_set(table, NftSet(name, key), found.single)
            if found.ranges:
                self._tables.put_set(table, NftSet(name + NETWORKS, (kind,), interval=True), found.ranges)

    def remove(self, name: str) -> None:
        for table in FILTER.values():
            self._tables.take_set(table, name)
            self._tables.take_set(table, name + NETWORKS)

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
            self._tables.put_set(table, NftSet(networks, (ADDRESS_TYPE[family],), interval=True), added.ranges)
            return True
        self._tables.change_elements(table, networks, added.ranges, removed.ranges)
        if there:
            return False
        self._tables.take_set(table, networks)
        return True

    def has_networks(self, family: int, name: str) -> bool:
        return name + NETWORKS in self._tables.of[FILTER[family]].sets
