"""PURE: a packet filter's rules as values: the kernel's expressions (nf_tables), and what a rule does.

Rule: two values are equal exactly if the kernel would do the same with them. kernel/filter/ turns them into messages
and lines of legacy iptables, and back.

Byte strings are in the order in which the kernel compares them: network order for headers, the host's for marks and
connection tracking words (``host32``).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

IPV4, IPV6, ARP = "ip", "ip6", "arp"
MULTIPORT = 15  # ports in one match of iptables; a range counts twice
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


# -- rules ------------------------------------------------------------------------------------------------------------


COMMENT_CHARACTERS = 120  # the longest comment in ASCII that a rule can have


@dataclass(frozen=True, slots=True)
class NftRule:
    """``comment``: at most COMMENT_CHARACTERS bytes of UTF-8 of it reach the kernel."""

    expressions: tuple[Expression, ...]
    comment: str = ""
