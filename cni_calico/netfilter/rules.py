"""PURE: the language of rules: what a rule of the packet filter tests, and what it does with a packet that passes.

Rule: one language for both packet filters. A rule is tests, actions and a comment. Its actions are carried out, in
order, on a packet that passes all of its tests, also in order; otherwise the next rule is asked:

    NftRule((IsProtocol(6), PortIn(False, 80, 80), AddressInSet(True, "s-web")), (CountPacket(), ACCEPT), "why")

A value says what is meant, never how a filter says it: kernel/filter/nf_tables/ prints registers of it and
kernel/filter/legacy/ lines of iptables; both take the family from the table. What the kernel has is recognised by
printing what is wanted and comparing; it is never turned back into this language (``Unrecognised``).

A new test or action is a class here, a member of ``RuleTest`` or ``RuleAction``, and a function in each printer
(nf_tables/printer.py; legacy/matches.py or rules.py).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

MULTIPORT = 15  # ports in one match of iptables; a range counts twice
COMMENT_CHARACTERS = 120  # the longest comment in ASCII that a rule can have

# -- tests; ``negated``: it passes where it would not ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IsProtocol:
    """``number``: the protocol above IP, such as 6 for TCP."""

    number: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class PortIn:
    """The port of a side is from ``low`` to ``high``, both included. A test of the protocol stands before it."""

    is_source: bool
    low: int
    high: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class PortInSet:
    """The port of a side is in a set of ports. A test of the protocol stands before it."""

    is_source: bool
    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class PortInEither:
    """The port of a side is in the set ``ports``, OR its (address, protocol, port) is in the set ``members``. For
    legacy iptables only: nf_tables has a rule for each of the two. A test of the protocol stands before it.
    """

    is_source: bool
    ports: str
    members: str


@dataclass(frozen=True, slots=True)
class IcmpType:
    """The type is from ``first`` to ``last``, and the code is ``code`` if there is one (then ``first`` is ``last``). A
    test of the protocol stands before it.
    """

    first: int
    last: int
    code: int | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class AddressInNet:
    """The address of a side begins with the first ``length`` bits of ``address`` (4 or 16 bytes, 0 behind them)."""

    is_source: bool
    address: bytes
    length: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class AddressInSet:
    """The address of a side is in a set; ``with_port``: (address, protocol, port) of that side is."""

    is_source: bool
    name: str
    negated: bool = False
    with_port: bool = False


@dataclass(frozen=True, slots=True)
class AtInterface:
    """The packet came in by an interface (``is_out``: goes out by one) whose name is ``name``; ``is_prefix``: begins
    so.
    """

    is_out: bool
    name: str
    is_prefix: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionIs:
    """What connection tracking says of the packet's connection is one of ``states``: invalid, established, related,
    new, untracked.
    """

    states: tuple[str, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsTranslated:
    """Connection tracking has translated the destination."""

    negated: bool = False


@dataclass(frozen=True, slots=True)
class HasMark:
    """``bit``: one bit of the packet's mark, as a number; of several bits any does (nf_tables only)."""

    bit: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class SourceIsElsewhere:
    """An answer to the packet's source would not go out by the interface that it came in by."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Passes while the rate is not exceeded (``over``: while it is). ``per_s`` is the unit in seconds."""

    rate: int
    per_s: int = 1
    burst: int = 5
    over: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionLimit:
    """Passes while more than ``count`` connections reach this test."""

    count: int


@dataclass(frozen=True, slots=True)
class IsArpReply:
    """In a table of ARP."""


@dataclass(frozen=True, slots=True)
class ArpSenderInSet:
    """In a table of ARP: (interface it goes out by, the sender's IPv4 address) is in a set."""

    name: str


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """The only test of a rule in the kernel that is not what we print. It equals none of ours, but the same ``content``
    that is read again. Such a rule can be kept, even written again, but not understood: its actions are only a chain
    that it jumps to and bits of the mark that it changes, ``sets`` what it looks up. ``is_known``: nothing else in it
    depends on anything.
    """

    content: Hashable
    sets: tuple[str, ...] = ()
    is_known: bool = False


RuleTest = (
    IsProtocol
    | PortIn
    | PortInSet
    | PortInEither
    | IcmpType
    | AddressInNet
    | AddressInSet
    | AtInterface
    | ConnectionIs
    | IsTranslated
    | HasMark
    | SourceIsElsewhere
    | RateLimit
    | ConnectionLimit
    | IsArpReply
    | ArpSenderInSet
    | Unrecognised
)

# -- actions -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PacketVerdict:
    """``kind``: accept (this base chain is done, the next is asked), drop, return, or jump, which needs a ``chain``.
    What another program has written into a map may be of other kinds: continue, goto.
    """

    kind: str
    chain: str = ""


ACCEPT, DROP, RETURN = PacketVerdict("accept"), PacketVerdict("drop"), PacketVerdict("return")


def jump(chain: str) -> PacketVerdict:
    """Continue in ``chain``; if nothing in it decides, continue after this rule."""
    return PacketVerdict("jump", chain)


@dataclass(frozen=True, slots=True)
class Reject:
    """Drop, and tell the sender: port unreachable; ``with_reset``: a TCP reset."""

    with_reset: bool = False


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Do what a map says for the interface that the packet came in by (``is_out``: goes out by); nothing if the map
    does not have it.
    """

    is_out: bool
    name: str


@dataclass(frozen=True, slots=True)
class DispatchMark:
    """Do what a map says for these bits of the mark; nothing if the map does not have them (nf_tables only)."""

    bits: int
    name: str


@dataclass(frozen=True, slots=True)
class SetMark:
    """Set a bit of the packet's mark; ``cleared``: clear it."""

    bit: int
    cleared: bool = False


@dataclass(frozen=True, slots=True)
class SetMarkTo:
    """Set these bits of the packet's mark to ``value``, which has no others."""

    bits: int
    value: int


@dataclass(frozen=True, slots=True)
class SetDscp:
    """Write the packet's DSCP, from 0 to 63. Legacy iptables can do that only in its table ``mangle``."""

    value: int


@dataclass(frozen=True, slots=True)
class NoTrack:
    """The packet gets no connection tracking entry."""


@dataclass(frozen=True, slots=True)
class LogPacket:
    """``level``: syslog's number; 6 is info. With a ``group`` the packet is not logged, but reported to the program
    that listens to this group, if there is one (nf_tables only).
    """

    prefix: str
    level: int = 6
    group: int = 0


@dataclass(frozen=True, slots=True)
class CountPacket:
    """Count it with the rule; the count is not part of the value. iptables counts in every rule."""


# Where AcceptKnown looks: keys are words of connection tracking in the host's byte order (``tables.word_key``), the
# verdicts are accept or continue. Rules of versions that gave these maps no size have them by their former names.
KNOWN_BY_STATE, KNOWN_BY_STATUS = "connection-by-state", "connection-by-status"
KNOWN_BEFORE = "known-by-state", "known-by-status"


@dataclass(frozen=True, slots=True)
class AcceptKnown:
    """Accept a packet whose connection an earlier packet has made, or that has no connection (invalid, untracked); of
    any other, go on in this rule. It looks up two maps that know every state and both cases of the status, so no
    packet leaves the rule here (nf_tables only).
    """


@dataclass(frozen=True, slots=True)
class LabelConnection:
    """Write ``number`` (32 bits), and its complement behind it, into the connection's label: into the first half, or
    for ``ingress`` into the second. Two numbers in one half are told by that: labels are only ever added to. A packet
    without a connection stays as it is (nf_tables only).
    """

    number: int
    ingress: bool


@dataclass(frozen=True, slots=True)
class ReportDecision:
    """Report the packet's headers with ``number`` to the program that listens to a group, if there is one.

    ``once``: not those of a connection that an earlier packet has made. nf_tables has AcceptKnown before it for that.
    """

    number: int
    group: int
    once: bool = False


RuleAction = (
    PacketVerdict
    | Reject
    | Dispatch
    | DispatchMark
    | SetMark
    | SetMarkTo
    | SetDscp
    | NoTrack
    | LogPacket
    | CountPacket
    | AcceptKnown
    | LabelConnection
    | ReportDecision
)

# -- rules -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NftRule:
    """``comment``: at most COMMENT_CHARACTERS bytes of UTF-8 of it reach the kernel."""

    tests: tuple[RuleTest, ...] = ()
    actions: tuple[RuleAction, ...] = ()
    comment: str = ""

    @property
    def verdict(self) -> PacketVerdict | None:
        """Nothing comes after it: it is the last action, if it is one of them."""
        last = self.actions[-1] if self.actions else None
        return last if isinstance(last, PacketVerdict) else None

    def lookups(self) -> tuple[str, ...]:
        """The names of the sets and maps that it looks up, which have to be there before the rule."""
        found: list[str] = []
        for part in (*self.tests, *self.actions):
            if isinstance(part, PortInEither):
                found += (part.ports, part.members)
            elif isinstance(part, Unrecognised):
                found += part.sets
            elif isinstance(part, PortInSet | AddressInSet | ArpSenderInSet | Dispatch | DispatchMark):
                found.append(part.name)
            elif isinstance(part, AcceptKnown):
                found += (KNOWN_BY_STATE, KNOWN_BY_STATUS)
        return tuple(found)
