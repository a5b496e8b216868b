"""The packet filter of a rehearsal: transactions change a copy of what the kernel has, and are described.

Rule: nothing is sent to the kernel but requests to list. Whoever reads a table that would have changed reads the copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.interface import PacketFilter, TableReader
from cni_calico.netfilter.tables import (
    UNRECOGNISED,
    UNRECOGNISED_STANDING,
    NftChain,
    NftTable,
    Operation,
    TableId,
    mirror,
)

_NAMED = 5
_STRANGE = frozenset((UNRECOGNISED, UNRECOGNISED_STANDING))


class RehearsedFilter:
    """A PacketFilter that changes nothing. ``reader`` None: it is read as a whole, which is what a rehearsal needs."""

    reader: TableReader | None = None

    def __init__(self, kernel: PacketFilter) -> None:
        self.at_once = kernel.at_once
        self._kernel = kernel
        self._found: dict[TableId, NftTable | None] = {}  # as it is
        self._changed: dict[TableId, NftTable] = {}  # as it would be
        self._touched: set[TableId] = set()

    def apply(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        for table in {operation.table for operation in operations} - self._touched:
            found = self._found.setdefault(table, None)
            if found is not None:
                self._changed[table] = _copied(found)
            self._touched.add(table)
        mirror(self._changed, operations)

    def check(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        """Everything is taken for acceptable: to ask the kernel would be to try."""

    def read_table(self, table: TableId, deadline: Deadline, likes: Sequence[NftTable] = ()) -> NftTable | None:
        if table in self._touched:
            changed = self._changed.get(table)
            return None if changed is None else _copied(changed)
        found = self._found[table] = self._kernel.read_table(table, deadline, likes)
        return None if found is None else _copied(found)

    def count_unrecognised(self, table: TableId, chains: Collection[str], deadline: Deadline) -> Mapping[str, int]:
        return self._kernel.count_unrecognised(table, chains, deadline)

    def recognises(self, table: TableId, there: NftChain, wanted: NftChain) -> bool:
        return self._kernel.recognises(table, there, wanted)

    def generation(self, deadline: Deadline) -> int:
        return self._kernel.generation(deadline)

    def forget_cached(self) -> None:
        """There is no cache of its own."""

    def was_there(self) -> bool:
        """Whether any of our tables is in the kernel."""
        return any(found is not None for found in self._found.values())

    def differences(self) -> list[str]:
        """In words, what would be other than it is."""
        said: list[str] = []
        for table, before in self._found.items():
            if table in self._touched:
                said += describe_tables(table, before, self._changed.get(table))
        return said


def _copied(table: NftTable) -> NftTable:
    return replace(
        table,
        chains=dict(table.chains),
        sets=dict(table.sets),
        elements={name: set(elements) for name, elements in table.elements.items()},
        verdicts={name: dict(verdicts) for name, verdicts in table.verdicts.items()},
    )


def describe_tables(table: TableId, before: NftTable | None, after: NftTable | None) -> list[str]:
    """A line for the table if it is new or gone, else for each kind of difference."""
    if after is None:
        return [] if before is None else [f"remove table {table}"]
    if before is None:
        rules = sum(len(chain.rules) for chain in after.chains.values())
        counts = (len(after.chains), "chain"), (rules, "rule"), (len(after.sets), "set")
        return [f"add table {table}: {', '.join(f'{n} {what}' + 's' * (n != 1) for n, what in counts)}"]
    return [f"table {table}: {text}" for text in _differences(before, after)]


def _differences(before: NftTable, after: NftTable) -> Iterator[str]:
    strange = _STRANGE & before.chains.keys()
    if strange:
        yield "replace rules that this version does not know"
    kept = before.chains.keys() & after.chains.keys()
    yield from _listed("add", "chain", after.chains.keys() - before.chains.keys())
    yield from _listed("remove", "chain", before.chains.keys() - after.chains.keys() - strange)
    yield from _listed("change", "chain", {name for name in kept if before.chains[name] != after.chains[name]})
    yield from _listed("add", "set", after.sets.keys() - before.sets.keys())
    yield from _listed("remove", "set", before.sets.keys() - after.sets.keys())
    for name in sorted(before.sets.keys() & after.sets.keys()):
        held, wanted = _members(before, name), _members(after, name)
        if held != wanted or before.sets[name] != after.sets[name]:
            more, fewer = len(wanted - held), len(held - wanted)
            yield f"change set {name}: {more} members more, {fewer} fewer"


def _members(table: NftTable, name: str) -> frozenset[object]:
    return frozenset((*table.elements.get(name, ()), *table.verdicts.get(name, {}).items()))


def _listed(verb: str, what: str, names: Collection[str]) -> Iterator[str]:
    if names:
        shown = sorted(names)
        more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
        yield f"{verb} {what}{'s' if len(shown) > 1 else ''} {', '.join(shown[:_NAMED])}{more}"
