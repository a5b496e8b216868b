"""PURE: the tests of one rule (netfilter/rules.py) as options of legacy iptables.

Rule: what cannot be expressed raises CannotExpress. In one rule iptables can test a protocol, a source and a
destination only once, and it cannot invert a limit. Each further test becomes a rule before it: the mark bit
``scratch`` is set, and cleared where that test does not match. A list of ports that does not fit into one match is such
a test, too: a chain of its own (port_chains.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from itertools import product

from cni_calico.kernel.filter.legacy.names import set_name
from cni_calico.kernel.filter.legacy.port_chains import PortChain, pieces, port_chain
from cni_calico.netfilter.rules import (
    AddressInNet,
    AddressInSet,
    AtInterface,
    ConnectionIs,
    ConnectionLimit,
    HasMark,
    IcmpType,
    IsProtocol,
    IsTranslated,
    PortIn,
    PortInEither,
    PortInSet,
    RateLimit,
    RuleTest,
    SourceIsElsewhere,
)
from cni_calico.netfilter.tables import NftSet, NftTable

PROTOCOLS_WITH_PORTS = {6: "tcp", 17: "udp", 132: "sctp", 136: "udplite", 33: "dccp"}
_FEW_PIECES = 4  # of a negated list, in one rule
FAMILY = {"ip": 4, "ip6": 6}
_ICMP = {4: 1, 6: 58}
_ICMP_MATCH = {4: "-m icmp {}--icmp-type {}", 6: "-m icmp6 {}--icmpv6-type {}"}
_ALL_ICMP_TYPES = 255  # what the match takes for "any"
_PER = {1: "second", 60: "minute", 3600: "hour", 86400: "day"}
_SCALE, _MOST_BURST = 10000, 10000
_ALL_BITS = 0xFFFFFFFF
_LONGEST_NAME = 15  # of an interface, in bytes


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


def interface(option: str, name: str, *, is_prefix: bool = False) -> str:
    """The match of a whole name or of the beginning of one, which is all of it if there is no room for more."""
    data = name.encode("utf-8", "surrogateescape")[:_LONGEST_NAME]
    begins = is_prefix and len(data) < _LONGEST_NAME
    if not data or (data.endswith(b"+") and not begins):
        raise CannotExpress(f"iptables cannot name the interface {data.decode(errors='replace')!r}")
    return f"{option} {quoted(data.decode('utf-8', 'surrogateescape') + ('+' if begins else ''))}"


def interface_option(*, is_out: bool) -> str:
    return "-o" if is_out else "-i"


def quoted(text: str) -> str:
    """As a word of a script."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(slots=True)
class _Sorted:
    """The tests of one rule of ``table``, sorted by how iptables takes them.

    ``more``: matches that can stand together in any number, each a list of alternatives. ``nets``: by side, each with
    whether it is negated. ``over``: limits that are inverted. ``choices``: lists of ports in chains of their own, as
    ``port_chain`` wants them: (option, ranges, the match of a set that is as good, inverted).
    """

    table: NftTable
    family: int
    protocols: list[int] = field(default_factory=list)
    not_protocols: list[int] = field(default_factory=list)
    nets: dict[bool, list[tuple[str, bool]]] = field(default_factory=lambda: {True: [], False: []})
    more: list[list[str]] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    choices: list[tuple[str, list[tuple[int, int]], str, bool]] = field(default_factory=list)
    needs_ports: bool = False

    def set(self, name: str) -> NftSet:
        spec = self.table.sets.get(name)
        if spec is None:
            raise CannotExpress(f"the set {name} is not there")
        return spec

    def ranges(self, name: str) -> list[tuple[int, int]]:
        """Of a list of ports."""
        return port_ranges(self.set(name), self.table.elements.get(name, ()))

    def members(self, name: str, *, is_source: bool, with_port: bool, negated: bool = False) -> str:
        self.set(name)
        side = "src" if is_source else "dst"
        option = f"{side},{side}" if with_port else side
        return f"-m set {_not(negated=negated)}--match-set {set_name(name, self.family)} {option}"


@dataclass(slots=True)
class RuleMatches:
    """``alternatives``: for each the rules that have to stand before, and the match; none if no packet can match.
    ``port_chains``: what those rules lead to.
    """

    alternatives: list[tuple[list[str], str]] = field(default_factory=list)
    port_chains: list[PortChain] = field(default_factory=list)


def match_all(tests: Sequence[RuleTest], table: NftTable, marks: Marks) -> RuleMatches:
    """The matches of a rule of ``table``, where its sets are. Raises CannotExpress."""
    found = _Sorted(table, FAMILY[table.family])
    for test in tests:
        sort = _SORTERS.get(type(test))
        if sort is None:
            raise CannotExpress(f"iptables has nothing for {test}")
        sort(test, found)
    protocol = found.protocols[0] if found.protocols else None
    if len(set(found.protocols)) > 1 or protocol in found.not_protocols:
        return RuleMatches()
    if found.needs_ports and protocol not in PROTOCOLS_WITH_PORTS:
        raise CannotExpress(f"iptables knows no ports of protocol {protocol}")
    first, unless = _once(found, protocol)
    if found.over and (first or found.more or found.limits):
        raise CannotExpress("a limit is inverted in a rule that tests something else, too")
    scratch, cleared = marks.scratch, set_marks(0, marks.scratch)
    assert protocol is not None or not found.choices  # or it has no ports
    chains = [port_chain(protocol or 0, *choice[:3], cleared, invert=choice[3]) for choice in found.choices]
    prelude: list[str] = []
    if unless or chains:
        prelude = [f"-j {set_marks(scratch, scratch)}", *(f"{one} -j {cleared}" for one in unless)]
        prelude += [f"-p {protocol} -j {chain.name}" for chain in chains]
        first.append(has_mark(scratch, scratch))
    done = RuleMatches(port_chains=chains)
    for some in product(*found.more):
        done.alternatives.append((prelude, " ".join((*first, *some, *found.limits))))
        prelude = []
    return done


def _once(found: _Sorted, protocol: int | None) -> tuple[list[str], list[str]]:
    """What a rule can test once only: the first of each kind, and what clears the mark for the others."""
    first, unless = list[str](), list(found.over)
    if protocol is not None:
        first.append(f"-p {protocol}")
    elif found.not_protocols:
        first.append(f"! -p {found.not_protocols[0]}")
        unless += [f"-p {number}" for number in found.not_protocols[1:]]
    for is_source, nets in found.nets.items():
        option = "-s" if is_source else "-d"
        for i, (network, outside) in enumerate(nets):
            if i == 0:
                first.append(f"{'! ' if outside else ''}{option} {network}")
            else:
                unless.append(f"{'' if outside else '! '}{option} {network}")
    return first, unless


# -- each test --------------------------------------------------------------------------------------------------------


def _not(*, negated: bool) -> str:
    return "! " if negated else ""


def _protocol(test: IsProtocol, done: _Sorted) -> None:
    if not test.number:
        raise CannotExpress("iptables reads protocol 0 as every protocol")
    (done.not_protocols if test.negated else done.protocols).append(test.number)


def _ports(ranges: list[tuple[int, int]], done: _Sorted, *, is_source: bool, negated: bool) -> None:
    done.needs_ports = True
    option, cut = "sports" if is_source else "dports", list(pieces(ranges))
    if len(cut) > (_FEW_PIECES if negated else 1):
        done.choices.append((option, ranges, "", negated))
    else:
        done.more.append([" ".join(f"-m multiport {_not(negated=negated)}--{option} {piece}" for piece in cut)])


def _port_in(test: PortIn, done: _Sorted) -> None:
    _ports([(test.low, test.high)], done, is_source=test.is_source, negated=test.negated)


def _port_in_set(test: PortInSet, done: _Sorted) -> None:
    _ports(done.ranges(test.name), done, is_source=test.is_source, negated=test.negated)


def _port_in_either(test: PortInEither, done: _Sorted) -> None:
    done.needs_ports = True
    members = done.members(test.members, is_source=test.is_source, with_port=True)
    done.choices.append(("sports" if test.is_source else "dports", done.ranges(test.ports), members, False))


def _icmp(test: IcmpType, done: _Sorted) -> None:
    """A range of types is as many alternatives, which could not be inverted."""
    family = done.family
    if _ICMP[family] not in done.protocols:
        raise CannotExpress(f"iptables tests ICMP's type only of protocol {_ICMP[family]}")
    if family == 4 and test.last == _ALL_ICMP_TYPES:
        raise CannotExpress("iptables cannot name ICMP's type 255")
    if test.negated and test.first != test.last:
        raise CannotExpress("iptables cannot invert a range of ICMP's types")
    code, begin = "" if test.code is None else f"/{test.code}", _not(negated=test.negated)
    kinds = range(test.first, test.last + 1)
    done.more.append([_ICMP_MATCH[family].format(begin, f"{kind}{code}") for kind in kinds])


def _net(test: AddressInNet, done: _Sorted) -> None:
    done.nets[test.is_source].append((str(ip_network((test.address, test.length))), test.negated))


def _address_in_set(test: AddressInSet, done: _Sorted) -> None:
    match = done.members(test.name, is_source=test.is_source, with_port=test.with_port, negated=test.negated)
    done.more.append([match])


def _interface(test: AtInterface, done: _Sorted) -> None:
    done.more.append([interface(interface_option(is_out=test.is_out), test.name, is_prefix=test.is_prefix)])


def _mark(test: HasMark, done: _Sorted) -> None:
    done.more.append([has_mark(0 if test.negated else test.bit, test.bit)])


def _connection(test: ConnectionIs, done: _Sorted) -> None:
    done.more.append([f"-m conntrack {_not(negated=test.negated)}--ctstate {','.join(test.states).upper()}"])


def _translated(test: IsTranslated, done: _Sorted) -> None:
    done.more.append([f"-m conntrack {_not(negated=test.negated)}--ctstate DNAT"])


def _source_elsewhere(_: SourceIsElsewhere, done: _Sorted) -> None:
    done.more.append(["-m rpfilter --validmark --invert"])


def _rate(test: RateLimit, done: _Sorted) -> None:
    if test.per_s not in _PER or test.rate > _SCALE * test.per_s or test.burst > _MOST_BURST:
        limits = f"rates above {_SCALE} a second or bursts above {_MOST_BURST}"
        raise CannotExpress(f"iptables has no {limits}, such as {test.rate} and {test.burst}")
    burst = max(1, min(test.burst, _ALL_BITS * test.rate // (_SCALE * test.per_s)))  # what its counter can hold
    match = f"-m limit --limit {test.rate}/{_PER[test.per_s]} --limit-burst {burst}"
    (done.over if test.over else done.limits).append(match)


def _connections(test: ConnectionLimit, done: _Sorted) -> None:
    done.limits.append(f"-m connlimit --connlimit-above {test.count} --connlimit-mask 0")


_SORTERS: dict[type, Callable[..., None]] = {
    IsProtocol: _protocol,
    PortIn: _port_in,
    PortInSet: _port_in_set,
    PortInEither: _port_in_either,
    IcmpType: _icmp,
    AddressInNet: _net,
    AddressInSet: _address_in_set,
    AtInterface: _interface,
    ConnectionIs: _connection,
    IsTranslated: _translated,
    HasMark: _mark,
    SourceIsElsewhere: _source_elsewhere,
    RateLimit: _rate,
    ConnectionLimit: _connections,
}


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
