"""PURE: nf_tables' own words: the expressions of a rule, as values.

Rule: two values are equal exactly if the kernel would do the same with them. An expression that does one thing by
itself is the word of our language (netfilter/rules.py); the others load a register, change it, and compare it.

Byte strings are in the order in which the kernel compares them: network order for headers, the host's for marks and
connection tracking words (``host32``).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from cni_calico.netfilter.rules import (
    ConnectionLimit,
    CountPacket,
    LogPacket,
    NoTrack,
    PacketVerdict,
    RateLimit,
    ReportDecision,
)

ANY_REGISTER = 1  # the 16-byte register that everything except concatenations uses


def host32(value: int) -> bytes:
    """A 32-bit word in the host's byte order, as marks and connection tracking words are compared."""
    return value.to_bytes(4, sys.byteorder)


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
class WordsLoad:
    """Load 16 bytes into the register."""

    data: bytes
    register: int = ANY_REGISTER


@dataclass(frozen=True, slots=True)
class CtStore:
    """Add the bits of the register to ``key`` (labels); nothing without a connection, or without room for labels."""

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
class PayloadStore:
    """Write the register into a header. ``checksum_at``: where the header has its internet checksum, which follows;
    None: it has none.
    """

    base: str
    offset: int
    length: int
    checksum_at: int | None = None
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
class RejectPacket:
    """Rejects with a TCP reset (``icmp_code`` None), or with ICMP unreachable: port is code 3 in IPv4, 4 in IPv6."""

    icmp_code: int | None = None


@dataclass(frozen=True, slots=True)
class UnknownExpression:
    """An expression that is read but never written by us. It equals none of ours."""

    name: str
    data: bytes


Expression = (
    MetaLoad
    | MetaStore
    | CtLoad
    | CtStore
    | WordsLoad
    | PayloadLoad
    | PayloadStore
    | FibSourceInterface
    | Bitwise
    | Compare
    | CompareRange
    | SetLookup
    | RateLimit
    | ConnectionLimit
    | LogPacket
    | ReportDecision
    | RejectPacket
    | NoTrack
    | CountPacket
    | PacketVerdict
    | UnknownExpression
)


@dataclass(frozen=True, slots=True)
class PrintedRule:
    """A rule as the kernel has it. ``expressions``: netlink attributes, as attributes.py writes them; ``comment``: as
    much of it as fits.
    """

    expressions: bytes
    comment: str = ""
