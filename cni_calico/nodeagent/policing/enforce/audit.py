"""The full comparison of the kernel's tables with what we put there, in slices, between other work.

Rule: no slice takes much longer than its budget, however many rules and members there are. If our own transactions
touch an object while it is being read, it is read again; after a few such reads it is left to the next comparison. A
finding is only a suspicion: the code that repairs reads again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from errno import ENOENT
from itertools import islice

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.interface import TableReader
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
    NftSet,
    NftTable,
    Operation,
    TableId,
)
from cni_calico.nodeagent.policing.schedule import AUDIT_S

_OBJECT_S = 60.0
_ATTEMPTS = 3
_AT_ONCE = 1000  # elements prepared for the comparison without checking the time

ChangedObject = tuple[TableId, str]  # an object; "" for the table itself
_SETS, _CHAINS = " sets", " chains"  # stands for the lists of a table; no object has this name


class Audit:
    """Compares the tables that ``held`` returns at that moment with the kernel's. ``ended``: the number of finished
    comparisons. ``reader`` None: nothing can be read in slices, and no comparison ever runs.
    """

    def __init__(
        self,
        reader: TableReader | None,
        held: Callable[[], Mapping[TableId, NftTable]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ended = 0
        self.slices = 0
        self._reader = reader
        self._held = held
        self._clock = clock
        self._steps: Iterator[str] | None = None
        self._changed: set[ChangedObject] = set()  # by ourselves, since the present object was begun

    @property
    def is_running(self) -> bool:
        return self._steps is not None

    def begin(self) -> None:
        """Start again, even if a comparison is under way."""
        self.give_up()
        if self._reader is not None:
            self._steps = self._compare()

    def give_up(self) -> None:
        if self._steps is not None:
            self._steps = None
            self._pieces.reset()

    @property
    def _pieces(self) -> TableReader:
        assert self._reader is not None  # or nothing would have begun
        return self._reader

    def mirror(self, operations: Iterable[Operation]) -> None:
        """Take note of our own transaction, which is in force."""
        if self._steps is not None:
            for operation in operations:
                self._changed.update((operation.table, name) for name in _objects_of(operation))

    def step(self, budget_s: float = AUDIT_S) -> str:
        """Continue for that long; returns the difference found, "" for none so far. Raises KernelError."""
        if self._steps is None:
            return ""
        self.slices += 1
        end = self._clock() + budget_s
        try:
            for found in self._steps:
                if found:
                    self.give_up()
                    return found
                if self._clock() >= end:
                    return ""
        except BaseException:
            self.give_up()
            raise
        self._steps = None
        self.ended += 1
        return ""

    # -- steps: "" goes on, a text is a difference --------------------------------------------------------------------

    def _compare(self) -> Iterator[str]:
        for table in tuple(self._held()):
            yield from self._repeated(table, _SETS, self._sets)
            yield from self._repeated(table, _CHAINS, self._chains)
            for name in tuple(self._table(table).sets):
                yield from self._repeated(table, name, self._elements)
            for name in tuple(self._table(table).chains):
                yield from self._repeated(table, name, self._rules)

    def _table(self, table: TableId) -> NftTable:
        return self._held().get(table) or NftTable(table.family, table.name)

    def _sets(self, table: TableId, _: str) -> Iterator[str]:
        found: dict[str, object] = {}
        for part in self._pieces.sets(table, Deadline.after(_OBJECT_S)):
            found.update((spec.name, spec) for spec in part)
            yield ""
        yield _difference(f"sets of table {table}", dict(self._table(table).sets), found)

    def _chains(self, table: TableId, _: str) -> Iterator[str]:
        found: dict[str, object] = {}
        for part in self._pieces.chains(table, Deadline.after(_OBJECT_S)):
            found.update((chain.name, chain.hook) for chain in part)
            yield ""
        held = {name: chain.hook for name, chain in self._table(table).chains.items()}
        yield _difference(f"chains of table {table}", dict(held), found)

    def _repeated(self, table: TableId, name: str, read: Callable[[TableId, str], Iterator[str]]) -> Iterator[str]:
        """Repeat until no transaction of ours came in between; ``read`` yields its finding last."""
        for _ in range(_ATTEMPTS):
            self._changed.clear()
            found = ""
            try:
                for finding in read(table, name):
                    found = finding
                    yield ""
            except KernelError as e:
                if e.errno != ENOENT:
                    raise
                found = f"{name} of table {table} is gone"
            if self._changed.isdisjoint(((table, name), (table, ""))):
                yield found
                return

    def _rules(self, table: TableId, name: str) -> Iterator[str]:
        chain = self._table(table).chains.get(name)
        if chain is None:
            return
        found = ""
        for is_same in self._pieces.compare_rules(table, chain, Deadline.after(_OBJECT_S)):
            yield ""
            found = "" if is_same else f"rules of chain {name} of table {table}"
        yield found

    def _elements(self, table: TableId, name: str) -> Iterator[str]:
        spec = self._table(table).sets.get(name)
        if spec is None:
            return
        wanted: set[object] = set()
        yield from _atoms(self._table(table), spec, wanted)
        count, strange = 0, False
        for part in self._pieces.elements(table, spec, Deadline.after(_OBJECT_S)):
            count += len(part)
            strange = strange or not wanted.issuperset(part)
            yield ""
        yield f"members of {name} of table {table}" if strange or count != len(wanted) else ""


def _atoms(table: NftTable, spec: NftSet, wanted: set[object]) -> Iterator[str]:
    """Fill ``wanted`` with what the reader will return for the elements."""
    elements: Iterable[object]
    if spec.verdicts:
        elements = tuple(table.verdicts.get(spec.name, {}).items())
    elif spec.interval:
        elements = _ends(tuple(table.elements.get(spec.name, ())), spec.key_bytes)
    else:
        elements = tuple(table.elements.get(spec.name, ()))
    rest = iter(elements)
    while some := tuple(islice(rest, _AT_ONCE)):
        wanted.update(some)
        yield ""


def _ends(elements: Iterable[bytes], size: int) -> Iterator[tuple[bytes, bool]]:
    for element in elements:
        yield element[:size], False
        behind = int.from_bytes(element[size:], "big") + 1
        if behind < 1 << 8 * size:
            yield behind.to_bytes(size, "big"), True


def _difference(what: str, held: dict[str, object], found: dict[str, object]) -> str:
    none = object()  # a chain that is not a base chain has None for its hook
    names = sorted(name for name in held.keys() | found.keys() if held.get(name, none) != found.get(name, none))
    return f"{what}: {', '.join(names[:3])}" if names else ""


def _objects_of(operation: Operation) -> tuple[str, ...]:
    """The objects that an operation touches in its table. Lists are read by position, so an added or removed object
    touches the whole list.
    """
    match operation:
        case AddTable() | DropTable():
            return ("",)
        case AddChain(name=name) | DropChain(name=name):
            return name, _CHAINS
        case AddRules(chain=name) | FlushChain(name=name):
            return (name,)
        case DropSet(name=name) | AddSet(spec=NftSet(name=name)):
            return name, _SETS
        case AddElements(spec=spec) | DropElements(spec=spec) | AddVerdicts(spec=spec):
            return (spec.name,)
