"""A kernel's packet filter in memory: holds tables, keeps generations, refuses what nf_tables refuses.

Rule: kept equal to the real one by tests/contract/test_packet_filter.py, which runs against both. A transaction works
on a copy and is kept only as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from errno import EBUSY, EEXIST, EINVAL, ELOOP, EMLINK, ENOENT, EOPNOTSUPP
from typing import TypeVar

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError, RulesRefused, RulesUnknown
from cni_calico.kernel.filter.interface import Atom, TableReader
from cni_calico.netfilter.rules import Dispatch, DispatchMark, NftRule, PacketVerdict
from cni_calico.netfilter.tables import (
    AddChain,
    AddElements,
    AddRules,
    AddSet,
    AddTable,
    AddVerdicts,
    DropChain,
    DropElements,
    DropSet,
    DropTable,
    FlushChain,
    NftChain,
    NftSet,
    NftTable,
    Operation,
    TableId,
)

T = TypeVar("T")
JUMPS = 16  # chains deep


class _Refused(Exception):
    def __init__(self, errno: int) -> None:
        super().__init__(os.strerror(errno))
        self.errno = errno


@dataclass
class FakePacketFilter:
    """``refuse``: asked about every operation, an errno makes the kernel refuse it; ``lose``: answers are lost.

    ``says_which``: False for a kernel that refuses transactions as a whole, without saying what it refuses.
    ``checks``: False for one that finds out only when it commits.
    """

    at_once = False
    tables: dict[TableId, NftTable] = field(default_factory=dict)
    transactions: list[tuple[Operation, ...]] = field(default_factory=list)
    refuse: Callable[[Operation], int] = lambda operation: 0
    lose: int = 0
    says_which: bool = True
    checks: bool = True
    _generation: int = 1

    def apply(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        deadline.require("change the packet filter's rules")
        if not operations:
            return
        self.tables = self._tried(operations, self.refuse)
        self.transactions.append(tuple(operations))
        self._generation += 1
        if self.lose:
            self.lose -= 1
            raise RulesUnknown("cannot change the rules: the answer was lost")

    def check(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        deadline.require("check the packet filter's rules")
        self._tried(operations, self.refuse if self.checks else lambda operation: 0)

    def _tried(self, operations: Sequence[Operation], refuse: Callable[[Operation], int]) -> dict[TableId, NftTable]:
        """What a transaction leads to; like the kernel it goes on after an error, to say them all."""
        tables = {table: _copied(content) for table, content in self.tables.items()}
        errors = {}
        for i, operation in enumerate(operations):
            try:
                errno = refuse(operation)
                if errno:
                    raise _Refused(errno)
                _carry_out(tables, operation)
            except _Refused as e:
                errors[i] = e.errno
        if errors:
            index = min(errors)
            errno = errors.pop(index)
            text = f"cannot change the rules: {os.strerror(errno)}"
            if not self.says_which:
                raise RulesRefused(text, errno=errno)
            refused = RulesRefused(text, errno=errno, index=index)
            refused.others = tuple(errors.items())
            raise refused
        try:
            for table in tables.values():
                _require_no_loops(table)
        except _Refused as e:
            raise RulesRefused(f"cannot change the rules: {e}", errno=e.errno) from e
        return tables

    def read_table(self, table: TableId, deadline: Deadline, likes: Sequence[NftTable] = ()) -> NftTable | None:
        """It knows every rule: nothing has to be recognised."""
        deadline.require("read a table")
        found = self.tables.get(table)
        return None if found is None else _copied(found)

    def count_unrecognised(self, table: TableId, chains: Collection[str], deadline: Deadline) -> Mapping[str, int]:
        deadline.require("count rules")
        return {}

    def recognises(self, table: TableId, there: NftChain, wanted: NftChain) -> bool:
        return there.rules == wanted.rules

    def generation(self, deadline: Deadline) -> int:
        deadline.require("read the generation")
        return self._generation

    @property
    def reader(self) -> TableReader:
        return _PieceReader(self)

    def forget_cached(self) -> None:
        """Nothing is cached."""

    def flush_ruleset(self) -> None:
        """As an administrator's ``nft flush ruleset``."""
        self.tables = {}
        self._generation += 1


_PIECE = 2


@dataclass
class _PieceReader:
    """What it lists is what there is when each piece is asked for."""

    kernel: FakePacketFilter

    def _in_pieces(self, list_all: Callable[[NftTable], Sequence[T]], table: TableId) -> Iterator[list[T]]:
        at = 0
        while True:
            found = self.kernel.tables.get(table)
            listed = [] if found is None else list(list_all(found))
            yield listed[at : at + _PIECE]
            at += _PIECE
            if at >= len(listed):
                return

    def sets(self, table: TableId, deadline: Deadline) -> Iterator[list[NftSet]]:
        return self._in_pieces(lambda found: list(found.sets.values()), table)

    def chains(self, table: TableId, deadline: Deadline) -> Iterator[list[NftChain]]:
        return self._in_pieces(lambda found: [replace(chain, rules=()) for chain in found.chains.values()], table)

    def compare_rules(self, table: TableId, chain: NftChain, deadline: Deadline) -> Iterator[bool]:
        name, there = chain.name, list[NftRule]()
        found = self.kernel.tables.get(table)
        if found is None or name not in found.chains:
            raise KernelError("cannot list rules: there is no such chain", errno=ENOENT)
        for part in self._in_pieces(lambda found: found.chains[name].rules if name in found.chains else (), table):
            there += part
            yield tuple(there) == chain.rules[: len(there)]
        yield tuple(there) == chain.rules

    def elements(self, table: TableId, spec: NftSet, deadline: Deadline) -> Iterator[list[Atom]]:
        found = self.kernel.tables.get(table)
        if found is None or spec.name not in found.sets:
            raise KernelError("cannot list elements: there is no such set", errno=ENOENT)
        return self._in_pieces(lambda found: list(_atoms(found, spec)), table)

    def reset(self) -> None:
        pass


def _atoms(table: NftTable, spec: NftSet) -> Iterator[Atom]:
    if spec.verdicts:
        yield from table.verdicts.get(spec.name, {}).items()
    for element in sorted(table.elements.get(spec.name, ())):
        if not spec.interval:
            yield element
            continue
        yield element[: spec.key_bytes], False
        behind = int.from_bytes(element[spec.key_bytes :], "big") + 1
        if behind < 1 << 8 * spec.key_bytes:
            yield behind.to_bytes(spec.key_bytes, "big"), True


def _copied(table: NftTable) -> NftTable:
    """Chains and sets are values; what holds them is not."""
    return NftTable(
        table.family,
        table.name,
        dict(table.chains),
        dict(table.sets),
        {name: set(elements) for name, elements in table.elements.items()},
        {name: dict(verdicts) for name, verdicts in table.verdicts.items()},
    )


def _carry_out(tables: dict[TableId, NftTable], operation: Operation) -> None:
    if isinstance(operation, AddTable):
        tables.setdefault(operation.table, NftTable(operation.table.family, operation.table.name))
        return
    table = tables.get(operation.table)
    if table is None:
        raise _Refused(ENOENT)
    if isinstance(operation, DropTable):
        del tables[operation.table]
    elif isinstance(operation, AddChain | FlushChain | DropChain | AddRules):
        _change_chain(table, operation)
    else:
        _change_set(table, operation)


def _change_chain(table: NftTable, operation: AddChain | FlushChain | DropChain | AddRules) -> None:
    name = operation.chain if isinstance(operation, AddRules) else operation.name
    chain = table.chains.get(name)
    if isinstance(operation, AddChain):
        if chain is None:
            table.chains[name] = NftChain(name, (), operation.hook)
        elif operation.hook is not None and chain.hook != operation.hook:
            raise _Refused(EEXIST if chain.hook is None else EOPNOTSUPP)
        return
    if chain is None:
        raise _Refused(ENOENT)
    if isinstance(operation, FlushChain):
        table.chains[name] = replace(chain, rules=())
    elif isinstance(operation, DropChain):
        if any(target == name for owner, target in _jumps(table) if owner != name):
            raise _Refused(EBUSY)
        del table.chains[name]
    else:
        for rule in operation.rules:
            maps = {action.name for action in rule.actions if isinstance(action, Dispatch | DispatchMark)}
            for looked_up in rule.lookups():
                if looked_up not in table.sets:
                    raise _Refused(ENOENT)
                if table.sets[looked_up].verdicts is not (looked_up in maps):
                    raise _Refused(EINVAL)
            if rule.verdict is not None:
                _require_target(table, rule.verdict)
        table.chains[name] = replace(chain, rules=chain.rules + operation.rules)


def _require_target(table: NftTable, verdict: PacketVerdict) -> None:
    if verdict.kind not in ("jump", "goto"):
        return
    target = table.chains.get(verdict.chain)
    if target is None:
        raise _Refused(ENOENT)
    if target.hook is not None:
        raise _Refused(EOPNOTSUPP)


def _change_set(table: NftTable, operation: AddSet | DropSet | AddElements | DropElements | AddVerdicts) -> None:
    if isinstance(operation, AddSet):
        name = operation.spec.name
        there = table.sets.setdefault(name, operation.spec)
        if there != operation.spec:
            raise _Refused(EEXIST)
        (table.verdicts if there.verdicts else table.elements).setdefault(name, {} if there.verdicts else set())
        return
    name = operation.name if isinstance(operation, DropSet) else operation.spec.name
    spec = table.sets.get(name)
    if spec is None:
        raise _Refused(ENOENT)
    if isinstance(operation, DropSet):
        if name in _lookups(table):
            raise _Refused(EBUSY)
        del table.sets[name]
        table.elements.pop(name, None)
        table.verdicts.pop(name, None)
    elif isinstance(operation, AddVerdicts):
        for key, verdict in operation.verdicts.items():
            _require_target(table, verdict)
            if table.verdicts[name].setdefault(key, verdict) != verdict:
                raise _Refused(EEXIST)
    elif isinstance(operation, AddElements):
        for element in sorted(operation.elements):
            if spec.interval and element not in table.elements[name]:
                size = spec.key_bytes
                for other in table.elements[name]:
                    if element[:size] <= other[size:] and other[:size] <= element[size:]:
                        raise _Refused(EEXIST)
            table.elements[name].add(element)
    else:
        held: set[bytes] | dict[bytes, PacketVerdict] = table.verdicts[name] if spec.verdicts else table.elements[name]
        for element in operation.elements:
            if element not in held:
                raise _Refused(ENOENT)
            if isinstance(held, set):
                held.remove(element)
            else:
                del held[element]


def _jumps(table: NftTable) -> list[tuple[str, str]]:
    """(chain or "" for a map, chain it leads to)."""
    found = []
    for chain in table.chains.values():
        for rule in chain.rules:
            if rule.verdict is not None and rule.verdict.chain:
                found.append((chain.name, rule.verdict.chain))
    for verdicts in table.verdicts.values():
        found += [("", verdict.chain) for verdict in verdicts.values() if verdict.chain]
    return found


def _lookups(table: NftTable) -> set[str]:
    chains = table.chains.values()
    rules = (rule for chain in chains for rule in chain.rules)
    return {name for rule in rules for name in rule.lookups()}


def _require_no_loops(table: NftTable) -> None:
    leads: dict[str, set[str]] = {}
    for chain in table.chains.values():
        targets = leads.setdefault(chain.name, set())
        for rule in chain.rules:
            for action in rule.actions:
                if isinstance(action, PacketVerdict) and action.chain:
                    targets.add(action.chain)
                if isinstance(action, Dispatch | DispatchMark):
                    targets.update(v.chain for v in table.verdicts[action.name].values() if v.chain)

    def walk(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise _Refused(ELOOP)
        if len(path) >= JUMPS:
            raise _Refused(EMLINK)
        for target in leads.get(name, ()):
            walk(target, (*path, name))

    for chain in table.chains.values():
        if chain.hook is not None:
            walk(chain.name, ())
