"""PURE: the tests of one rule as options of legacy iptables.

Rule: what cannot be expressed raises CannotExpress. In one rule iptables can test a protocol, a source and a
destination only once, and it cannot invert a limit. Each further test becomes a rule before it: the mark bit
``scratch`` is set, and cleared where that test does not match. A list of ports that does not fit into one match is such
a test, too: a chain of its own (port_chains.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from itertools import product
from typing import NoReturn

from cni_calico.kernel.filter.legacy.names import set_name
from cni_calico.kernel.filter.legacy.port_chains import PortChain, pieces, port_chain
from cni_calico.netfilter.rules import (
    Bitwise,
    Compare,
    CompareRange,
    ConnectionLimit,
    CtLoad,
    Expression,
    FibSourceInterface,
    Immediate,
    LogPacket,
    MetaLoad,
    MetaStore,
    NoTrack,
    PacketCounter,
    PayloadLoad,
    PortChoice,
    RateLimit,
    RejectPacket,
    SetLookup,
)
from cni_calico.netfilter.tables import NftSet, NftTable

PROTOCOLS_WITH_PORTS = {6: "tcp", 17: "udp", 132: "sctp", 136: "udplite", 33: "dccp"}
_FEW_PIECES = 4  # of a negated list, in one rule
FAMILY = {"ip": 4, "ip6": 6}
_ICMP = {4: 1, 6: 58}
_ICMP_MATCH = {4: "-m icmp {}--icmp-type {}", 6: "-m icmp6 {}--icmpv6-type {}"}
_ALL_ICMP_TYPES = 255  # what the match takes for "any"
_ADDRESSES = {(12, 4): True, (16, 4): False, (8, 6): True, (24, 6): False}  # (offset, family): whether the source
_SIZE = {4: 4, 6: 16}
_STATES = {1: "INVALID", 2: "ESTABLISHED", 4: "RELATED", 8: "NEW", 64: "UNTRACKED"}
_TRANSLATED = {1 << 4: "SNAT", 1 << 5: "DNAT"}
_PER = {1: "second", 60: "minute", 3600: "hour", 86400: "day"}
_SCALE, _MOST_BURST = 10000, 10000
_ALL_BITS = 0xFFFFFFFF


class CannotExpress(Exception):
    """The text says what."""


@dataclass(frozen=True, slots=True)
class Marks:
    """One bit each. ``accept``: the stage's verdict on the packet is known. ``scratch``: of single rules."""

    accept: int
    scratch: int

    @property
    def both(self) -> int:
        return self.accept | self.scratch


def set_marks(value: int, bits: int) -> str:
    return f"MARK --set-xmark 0x{value:x}/0x{bits:x}"


def has_mark(value: int, bits: int) -> str:
    return f"-m mark --mark 0x{value:x}/0x{bits:x}"


def interface(option: str, data: bytes) -> str:
    """The match of a whole name (with the zero bytes behind it) or of the beginning of one."""
    name = data.rstrip(b"\0")
    whole = len(data) == 16 or len(data) >= 15
    if not name or (whole and name.endswith(b"+")):
        raise CannotExpress(f"iptables cannot name the interface {name.decode(errors='replace')!r}")
    return f"{option} {quoted(name.decode('utf-8', 'surrogateescape') + ('' if whole else '+'))}"


def quoted(text: str) -> str:
    """As a word of a script."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class ParsedRule:
    """The expressions of one rule, taken one after the other."""

    def __init__(self, table: NftTable, marks: Marks) -> None:
        self.value, self.bits = 0, 0  # of the mark that it sets
        self.notrack = False
        self.log: LogPacket | None = None
        self.reject: RejectPacket | None = None
        self.verdict: Immediate | None = None
        self.map: tuple[str, str] | None = None
        self._table = table
        self._family = FAMILY[table.family]
        self._marks = marks
        self._loaded: dict[int, Expression] = {}
        self._masked: dict[int, Bitwise] = {}
        self._low: Compare | None = None
        self._protocol: int | None = None
        self._not_protocols: list[int] = []
        self._nets: dict[bool, list[tuple[str, bool]]] = {True: [], False: []}  # (network, whether outside of it)
        self._more: list[list[str]] = []  # each a list of alternatives
        self._needs_ports = False
        self._limits: list[str] = []
        self._over: list[str] = []
        self._never = False
        self._choices: list[tuple[str, list[tuple[int, int]], str, bool]] = []  # see port_chain
        self.port_chains: list[PortChain] = []

    def take(self, e: Expression) -> None:
        match e:
            case MetaLoad() | CtLoad() | PayloadLoad() | FibSourceInterface():
                self._loaded[e.register] = e
                self._masked.pop(e.register, None)
            case Bitwise():
                self._masked[e.register] = e
            case MetaStore(key="mark"):
                self._set_mark(self._masked.get(e.register))
            case Compare():
                self._compare(e)
            case CompareRange():
                self._range(e)
            case SetLookup(verdict=True):
                self.map = (e.name, self._interface_option(self._loaded[e.register]))
            case SetLookup():
                self._look_up(e)
            case PortChoice():
                self._choose(e)
            case RateLimit():
                self._limit(e)
            case ConnectionLimit():
                self._limits.append(f"-m connlimit --connlimit-above {e.count} --connlimit-mask 0")
            case LogPacket():
                self.log = e
            case RejectPacket():
                self.reject = e
            case NoTrack():
                self.notrack = True
            case Immediate():
                self.verdict = e
            case PacketCounter():
                pass
            case _:
                _refuse(e)

    def _set_mark(self, masked: Bitwise | None) -> None:
        if masked is None:
            raise CannotExpress("a mark is set to something else than fixed bits")
        order = [int.from_bytes(part, sys.byteorder) for part in (masked.mask, masked.xor)]
        bits = ~order[0] & _ALL_BITS
        self.value = self.value & ~bits | order[1] & bits
        self.bits |= bits

    @staticmethod
    def _interface_option(loaded: Expression) -> str:
        if isinstance(loaded, MetaLoad) and loaded.key in ("iifname", "oifname"):
            return "-i" if loaded.key == "iifname" else "-o"
        return _refuse(loaded)

    def _compare(self, e: Compare) -> None:
        loaded, masked = self._loaded[e.register], self._masked.get(e.register)
        negated = e.op == "neq"
        match loaded:
            case MetaLoad(key="l4proto") if e.op in ("eq", "neq"):
                self._test_protocol(e.data[0], negated)
            case MetaLoad(key="mark"):
                self._test_mark(e, masked)
            case MetaLoad(key="iifname" | "oifname") if not negated:
                self._more.append([interface(self._interface_option(loaded), e.data)])
            case CtLoad():
                self._test_connection(loaded, e, masked)
            case FibSourceInterface() if e.op == "eq" and not any(e.data):
                self._more.append(["-m rpfilter --validmark --invert"])
            case PayloadLoad(base="network"):
                self._test_address(loaded, e, masked)
            case PayloadLoad(base="transport"):
                self._test_header(loaded, e)
            case _:
                _refuse(loaded)

    def _test_protocol(self, number: int, negated: bool) -> None:
        if negated:
            self._not_protocols.append(number)
        elif self._protocol is None:
            self._protocol = number
        else:
            self._never = self._never or self._protocol != number

    def _test_mark(self, e: Compare, masked: Bitwise | None) -> None:
        bits = int.from_bytes(masked.mask, sys.byteorder) if masked is not None else 0
        if e.op not in ("eq", "neq") or any(e.data) or bits.bit_count() != 1:
            _refuse(e)
        self._more.append([has_mark(0 if e.op == "eq" else bits, bits)])

    def _test_connection(self, loaded: CtLoad, e: Compare, masked: Bitwise | None) -> None:
        known = _STATES if loaded.key == "state" else _TRANSLATED
        bits = int.from_bytes(masked.mask, sys.byteorder) if masked is not None else 0
        names = [name for bit, name in known.items() if bits & bit]
        if e.op not in ("eq", "neq") or any(e.data) or not names or bits & ~sum(known):
            _refuse(e)
        self._more.append([f"-m conntrack {'! ' if e.op == 'eq' else ''}--ctstate {','.join(names)}"])

    def _test_address(self, loaded: PayloadLoad, e: Compare, masked: Bitwise | None) -> None:
        is_source = self._side(loaded)
        size = _SIZE[self._family]
        packed = e.data + bytes(size - len(e.data))
        length = 8 * loaded.length
        if masked is not None:
            length = int.from_bytes(masked.mask, "big").bit_count()
        if e.op not in ("eq", "neq"):
            _refuse(e)
        try:
            network = ip_network((packed, length))
        except ValueError:
            _refuse(e)
        self._nets[is_source].append((str(network), e.op == "neq"))

    def _side(self, loaded: PayloadLoad) -> bool:
        """Whether it is the source's address."""
        found = _ADDRESSES.get((loaded.offset, self._family))
        return _refuse(loaded) if found is None else found

    def _test_header(self, loaded: PayloadLoad, e: Compare) -> None:
        if self._protocol == _ICMP[self._family]:
            if e.op not in ("eq", "neq") or loaded.offset or loaded.length > 2:
                _refuse(loaded)
            self._more.append([self._icmp(e.data, negated=e.op == "neq")])
        elif e.op == "gte":
            self._low = e
        elif e.op == "lte" and self._low is not None:
            self._test_ports(loaded, [(_number(self._low.data), _number(e.data))], negated=False)
            self._low = None
        elif e.op in ("eq", "neq"):
            self._test_ports(loaded, [(_number(e.data),) * 2], negated=e.op == "neq")
        else:
            _refuse(e)

    def _icmp(self, data: bytes, *, negated: bool = False) -> str:
        if self._family == 4 and data[0] == _ALL_ICMP_TYPES:
            raise CannotExpress("iptables cannot name ICMP's type 255")
        return _ICMP_MATCH[self._family].format("! " if negated else "", "/".join(map(str, data)))

    def _range(self, e: CompareRange) -> None:
        loaded = self._loaded[e.register]
        if not isinstance(loaded, PayloadLoad) or loaded.base != "transport":
            _refuse(loaded)
        if self._protocol != _ICMP[self._family]:
            self._test_ports(loaded, [(_number(e.low), _number(e.high))], negated=e.op == "neq")
        elif loaded.length == 1 and e.op == "eq":
            self._more.append([self._icmp(bytes((kind,))) for kind in range(e.low[0], e.high[0] + 1)])
        else:
            _refuse(e)

    def _test_ports(self, loaded: PayloadLoad, ranges: list[tuple[int, int]], *, negated: bool) -> None:
        if loaded.length != 2 or loaded.offset not in (0, 2):
            _refuse(loaded)
        self._needs_ports = True
        option = f"{'d' if loaded.offset else 's'}ports"
        cut = list(pieces(ranges))
        if len(cut) > (_FEW_PIECES if negated else 1):
            self._choices.append((option, ranges, "", negated))
            return
        self._more.append([" ".join(f"-m multiport {'! ' if negated else ''}--{option} {piece}" for piece in cut)])

    def _choose(self, e: PortChoice) -> None:
        self._needs_ports = True
        listed, side = self._set(e.ports), "src" if e.is_source else "dst"
        self._set(e.members)
        members = f"-m set --match-set {set_name(e.members, self._family)} {side},{side}"
        ranges = port_ranges(listed, self._table.elements.get(e.ports, ()))
        self._choices.append((f"{side[0]}ports", ranges, members, False))

    def _set(self, name: str) -> NftSet:
        spec = self._table.sets.get(name)
        if spec is None:
            raise CannotExpress(f"the set {name} is not there")
        return spec

    def _look_up(self, e: SetLookup) -> None:
        loaded = self._loaded[e.register]
        if not isinstance(loaded, PayloadLoad):
            _refuse(loaded)
        spec = self._set(e.name)
        if loaded.base == "transport":
            ranges = port_ranges(spec, self._table.elements.get(e.name, ()))
            self._test_ports(loaded, ranges, negated=e.invert)
            return
        side = "src" if self._side(loaded) else "dst"
        option = side if len(spec.key) == 1 else f"{side},{side}"
        name = set_name(e.name, self._family)
        self._more.append([f"-m set {'! ' if e.invert else ''}--match-set {name} {option}"])

    def _limit(self, e: RateLimit) -> None:
        if e.per_s not in _PER or e.rate > _SCALE * e.per_s or e.burst > _MOST_BURST:
            limits = f"rates above {_SCALE} a second or bursts above {_MOST_BURST}"
            raise CannotExpress(f"iptables has no {limits}, such as {e.rate} and {e.burst}")
        burst = max(1, min(e.burst, _ALL_BITS * e.rate // (_SCALE * e.per_s)))  # what its counter can hold
        (self._over if e.over else self._limits).append(
            f"-m limit --limit {e.rate}/{_PER[e.per_s]} --limit-burst {burst}"
        )

    # -- all together -------------------------------------------------------------------------------------------------

    def matches(self) -> Iterator[tuple[list[str], str]]:
        """For each alternative the rules that have to stand before, and the match."""
        if self._never or self._protocol in self._not_protocols:
            return
        if self._needs_ports and self._protocol not in PROTOCOLS_WITH_PORTS:
            raise CannotExpress(f"iptables knows no ports of protocol {self._protocol}")
        first, unless = [], list(self._over)
        if self._protocol is not None:
            first.append(f"-p {self._protocol}")
        elif self._not_protocols:
            first.append(f"! -p {self._not_protocols[0]}")
            unless += [f"-p {number}" for number in self._not_protocols[1:]]
        for is_source, nets in self._nets.items():
            option = "-s" if is_source else "-d"
            for i, (network, outside) in enumerate(nets):
                if i == 0:
                    first.append(f"{'! ' if outside else ''}{option} {network}")
                else:
                    unless.append(f"{'' if outside else '! '}{option} {network}")
        if self._over and (first or self._more or self._limits):
            raise CannotExpress("a limit is inverted in a rule that tests something else, too")
        scratch = self._marks.scratch
        cleared = set_marks(0, scratch)
        assert self._protocol is not None or not self._choices
        self.port_chains = [
            port_chain(self._protocol or 0, option, ranges, members, cleared, invert=invert)
            for option, ranges, members, invert in self._choices
        ]
        prelude: list[str] = []
        if unless or self.port_chains:
            prelude = [f"-j {set_marks(scratch, scratch)}", *(f"{one} -j {cleared}" for one in unless)]
            prelude += [f"-p {self._protocol} -j {chain.name}" for chain in self.port_chains]
            first.append(has_mark(scratch, scratch))
        for some in product(*self._more):
            yield prelude, " ".join((*first, *some, *self._limits))
            prelude = []


def port_ranges(spec: NftSet, elements: Iterable[bytes]) -> list[tuple[int, int]]:
    """A list of ports as ranges that do not touch."""
    both = sorted((_number(e[:2]), _number(e[2:] if spec.interval else e)) for e in elements)
    found: list[tuple[int, int]] = []
    for low, high in both:
        if found and low == found[-1][1] + 1:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _refuse(what: object) -> NoReturn:
    raise CannotExpress(f"iptables has nothing for {what}")
