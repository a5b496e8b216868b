"""What a transaction changes in one family of legacy iptables, and what is known of that family.

Rule: nothing is written before every operation of the family is known to have an expression in iptables. IP sets are
made before the rules that look them up, and removed after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from errno import EOPNOTSUPP

from cni_calico.deadline import Deadline
from cni_calico.errors import RulesRefused
from cni_calico.kernel.filter.legacy import programs
from cni_calico.kernel.filter.legacy.layout import Compiler
from cni_calico.kernel.filter.legacy.matches import FAMILY
from cni_calico.kernel.filter.legacy.names import set_name
from cni_calico.kernel.filter.legacy.placement import Layout, NotExpressed
from cni_calico.kernel.filter.legacy.script import InKernel, RestoreLine, in_kernel, plan, same
from cni_calico.kernel.filter.legacy.sets import IpSet, SetLine, change_set, kind_of, members_of, sets_of
from cni_calico.netfilter.tables import (
    UNRECOGNISED,
    UNRECOGNISED_STANDING,
    AddElements,
    AddRules,
    AddSet,
    AddVerdicts,
    DropChain,
    DropElements,
    DropTable,
    NftTable,
    Operation,
    TableId,
    mirror,
    object_of,
)

_PLACEHOLDERS = (UNRECOGNISED, UNRECOGNISED_STANDING)


@dataclass(slots=True)
class FilterFamily:
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


class FamilyChange:
    """What a transaction changes in one family."""

    def __init__(self, family: int, before: FilterFamily, operations: Sequence[tuple[int, Operation]]) -> None:
        self.family = family
        self._before = before
        self._operations = operations
        table = operations[0][1].table
        tables = {} if before.known is None else {table: copy_of(before.known, [o for _, o in operations])}
        mirror_known(tables, [operation for _, operation in operations])
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
        if family == 6 and not programs.has_ipv6():
            self.lines, self.wanted = list[RestoreLine](), dict[str, IpSet]()
            self.after = FilterFamily(before.compiler, known, keeps=keeps)
            return
        self.lines = plan(before.held, layout, keep=keeps)
        self.wanted = _wanted_sets(known, before, operations)
        held = _merged(before.held, in_kernel(layout)) if keeps else in_kernel(layout)
        sets = {**before.sets, **self.wanted} if keeps else self.wanted
        self.after = FilterFamily(before.compiler, known, held, sets, keeps)

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
            programs.restore(self.family, _script(self.lines), deadline, lock_s=lock_s, test=test)
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


def mirror_known(tables: dict[TableId, NftTable], operations: Sequence[Operation]) -> None:
    """As mirror, without the chain that stands for what was not recognised."""
    mirror(tables, [o for o in operations if object_of(o)[1] not in _PLACEHOLDERS])


def restore_sets(changes: Sequence[FamilyChange], lines: Sequence[SetLine], deadline: Deadline) -> None:
    """Those of all families at once."""
    if not lines:
        return
    try:
        programs.restore_sets("".join(f"{line.text}\n" for line in lines), deadline)
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
    known: NftTable | None, before: FilterFamily, operations: Sequence[tuple[int, Operation]]
) -> dict[str, IpSet]:
    """The IP sets that there should be; one that no operation changes is the same object as before."""
    if known is None:
        return {}
    changes = (operation for _, operation in operations)
    touched = {one.spec.name for one in changes if isinstance(one, AddSet | AddElements | DropElements)}
    family = FAMILY[known.family]
    found = {}
    for name, spec in sets_of(known).items():
        there = before.sets.get(name)
        if there is None or spec.name in touched or there.kind != kind_of(spec):
            there = IpSet(kind_of(spec), family, members_of(spec, known.elements.get(spec.name, ())))
        found[name] = there
    return found


def is_as_read(known: NftTable, compiler: Compiler, held: InKernel, sets: dict[str, IpSet], family: int) -> bool:
    """Whether the table gives exactly what was read."""
    if family == 6 and not programs.has_ipv6():
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


def copy_of(table: NftTable, operations: Sequence[Operation] | None = None) -> NftTable:
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
