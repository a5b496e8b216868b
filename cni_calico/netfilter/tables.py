"""PURE: a packet filter's tables as values: chains, sets, operations, and what operations make of tables.

Rule: values contain names, never handles, so that a value can be written to the kernel without reading from it first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cni_calico.netfilter.rules import NftRule, PacketVerdict

# chains in the place of what a packet filter could not read as values: all that is there, or standing rules alone;
# to remove one is to remove that
UNRECOGNISED, UNRECOGNISED_STANDING = "unrecognised", "unrecognised-standing"


@dataclass(frozen=True, slots=True)
class BaseHook:
    """The place of a base chain: ``kind`` filter or route; ``hook`` prerouting, input, forward, output, postrouting.

    The policy of a base chain is always accept: dropped packets are dropped by a rule.
    """

    hook: str
    priority: int
    kind: str = "filter"


@dataclass(frozen=True, slots=True)
class NftChain:
    name: str
    rules: tuple[NftRule, ...] = ()
    hook: BaseHook | None = None


# the possible parts of a set's key, as nft calls them, and their lengths
KEY_BYTES = {"ipv4_addr": 4, "ipv6_addr": 16, "inet_proto": 1, "inet_service": 2, "mark": 4, "ifname": 16}


def interface_key(name: str) -> bytes:
    """An interface's name as an element of a set or map."""
    return name.encode("utf-8", "surrogateescape")[:15].ljust(16, b"\0")


def word_key(value: int) -> bytes:
    """A 32-bit word of the host (a mark, a word of connection tracking) as an element of a set or map."""
    return value.to_bytes(4, sys.byteorder)


@dataclass(frozen=True, slots=True)
class NftSet:
    """A set, or a map to verdicts; its elements are separate.

    ``key``: one of KEY_BYTES, or several (a concatenation: each part padded to four bytes). An element is its key's
    bytes; with ``interval`` the first and the last key of a range, both included, one after the other. ``size``: it has
    so many elements at most, and nf_tables finds them by a table of fixed length, which is faster; 0: any number.
    """

    name: str
    key: tuple[str, ...]
    interval: bool = False
    verdicts: bool = False
    size: int = 0

    @property
    def key_bytes(self) -> int:
        if len(self.key) == 1:
            return KEY_BYTES[self.key[0]]
        return sum(KEY_BYTES[part] + 3 & ~3 for part in self.key)


@dataclass(slots=True)
class NftTable:
    """One table as it was read. ``elements`` and ``verdicts`` are by the set's name; a set has one of the two."""

    family: str
    name: str
    chains: dict[str, NftChain] = field(default_factory=dict)
    sets: dict[str, NftSet] = field(default_factory=dict)
    elements: dict[str, set[bytes]] = field(default_factory=dict)
    verdicts: dict[str, dict[bytes, PacketVerdict]] = field(default_factory=dict)


# -- operations: a transaction is a sequence of them, done completely or not at all -----------------------------------


POLICY = "calico-policy"  # the name of the tables of policies


@dataclass(frozen=True, slots=True)
class TableId:
    family: str
    name: str

    def __str__(self) -> str:
        return f"{self.family} {self.name}"


@dataclass(frozen=True, slots=True)
class AddTable:
    table: TableId


@dataclass(frozen=True, slots=True)
class DropTable:
    """Drop the table with everything in it. It must exist."""

    table: TableId


@dataclass(frozen=True, slots=True)
class AddChain:
    """The chain itself, empty if it is new; AddRules adds its rules."""

    table: TableId
    name: str
    hook: BaseHook | None = None


@dataclass(frozen=True, slots=True)
class FlushChain:
    table: TableId
    name: str


@dataclass(frozen=True, slots=True)
class DropChain:
    """Refused while a rule or a map refers to it."""

    table: TableId
    name: str


@dataclass(frozen=True, slots=True)
class AddRules:
    """Add the rules after the existing ones."""

    table: TableId
    chain: str
    rules: tuple[NftRule, ...]


@dataclass(frozen=True, slots=True)
class AddSet:
    table: TableId
    spec: NftSet


@dataclass(frozen=True, slots=True)
class DropSet:
    """Refused while a rule uses it."""

    table: TableId
    name: str


@dataclass(frozen=True, slots=True)
class AddElements:
    """Add to a set; elements that exist already are not an error."""

    table: TableId
    spec: NftSet
    elements: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class DropElements:
    """Remove from a set or a map; refused if an element does not exist."""

    table: TableId
    spec: NftSet
    elements: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class AddVerdicts:
    """Add to a map; refused if the key exists with another verdict."""

    table: TableId
    spec: NftSet
    verdicts: Mapping[bytes, PacketVerdict]


Operation = (
    AddTable
    | DropTable
    | AddChain
    | FlushChain
    | DropChain
    | AddRules
    | AddSet
    | DropSet
    | AddElements
    | DropElements
    | AddVerdicts
)

Tables = dict[TableId, NftTable]
FilterObject = tuple[TableId, str]  # a chain or set; "" for the table itself


def object_of(operation: Operation) -> FilterObject:
    """The object that an operation makes, changes or removes."""
    match operation:
        case AddTable() | DropTable():
            name = ""
        case AddRules(chain=name):
            pass
        case AddChain(name=name) | FlushChain(name=name) | DropChain(name=name) | DropSet(name=name):
            pass
        case AddSet(spec=spec) | AddElements(spec=spec) | DropElements(spec=spec) | AddVerdicts(spec=spec):
            name = spec.name
    return operation.table, name


def mirror(tables: Tables, operations: Iterable[Operation]) -> None:
    """Update the kernel's known tables with operations that it carried out."""
    for operation in operations:
        table = operation.table
        if isinstance(operation, AddTable):
            tables.setdefault(table, NftTable(table.family, table.name))
        elif isinstance(operation, DropTable):
            del tables[table]
        else:
            _mirror_in(tables[table], operation)


def _mirror_in(table: NftTable, operation: Operation) -> None:
    match operation:
        case AddChain():
            table.chains.setdefault(operation.name, NftChain(operation.name, (), operation.hook))
        case FlushChain():
            table.chains[operation.name] = replace(table.chains[operation.name], rules=())
        case AddRules():
            chain = table.chains[operation.chain]
            table.chains[operation.chain] = replace(chain, rules=chain.rules + operation.rules)
        case DropChain():
            del table.chains[operation.name]
        case AddSet(spec=spec):
            table.sets[spec.name] = spec
            if spec.verdicts:
                table.verdicts.setdefault(spec.name, {})
            else:
                table.elements.setdefault(spec.name, set())
        case DropSet(name=name):
            del table.sets[name]
            table.elements.pop(name, None)
            table.verdicts.pop(name, None)
        case AddElements(spec=spec):
            table.elements[spec.name] |= operation.elements
        case DropElements(spec=spec):
            if spec.verdicts:
                for key in operation.elements:
                    del table.verdicts[spec.name][key]
            else:
                table.elements[spec.name] -= operation.elements
        case AddVerdicts(spec=spec):
            table.verdicts[spec.name].update(operation.verdicts)
