"""Legacy iptables and IP sets as a packet filter for the engine: the same operations as for nf_tables.

Rule: this module remembers the tables as values and what they became in iptables. Each change compiles what it
touched, compares that with what is remembered, and writes the difference; the kernel is read again only after something
unexpected. iptables' rules cannot be turned back into values: if what was read is what the remembered tables give, or
the wanted ones (``likes``), it is recognised. Otherwise everything is planned from the start, and what is there stays
until the last transaction, which removes things.

IP sets are made and filled before the rules that look them up, and removed after them: one program's run for the sets
of both families, one for each family's rules, and one for the sets that go. A script is one transaction for each table
of iptables. So, unlike with nf_tables, a change of several tables, of both families, or of sets and rules is several
transactions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from errno import EOPNOTSUPP

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError, RulesRefused
from cni_calico.kernel.filter.legacy import programs
from cni_calico.kernel.filter.legacy.change import FamilyChange, FilterFamily, copy_of, is_as_read, restore_sets
from cni_calico.kernel.filter.legacy.layout import Compiler
from cni_calico.kernel.filter.legacy.matches import FAMILY, Marks
from cni_calico.kernel.filter.legacy.names import chain_name
from cni_calico.kernel.filter.legacy.placement import TABLES
from cni_calico.kernel.filter.legacy.script import InKernel, count_rules, parse_saved
from cni_calico.kernel.filter.legacy.sets import IpSet, SetLine, parse_sets
from cni_calico.netfilter.tables import (
    UNRECOGNISED,
    UNRECOGNISED_STANDING,
    DropTable,
    NftChain,
    NftTable,
    Operation,
    TableId,
)

_POLICED = {chain_name(one) for one in ("from-workloads", "to-workloads", "workloads-to-host")}


class LegacyFilter:
    """For the network namespace of the thread that uses it."""

    at_once = True  # a table of iptables is replaced as a whole

    def __init__(self, marks: Marks, lock_s: float) -> None:
        self._lock_s = lock_s
        self._families = {family: FilterFamily(Compiler(marks)) for family in FAMILY.values()}
        self._counts: dict[int, programs.RuleCounts] = {}

    def close(self) -> None:
        for one in self._counts.values():
            one.close()
        self._counts.clear()

    def __enter__(self) -> LegacyFilter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def reader(self) -> None:
        return None  # iptables-save prints a whole table

    def forget_cached(self) -> None:
        """Nothing is kept that another load would not need."""

    # -- changes ------------------------------------------------------------------------------------------------------

    def apply(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        """As PacketFilter says, but a part of a refused change may be in force: other tables of iptables, sets."""
        try:
            changes = self._changes(operations, deadline)
            restore_sets(changes, [line for change in changes for line in change.sets_before()], deadline)
            for change in changes:
                change.switch(deadline, self._lock_s)
            restore_sets(changes, [line for change in changes for line in change.sets_after()], deadline)
        except BaseException:
            for one in self._families.values():
                one.doubted = True  # none of it is known to be in force, whatever is
            raise
        for change in changes:
            self._families[change.family] = change.after
            self._count(change.family)

    def check(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        """Whether iptables' program understands the rules; the kernel is not asked. Sets that they would need are there
        meanwhile, empty.
        """
        changes = self._changes(operations, deadline)
        made = [line for change in changes for line in change.sets_missing()]
        try:
            restore_sets(changes, made, deadline)
            for change in changes:
                change.switch(deadline, self._lock_s, test=True)
        finally:
            if made:
                for one in self._families.values():
                    one.doubted = True
                there = parse_sets(programs.read_sets(deadline))
                gone = [SetLine(f"destroy {line.name}", line.name) for line in made if line.name in there]
                restore_sets(changes, gone, deadline)

    def _changes(self, operations: Sequence[Operation], deadline: Deadline) -> list[FamilyChange]:
        """Raises RulesRefused for the first operation that cannot be expressed."""
        changes: list[FamilyChange] = []
        refused: list[RulesRefused] = []
        by_table: dict[TableId, list[tuple[int, Operation]]] = {}
        for i, operation in enumerate(operations):
            by_table.setdefault(operation.table, []).append((i, operation))
        for table in sorted(by_table, key=lambda table: -FAMILY.get(table.family, 0)):  # what has fewer users first
            family, numbered = FAMILY.get(table.family), by_table[table]
            if family is None:
                raise RulesRefused(f"iptables has no table {table}", errno=EOPNOTSUPP, index=numbered[0][0])
            mine = self._families[family]
            if mine.doubted:
                mine.held, mine.sets = self._read(family, deadline)
                mine.doubted = False
            try:
                changes.append(FamilyChange(family, mine, numbered))
            except RulesRefused as e:
                refused.append(e)
        if refused:
            raise min(refused, key=lambda e: e.index)
        return changes

    # -- what there is ------------------------------------------------------------------------------------------------

    def generation(self, deadline: Deadline) -> int:
        """There is no such number: each reading is as good as the next."""
        return 0

    def read_table(self, table: TableId, deadline: Deadline, likes: Sequence[NftTable] = ()) -> NftTable | None:
        """Raises KernelError."""
        family = FAMILY.get(table.family)
        if family is None:
            raise KernelError(f"iptables has no table {table}", errno=EOPNOTSUPP)
        before = self._families[family]
        held, sets = self._read(family, deadline)
        for known in filter(None, (before.known, *likes)):
            if is_as_read(known, before.compiler, held, sets, family):
                self._families[family] = FilterFamily(before.compiler, copy_of(known), held, sets)
                self._count(family)
                return copy_of(known)
        empty = NftTable(table.family, table.name)
        there = bool(held or sets)
        self._families[family] = FilterFamily(before.compiler, empty if there else None, held, sets, keeps=there)
        self._count(family)
        if not there:
            return None
        is_policed = any(not _POLICED.isdisjoint(chains) for chains in held.chains.values())
        name = UNRECOGNISED if is_policed else UNRECOGNISED_STANDING
        return NftTable(table.family, table.name, {name: NftChain(name)})

    def count_unrecognised(self, table: TableId, chains: Collection[str], deadline: Deadline) -> Mapping[str, int]:
        found = count_rules(programs.read_tables(FAMILY[table.family], deadline), set(map(chain_name, chains)))
        return {name: found[chain_name(name)] for name in chains}

    def recognises(self, table: TableId, there: NftChain, wanted: NftChain) -> bool:
        """One chain stands for all that was not recognised."""
        return False

    def _read(self, family: int, deadline: Deadline) -> tuple[InKernel, dict[str, IpSet]]:
        held = parse_saved(programs.read_tables(family, deadline))
        sets = parse_sets(programs.read_sets(deadline))
        return held, {name: one for name, one in sets.items() if one.family == family}

    def touched(self) -> bool:
        """Whether anybody has added or removed rules since our last change: a cheap test, which may miss some."""
        found = False
        for family, mine in self._families.items():
            found = found or (mine.known is not None and mine.counts != self._counted(family))
        return found

    def _count(self, family: int) -> None:
        self._families[family].counts = self._counted(family)

    def _counted(self, family: int) -> dict[str, tuple[int, ...]]:
        if family not in self._counts:
            if family == 6 and not programs.has_ipv6():
                return {}
            self._counts[family] = programs.RuleCounts(family)
        there = self._families[family].held.chains
        return {table: self._counts[family].read(table) for table in TABLES if there.get(table)}

    def remove(self, tables: Iterable[TableId], deadline: Deadline) -> bool:
        """Remove all that is ours in the families of ``tables``, whoever left it; returns whether there was any. Raises
        KernelError.
        """
        found = False
        for table in tables:
            family = FAMILY[table.family]
            held, sets = self._read(family, deadline)
            if held or sets:
                found = True
                compiler = self._families[family].compiler
                self._families[family] = FilterFamily(compiler, NftTable(table.family, table.name), held, sets)
                self.apply([DropTable(table)], deadline)
        return found
