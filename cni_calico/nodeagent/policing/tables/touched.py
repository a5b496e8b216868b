"""PURE: our tables as they should be, and which of their objects were touched.

Rule: every change of an object goes through here, so that no difference from the kernel is forgotten; an object that is
put again unchanged is not touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from cni_calico.netfilter.difference import Touched
from cni_calico.netfilter.rules import PacketVerdict, jump
from cni_calico.netfilter.tables import POLICY, NftChain, NftSet, NftTable, TableId, interface_key
from cni_calico.nodeagent.policing.tables.kept import KeptPolicies
from cni_calico.nodeagent.policing.tables.matches import ListSet
from cni_calico.nodeagent.policing.tables.parts import ChainPart, PartedChain, whole_name

NAME = POLICY
FILTER = {4: TableId("ip", POLICY), 6: TableId("ip6", POLICY)}
ARP = TableId("arp", POLICY)
TABLES = (FILTER[4], FILTER[6], ARP)


class GoalTables:
    """``of``: the tables by name; read them freely, but change them only through the methods. ``kept``: what stays
    of an earlier run's.
    """

    def __init__(self) -> None:
        self.of = {table: NftTable(table.family, table.name) for table in TABLES}
        self.kept = KeptPolicies()
        self._touched: dict[TableId, Touched] = {}
        self._lists: dict[TableId, dict[str, dict[str, ListSet]]] = {table: {} for table in TABLES}  # by chain
        self._uses: dict[TableId, Counter[str]] = {table: Counter() for table in TABLES}
        self._parts: dict[TableId, dict[str, tuple[str, ...]]] = {table: {} for table in TABLES}  # by chain
        self._led: dict[TableId, Counter[str]] = {table: Counter() for table in TABLES}  # chains that lead to a part

    def take_touched(self) -> dict[TableId, Touched]:
        touched, self._touched = self._touched, {}
        return touched

    def _touch(self, table: TableId) -> Touched:
        return self._touched.setdefault(table, Touched())

    # -- sets ---------------------------------------------------------------------------------------------------------

    def put_set(self, table: TableId, spec: NftSet, elements: Iterable[bytes] = ()) -> None:
        goal = self.of[table]
        goal.sets[spec.name] = spec
        if spec.verdicts:
            goal.verdicts.setdefault(spec.name, {})
        else:
            goal.elements[spec.name] = set(elements)
            self._touch(table).elements[spec.name] = None
        self._touch(table).sets.add(spec.name)

    def put_map(self, table: TableId, spec: NftSet, verdicts: Mapping[bytes, PacketVerdict]) -> None:
        """A map that leads to no chain."""
        goal = self.of[table]
        goal.sets[spec.name], goal.verdicts[spec.name] = spec, dict(verdicts)
        touched = self._touch(table)
        touched.sets.add(spec.name)
        touched.verdicts[spec.name] = set(verdicts)

    def drop_set(self, table: TableId, name: str) -> None:
        goal = self.of[table]
        if goal.sets.pop(name, None) is not None:
            goal.elements.pop(name, None)
            touched = self._touch(table)
            touched.sets.add(name)
            touched.verdicts.setdefault(name, set()).update(goal.verdicts.pop(name, ()))  # it may come back

    def change_elements(self, table: TableId, name: str, added: set[bytes], removed: set[bytes]) -> None:
        if added or removed:
            elements = self.of[table].elements[name]
            elements -= removed
            elements |= added
            self._touch(table).element_change(name, added, removed)

    def use_lists(self, table: TableId, chain: str, lists: Mapping[str, ListSet]) -> None:
        """``chain`` looks up these lists and no others; lists that are no longer looked up are removed."""
        uses, before = self._uses[table], self._lists[table].pop(chain, {})
        if lists:
            self._lists[table][chain] = dict(lists)
        for name, listed in lists.items():
            if name not in before:
                uses[name] += 1
                if uses[name] == 1:
                    self.put_set(table, listed.spec, listed.elements)
        for name in before:
            if name not in lists:
                uses[name] -= 1
                if not uses[name]:
                    del uses[name]
                    self.drop_set(table, name)

    def chains_with_list(self, table: TableId, name: str) -> list[str]:
        """The chains that look up this list."""
        return [chain for chain, lists in self._lists[table].items() if name in lists]

    # -- chains -------------------------------------------------------------------------------------------------------

    def put_chain(self, table: TableId, chain: NftChain) -> None:
        if self.of[table].chains.get(chain.name) != chain:
            self.of[table].chains[chain.name] = chain
            self._touch(table).chains.add(chain.name)

    def drop_chain(self, table: TableId, name: str) -> None:
        if self.of[table].chains.pop(name, None) is not None:
            self._touch(table).chains.add(name)

    # -- chains in parts ----------------------------------------------------------------------------------------------

    def put_part(self, table: TableId, part: ChainPart) -> None:
        self.use_lists(table, part.chain.name, part.lists)
        self.put_chain(table, part.chain)

    def is_spare_part(self, table: TableId, name: str) -> bool:
        """Whether this is a part that no chain leads to."""
        return whole_name(name) != name and not self._led[table][name]

    def chains_with_part(self, table: TableId, part: str) -> list[str]:
        """The chains that lead to this part."""
        return [chain for chain, parts in self._parts[table].items() if part in parts]

    def forget_part(self, table: TableId, part: str) -> None:
        """Remove a part unless a chain leads to it."""
        if not self._led[table][part]:
            self.drop_chain(table, part)
            self.use_lists(table, part, {})

    def _lead_through(self, table: TableId, chain: str, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Note the parts of a chain; returns those of before."""
        led, before = self._led[table], self._parts[table].pop(chain, ())
        if parts:
            self._parts[table][chain] = parts
            led.update(parts)
        for part in before:
            led[part] -= 1
            if not led[part]:
                del led[part]
        return before

    def put_parted(self, table: TableId, chain: PartedChain) -> None:
        name, there = chain.chain.name, self.of[table].chains
        before = self._lead_through(table, name, tuple(part.chain.name for part in chain.parts))
        for part in chain.parts:
            if part.lists or there.get(part.chain.name) is not part.chain:
                self.put_part(table, part)
        self.use_lists(table, name, chain.lists)
        self.put_chain(table, chain.chain)
        for part_name in before:
            self.forget_part(table, part_name)

    def drop_parted(self, table: TableId, name: str) -> None:
        """With its parts."""
        self.drop_chain(table, name)
        self.use_lists(table, name, {})
        for part in self._lead_through(table, name, ()):
            self.forget_part(table, part)

    # -- maps from interfaces to chains -------------------------------------------------------------------------------

    def lead(self, table: TableId, spec: NftSet, interface: str, chain: str) -> None:
        """Lead packets of this interface to ``chain``, "" for none."""
        self.enter(table, spec, interface, jump(chain) if chain else None)

    def enter(self, table: TableId, spec: NftSet, interface: str, verdict: PacketVerdict | None) -> None:
        """The verdict for packets of this interface; None: none."""
        self.enter_key(table, spec, interface_key(interface), verdict)

    def enter_key(self, table: TableId, spec: NftSet, key: bytes, verdict: PacketVerdict | None) -> None:
        """The same for any map to verdicts."""
        held = self.of[table].verdicts[spec.name]
        if held.get(key) == verdict:
            return
        if verdict is None:
            del held[key]
        else:
            held[key] = verdict
        self._touch(table).verdicts.setdefault(spec.name, set()).add(key)

    def interfaces_of(self, table: TableId, spec: NftSet) -> set[str]:
        """The interfaces that a map leads anywhere."""
        held = self.of[table].verdicts.get(spec.name, {})
        return {key.rstrip(b"\0").decode("utf-8", "surrogateescape") for key in held}
