"""PURE: packet filter objects of the kernel (nf_tables) as values: expressions, rules, chains, sets, operations.

Rule: two values are equal exactly if the kernel would do the same with them; they contain names, never handles, so that
a value can be written to the kernel without reading from it first. kernel/netlink/ turns them into messages and back.

Byte strings are in the order in which the kernel compares them: network order for headers, the host's for marks and
connection tracking words (``host32``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

IPV4, IPV6, ARP = "ip", "ip6", "arp"
ANY_REGISTER = 1  # the 16-byte register that everything except concatenations uses


def host32(value: int) -> bytes:
    """A 32-bit word in the host's byte order, as marks and connection tracking words are compared."""
    return value.to_bytes(4, sys.byteorder)


# -- expressions: a rule is a tuple of them, evaluated in order until one does not match ------------------------------


@dataclass(frozen=True, slots=True)
class MetaLoad:
    """``key``: mark, iifname, oifname, l4proto."""

    key: str
    register: int = ANY_REGISTER


@dataclass(frozen=True, slots=True)
class MetaStore:
    """Write the register to ``key`` (mark)."""

    key: str
    register: int = ANY_REGISTER


@dataclass(frozen=True, slots=True)
class CtLoad:
    """``key``: state, status."""

    key: str
    register: int = ANY_REGISTER


@dataclass(frozen=True, slots=True)
class PayloadLoad:
    """``base``: network, transport; does not match a packet that is too short, or a fragment without that header."""

    base: str
    offset: int
    length: int
    register: int = ANY_REGISTER


@dataclass(frozen=True, slots=True)
class FibSourceInterface:
    """The interface that the packet's source is routed to, 0 if it is not the one it came in on (``fib saddr . mark .
    iif``).
    """

    register: int = ANY_REGISTER


@dataclass(frozen=True, slots=True)
class Bitwise:
    """register = (register & mask) ^ xor."""

    mask: bytes
    xor: bytes
    register: int = ANY_REGISTER


@dataclass(frozen=True, slots=True)
class Compare:
    """``op``: eq, neq, lt, lte, gt, gte."""

    op: str
    data: bytes
    register: int = ANY_REGISTER


@dataclass(frozen=True, slots=True)
class CompareRange:
    """``op``: eq (inside, both ends included), neq (outside)."""

    op: str
    low: bytes
    high: bytes
    register: int = ANY_REGISTER


@dataclass(frozen=True, slots=True)
class SetLookup:
    """Whether the register is (``invert``: is not) in a set; ``verdict``: in a map, whose verdict is executed."""

    name: str
    invert: bool = False
    verdict: bool = False
    register: int = ANY_REGISTER


@dataclass(frozen=True, slots=True)
class PortChoice:
    """The port is in the list ``ports``, OR (address, protocol, port) is in the set ``members``. For legacy iptables
    only: nf_tables has a rule for each of the two.
    """

    ports: str
    members: str
    is_source: bool


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Matches while the rate is not exceeded (``over``: while it is). ``per_s`` is the unit in seconds."""

    rate: int
    per_s: int = 1
    burst: int = 5
    over: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionLimit:
    """Matches while more than ``count`` connections reach this expression."""

    count: int


@dataclass(frozen=True, slots=True)
class LogPacket:
    """``level``: syslog's number; 6 is info. With a ``group`` the packet is not logged, but reported to the program
    that listens to this group, if there is one (nf_tables only).
    """

    prefix: str
    level: int = 6
    group: int = 0


@dataclass(frozen=True, slots=True)
class RejectPacket:
    """Rejects with a TCP reset (``icmp_code`` None), or with ICMP unreachable: port is code 3 in IPv4, 4 in IPv6."""

    icmp_code: int | None = None


@dataclass(frozen=True, slots=True)
class NoTrack:
    """The packet gets no connection tracking entry."""


@dataclass(frozen=True, slots=True)
class PacketCounter:
    """Counts packets; the counts are not part of the value."""


@dataclass(frozen=True, slots=True)
class Immediate:
    """``kind``: accept, drop, continue, return, jump, goto; the last two need a chain."""

    kind: str
    chain: str = ""


@dataclass(frozen=True, slots=True)
class UnknownExpression:
    """An expression that is read but never written by us."""

    name: str
    data: bytes


Expression = (
    MetaLoad
    | MetaStore
    | CtLoad
    | PayloadLoad
    | FibSourceInterface
    | Bitwise
    | Compare
    | CompareRange
    | SetLookup
    | PortChoice
    | RateLimit
    | ConnectionLimit
    | LogPacket
    | RejectPacket
    | NoTrack
    | PacketCounter
    | Immediate
    | UnknownExpression
)

ACCEPT, DROP, RETURN = Immediate("accept"), Immediate("drop"), Immediate("return")


def jump(chain: str) -> Immediate:
    """Continue in ``chain``; if nothing in it decides, continue after this rule."""
    return Immediate("jump", chain)


# -- objects ----------------------------------------------------------------------------------------------------------


COMMENT_CHARACTERS = 120  # the longest comment in ASCII that a rule can have


@dataclass(frozen=True, slots=True)
class NftRule:
    """``comment``: at most COMMENT_CHARACTERS bytes of UTF-8 of it reach the kernel."""

    expressions: tuple[Expression, ...]
    comment: str = ""


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
KEY_BYTES = {"ipv4_addr": 4, "ipv6_addr": 16, "inet_proto": 1, "inet_service": 2, "ifname": 16}


@dataclass(frozen=True, slots=True)
class NftSet:
    """A set, or a map to verdicts; its elements are separate.

    ``key``: one of KEY_BYTES, or several (a concatenation: each part padded to four bytes). An element is its key's
    bytes; with ``interval`` the first and the last key of a range, both included, one after the other.
    """

    name: str
    key: tuple[str, ...]
    interval: bool = False
    verdicts: bool = False

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
    verdicts: dict[str, dict[bytes, Immediate]] = field(default_factory=dict)


# -- operations: a transaction is a sequence of them, done completely or not at all -----------------------------------


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
    verdicts: Mapping[bytes, Immediate]


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
