"""Legacy iptables and IP sets as a packet filter for the engine: the same operations as for nf_tables.

Rule: this module remembers the tables as values and what they became in iptables. Each change compiles what it
touched, compares that with what is remembered, and writes the difference; the kernel is read again only after something
unexpected. iptables' rules cannot be turned back into values: if what was read is what the remembered tables give, or
the wanted ones (``like``), it is recognised. Otherwise everything is planned from the start, and what is there stays
until the last transaction, which removes things.

IP sets are made and filled before the rules that look them up, and removed after them: one program's run for the sets
of both families, one for each family's rules, and one for the sets that go. A script is one transaction for each table
of iptables. So, unlike with nf_tables, a change of several tables, of both families, or of sets and rules is several
transactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from errno import EOPNOTSUPP

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError, RulesRefused
from cni_calico.kernel.filter import legacy
from cni_calico.model.netfilter import (
    AddElements,
    AddRules,
    AddSet,
    AddVerdicts,
    DropChain,
    DropElements,
    DropTable,
    NftChain,
    NftTable,
    Operation,
    TableId,
)
from cni_calico.nodeagent.dataplane.policy import standing
from cni_calico.nodeagent.dataplane.policy.delta import follow
from cni_calico.nodeagent.dataplane.policy.legacy.layout import TABLES, Compiler, Layout, NotExpressed
from cni_calico.nodeagent.dataplane.policy.legacy.matches import Marks
from cni_calico.nodeagent.dataplane.policy.legacy.names import chain_name, set_name
from cni_calico.nodeagent.dataplane.policy.legacy.script import (
    InKernel,
    RestoreLine,
    in_kernel,
    parse_saved,
    plan,
    same,
)
from cni_calico.nodeagent.dataplane.policy.legacy.sets import (
    IpSet,
    SetLine,
    change_set,
    kind_of,
    members_of,
    parse_sets,
    sets_of,
)
from cni_calico.nodeagent.dataplane.policy.refused import object_of
from cni_calico.nodeagent.dataplane.policy.tables import FILTER
from cni_calico.nodeagent.policing.no_pieces import NoPieces

# chains that stand for whatever is there, and for standing rules: removing one removes that
UNRECOGNISED = "unrecognised"
_PLACEHOLDERS = (UNRECOGNISED, standing.UNRECOGNISED)
_POLICED = {chain_name(one) for one in ("from-workloads", "to-workloads", "workloads-to-host")}
_FAMILIES = {table: family for family, table in FILTER.items()}


@dataclass(slots=True)
class _Family:
    """``known``: the table as values, None if there is none. ``held``, ``sets``: what is in the kernel.

    ``keeps``: the kernel has more than what is known, and that stays for now. ``doubted``: a change was refused or
    interrupted, so that the kernel may have a part of it.
    """

    compiler: Compiler
    known: NftTable | None = None
    held: InKernel = field(default_factory=InKernel)
    sets: dict[str, IpSet] = field(default_factory=dict)
    keeps: bool = False
    doubted: bool = False
    counts: dict[str, tuple[int, ...]] = field(default_factory=dict)


class LegacyFilter:
    """For the network namespace of the thread that uses it."""

    at_once = True  # a table of iptables is replaced as a whole

    def __init__(self, marks: Marks, lock_s: float) -> None:
        self._lock_s = lock_s
        self._families = {family: _Family(Compiler(marks)) for family in FILTER}
        self._counts: dict[int, legacy.RuleCounts] = {}
        self._marks = marks

    def close(self) -> None:
        for one in self._counts.values():
            one.close()
        self._counts.clear()

    def __enter__(self) -> LegacyFilter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def reader(self) -> NoPieces:
        return NoPieces()

    # -- changes ------------------------------------------------------------------------------------------------------

    def apply(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        """As PacketFilter says, but a part of a refused change may be in force: other tables of iptables, sets."""
        try:
            changes = self._changes(operations, deadline)
            _restore_sets(changes, [line for change in changes for line in change.sets_before()], deadline)
            for change in changes:
                change.switch(deadline, self._lock_s)
            _restore_sets(changes, [line for change in changes for line in change.sets_after()], deadline)
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
            _restore_sets(changes, made, deadline)
            for change in changes:
                change.switch(deadline, self._lock_s, test=True)
        finally:
            if made:
                for one in self._families.values():
                    one.doubted = True
                there = parse_sets(legacy.read_sets(deadline))
                gone = [SetLine(f"destroy {line.name}", line.name) for line in made if line.name in there]
                _restore_sets(changes, gone, deadline)

    def _changes(self, operations: Sequence[Operation], deadline: Deadline) -> list[_FamilyChange]:
        """Raises RulesRefused for the first operation that cannot be expressed."""
        changes: list[_FamilyChange] = []
        refused: list[RulesRefused] = []
        by_table: dict[TableId, list[tuple[int, Operation]]] = {}
        for i, operation in enumerate(operations):
            by_table.setdefault(operation.table, []).append((i, operation))
        for table in sorted(by_table, key=lambda table: -_FAMILIES.get(table, 0)):  # what has fewer users first
            family, numbered = _FAMILIES.get(table), by_table[table]
            if family is None:
                raise RulesRefused(f"iptables has no table {table}", errno=EOPNOTSUPP, index=numbered[0][0])
            mine = self._families[family]
            if mine.doubted:
                mine.held, mine.sets = self._read(family, deadline)
                mine.doubted = False
            try:
                changes.append(_FamilyChange(family, mine, numbered))
            except RulesRefused as e:
                refused.append(e)
        if refused:
            raise min(refused, key=lambda e: e.index)
        return changes

    # -- what there is ------------------------------------------------------------------------------------------------

    def generation(self, deadline: Deadline) -> int:
        """There is no such number: each reading is as good as the next."""
        return 0

    def read_table(self, table: TableId, deadline: Deadline, like: NftTable | None = None) -> NftTable | None:
        """``like``: what is probably there. Raises KernelError."""
        family = _FAMILIES.get(table)
        if family is None:
            raise KernelError(f"iptables has no table {table}", errno=EOPNOTSUPP)
        before = self._families[family]
        held, sets = self._read(family, deadline)
        for known in filter(None, (before.known, like)):
            if _is(known, before.compiler, held, sets, family):
                self._families[family] = _Family(before.compiler, _copy(known), held, sets)
                self._count(family)
                return _copy(known)
        empty = NftTable(table.family, table.name)
        there = bool(held or sets)
        self._families[family] = _Family(before.compiler, empty if there else None, held, sets, keeps=there)
        self._count(family)
        if not there:
            return None
        is_policed = any(not _POLICED.isdisjoint(chains) for chains in held.chains.values())
        name = UNRECOGNISED if is_policed else standing.UNRECOGNISED
        return NftTable(table.family, table.name, {name: NftChain(name)})

    def _read(self, family: int, deadline: Deadline) -> tuple[InKernel, dict[str, IpSet]]:
        held = parse_saved(legacy.read_tables(family, deadline))
        sets = parse_sets(legacy.read_sets(deadline))
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
            if family == 6 and not legacy.has_ipv6():
                return {}
            self._counts[family] = legacy.RuleCounts(family)
        there = self._families[family].held.chains
        return {table: self._counts[family].read(table) for table in TABLES if there.get(table)}

    def remove(self, deadline: Deadline) -> bool:
        """Remove all that is ours, whoever left it; returns whether there was any. Raises KernelError."""
        found = False
        for table, family in _FAMILIES.items():
            held, sets = self._read(family, deadline)
            if held or sets:
                found = True
                compiler = self._families[family].compiler
                self._families[family] = _Family(compiler, NftTable(table.family, table.name), held, sets)
                self.apply([DropTable(table)], deadline)
        return found


class _FamilyChange:
    """What a transaction changes in one family."""

    def __init__(self, family: int, before: _Family, operations: Sequence[tuple[int, Operation]]) -> None:
        self.family = family
        self._before = before
        self._operations = operations
        table = operations[0][1].table
        tables = {} if before.known is None else {table: _copy(before.known, [o for _, o in operations])}
        follow_known(tables, [operation for _, operation in operations])
        known = tables.get(table)
        all_removed = any(
            isinstance(o, DropTable) or (isinstance(o, DropChain) and o.name in _PLACEHOLDERS) for _, o in operations
        )
        keeps = before.keeps and not all_removed
        try:
            layout = before.compiler.layout(known) if known is not None else Layout()
        except NotExpressed as e:
            all_faults = before.compiler.faults(known) if known is not None else ()
            faults = [(self._index_of_fault(one), str(one)) for one in all_faults]
            index, why = min((one for one in faults if one[0] >= 0), default=(-1, str(e)))
            raise RulesRefused(why, errno=EOPNOTSUPP, index=index) from e
        if family == 6 and not legacy.has_ipv6():
            self.lines, self.wanted = list[RestoreLine](), dict[str, IpSet]()
            self.after = _Family(before.compiler, known, keeps=keeps)
            return
        self.lines = plan(before.held, layout, keep=keeps)
        self.wanted = _wanted_sets(known, before, operations)
        held = _merged(before.held, in_kernel(layout)) if keeps else in_kernel(layout)
        sets = {**before.sets, **self.wanted} if keeps else self.wanted
        self.after = _Family(before.compiler, known, held, sets, keeps)

    def sets_before(self) -> Iterator[SetLine]:
        """What sets need before the rules."""
        before = self._before.sets
        for name, one in self.wanted.items():
            if one is not before.get(name):
                yield from change_set(name, one, before.get(name))

    def sets_missing(self) -> Iterator[SetLine]:
        """What makes the new sets, empty."""
        for name in self.wanted.keys() - self._before.sets.keys():
            yield SetLine(self.wanted[name].create(name), name)

    def sets_after(self) -> Iterator[SetLine]:
        """The sets that go after the rules."""
        for name in sorted(self._before.sets.keys() - self.after.sets.keys()):
            yield SetLine(f"destroy {name}", name)

    def switch(self, deadline: Deadline, lock_s: float, *, test: bool = False) -> None:
        """The rules."""
        if not self.lines:
            return
        try:
            legacy.restore(self.family, _script(self.lines), deadline, lock_s=lock_s, test=test)
        except RulesRefused as e:
            chain = self.lines[e.index].chain if 0 <= e.index < len(self.lines) else ""
            e.index = self._index_of_chain(chain) if chain else -1
            raise

    def index_of_set(self, name: str) -> int:
        """The operation that changed an IP set; -1 for none."""
        return next((i for i, o in self._operations if _changed_set(o, self.family) == name), -1)

    def _index_of_chain(self, name: str) -> int:
        """The operation that wrote a chain of iptables; -1 for none."""
        from_names = self._before.compiler.source_of(name)
        return next((i for i, o in self._operations if isinstance(o, AddRules) and o.chain == from_names), -1)

    def _index_of_fault(self, fault: NotExpressed) -> int:
        for i, operation in self._operations:
            if isinstance(operation, AddRules) and operation.chain == fault.chain:
                return i
            if isinstance(operation, AddVerdicts) and operation.spec.name == fault.map_name:
                if fault.key in operation.verdicts:
                    return i
        return -1


def follow_known(tables: dict[TableId, NftTable], operations: Sequence[Operation]) -> None:
    """As delta.follow, without the chain that stands for what was not recognised."""
    follow(tables, [o for o in operations if object_of(o)[1] not in _PLACEHOLDERS])


def _restore_sets(changes: Sequence[_FamilyChange], lines: Sequence[SetLine], deadline: Deadline) -> None:
    """Those of all families at once."""
    if not lines:
        return
    try:
        legacy.restore_sets("".join(f"{line.text}\n" for line in lines), deadline)
    except RulesRefused as e:
        name = lines[e.index].name if 0 <= e.index < len(lines) else ""
        e.index = max((change.index_of_set(name) for change in changes), default=-1) if name else -1
        raise


def _script(lines: Sequence[RestoreLine]) -> str:
    return "".join(f"{line.text}\n" for line in lines)


def _merged(there: InKernel, new: InKernel) -> InKernel:
    chains = {table: dict(chains) for table, chains in there.chains.items()}
    for table, more in new.chains.items():
        chains.setdefault(table, {}).update(more)
    return InKernel(chains, {**there.jumps, **new.jumps})


def _changed_set(operation: Operation, family: int) -> str:
    """The name of the IP set that an operation makes or changes."""
    if isinstance(operation, AddSet | AddElements | DropElements):
        return set_name(operation.spec.name, family)
    return ""


def _wanted_sets(
    known: NftTable | None, before: _Family, operations: Sequence[tuple[int, Operation]]
) -> dict[str, IpSet]:
    """The IP sets that there should be; one that no operation changes is the same object as before."""
    if known is None:
        return {}
    changes = (operation for _, operation in operations)
    touched = {one.spec.name for one in changes if isinstance(one, AddSet | AddElements | DropElements)}
    family = _FAMILIES[TableId(known.family, known.name)]
    found = {}
    for name, spec in sets_of(known).items():
        there = before.sets.get(name)
        if there is None or spec.name in touched or there.kind != kind_of(spec):
            there = IpSet(kind_of(spec), family, members_of(spec, known.elements.get(spec.name, ())))
        found[name] = there
    return found


def _is(known: NftTable, compiler: Compiler, held: InKernel, sets: dict[str, IpSet], family: int) -> bool:
    """Whether the table gives exactly what was read."""
    if family == 6 and not legacy.has_ipv6():
        return True
    try:
        layout = compiler.layout(known)
    except NotExpressed:
        return False
    wanted = {
        name: IpSet(kind_of(spec), family, members_of(spec, known.elements.get(spec.name, ())))
        for name, spec in sets_of(known).items()
    }
    return sets == wanted and same(held, in_kernel(layout))


def _copy(table: NftTable, operations: Sequence[Operation] | None = None) -> NftTable:
    """A copy; with ``operations``, only the sets that they change are copied."""
    changed = None if operations is None else {object_of(operation)[1] for operation in operations}
    return NftTable(
        table.family,
        table.name,
        dict(table.chains),
        dict(table.sets),
        {name: set(some) if changed is None or name in changed else some for name, some in table.elements.items()},
        {name: dict(some) for name, some in table.verdicts.items()},
    )
