"""PURE: one rule of a policy as rules of the packet filter, in one family.

Rule: a packet that the rule describes matches exactly one of them if the action is Log, otherwise at least one, and no
other packet matches any. Cheap tests come first: protocol, ports, networks, then sets.

What nf_tables cannot express in one rule (a port in a list OR in a set; an address in a set of addresses OR in a
network) becomes alternatives: one rule for each combination, MOST at most. The calculation sees to that: the named
ports of a side are one set, so no part has more than two alternatives, and at most four parts have two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import collapse_addresses
from itertools import product
from math import prod
from typing import Any

from cni_calico.model.resources import Network
from cni_calico.netfilter.rules import (
    MULTIPORT,
    AddressInNet,
    AddressInSet,
    IcmpType,
    IsProtocol,
    PortIn,
    PortInEither,
    PortInSet,
    RuleTest,
)
from cni_calico.netfilter.tables import NftSet
from cni_calico.nodeagent.policing.tables.naming import digest
from cni_calico.policy.wanted import ANY_SIDE, WantedRule, WantedSide

Match = tuple[RuleTest, ...]
NETWORKS = "/n"  # appended to a set's name: the name of the set of its networks
MOST = 16  # rules of the packet filter for one rule of a policy, in one family
_FEW_PORTS = 64  # up to this number, a list is kept port by port, in a set with direct lookup
ICMP = {4: 1, 6: 58}
ADDRESS_TYPE = {4: "ipv4_addr", 6: "ipv6_addr"}


class CannotRender(Exception):
    """The rule asks for something that cannot be expressed; the text says what."""


@dataclass(frozen=True, slots=True)
class ListSet:
    """A set of the values that one or several rules list; its name is derived from its content, which never changes."""

    spec: NftSet
    elements: frozenset[bytes]


@dataclass(slots=True)
class Rendered:
    """The matches of one rule, and the sets that they look up, by set name."""

    matches: list[Match]
    lists: dict[str, ListSet] = field(default_factory=dict)


HasNetworks = Callable[[str], bool]


def render_match(rule: WantedRule, family: int, has_networks: HasNetworks, *, by_iptables: bool = False) -> Rendered:
    """``has_networks``: whether a set (by its id) has networks of this family besides single addresses.
    ``by_iptables``: for legacy iptables, which needs rules before a rule for what it tests twice, and several for a
    long list of ports.

    No matches: the rule does not exist in this family. Raises CannotRender.
    """
    if family not in rule.families:
        return Rendered([])
    done = Rendered([])
    parts: list[list[Match]] = [_protocol(rule), _icmp(rule, family), _not_icmp(rule, family)]
    both = ((rule.source, True), (rule.destination, False))
    sides = [(side, is_source) for side, is_source in both if side is not ANY_SIDE]
    try:
        for side, is_source in sides:
            if by_iptables and _is_one_test(rule, side):
                parts.append([_port_choice(side, is_source, done)])
            elif side.ports or side.port_sets:
                parts.append(_ports(side, is_source, done))
            if side.not_ports or side.not_port_sets:
                parts.append(_not_ports(side, is_source, done))
        for side, is_source in sides:
            if side.nets:
                parts.append(_nets(side.nets, family, is_source, done, inside=True))
            if side.not_nets:
                parts.append(_nets(side.not_nets, family, is_source, done, inside=False))
        for side, is_source in sides:
            parts += _sets(side, is_source, has_networks)
    except _Nothing:
        return Rendered([])
    parts = [part for part in parts if part != [()]]
    parts.sort(key=len)  # alternatives last: combinations differ at their end only
    needed = prod(map(len, parts))
    if needed > MOST:
        raise CannotRender(f"one of its rules would need {needed} rules of the packet filter")
    if rule.action == "Log":
        parts = [_disjoint(part) for part in parts]
    done.matches = [tuple(test for match in combination for test in match) for combination in product(*parts)]
    return done


class _Nothing(Exception):
    """No packet of this family can match."""


ALWAYS: list[Match] = [()]
_LONG = 64  # a list of networks with more is not kept for the next rule that has it


# -- protocol ---------------------------------------------------------------------------------------------------------


# tests that many rules have are the same object in all of them


@lru_cache(maxsize=1024)
def protocol(number: int, negated: bool = False) -> Match:
    return (IsProtocol(number, negated),)


def _protocol(rule: WantedRule) -> list[Match]:
    match: Match = ()
    if rule.protocol is not None:
        match += protocol(rule.protocol)
    if rule.not_protocol is not None:
        match += protocol(rule.not_protocol, True)
    return [match]


def _icmp_type(type_and_code: tuple[int, int | None], *, negated: bool = False) -> IcmpType:
    kind, code = type_and_code
    return IcmpType(kind, kind, code, negated)


def _icmp(rule: WantedRule, family: int) -> list[Match]:
    if rule.icmp is None:
        return ALWAYS
    said = () if rule.protocol is not None else protocol(ICMP[family])
    return [(*said, _icmp_type(rule.icmp))]


def _not_icmp(rule: WantedRule, family: int) -> list[Match]:
    """Everything except these packets, including other protocols if the rule does not name one."""
    if rule.not_icmp is None:
        return ALWAYS
    other = _icmp_type(rule.not_icmp, negated=True)
    if rule.protocol is not None:
        return [(other,)] if rule.protocol == ICMP[family] else ALWAYS
    number = ICMP[family]
    return [protocol(number, True), (*protocol(number), other)]


# -- ports ------------------------------------------------------------------------------------------------------------


def _port_bytes(number: int) -> bytes:
    return number.to_bytes(2, "big")


@lru_cache(maxsize=4096)
def _merged(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


@lru_cache(maxsize=4096)
def _port_list(listed: tuple[tuple[int, int], ...]) -> ListSet:
    """``listed`` is as the rule has it: rules that share a list find its set by a hash that is known."""
    ranges = _merged(listed)
    shown = ".".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
    name = f"ports-{shown}" if len(shown) <= 40 else f"ports-{shown[:24]}_{digest(ranges)}"
    if sum(high - low + 1 for low, high in ranges) <= _FEW_PORTS:
        single = (port for low, high in ranges for port in range(low, high + 1))
        return ListSet(NftSet(name, ("inet_service",)), frozenset(map(_port_bytes, single)))
    spans = frozenset(_port_bytes(low) + _port_bytes(high) for low, high in ranges)
    return ListSet(NftSet(name, ("inet_service",), interval=True), spans)


@lru_cache(maxsize=1024)
def port_in(is_source: bool, low: int, high: int, negated: bool = False) -> Match:
    return (PortIn(is_source, low, high, negated),)


@lru_cache(maxsize=1024)
def _port_in_set(is_source: bool, name: str, negated: bool) -> Match:
    return (PortInSet(is_source, name, negated),)


def _numbers(numbers: tuple[tuple[int, int], ...], is_source: bool, done: Rendered, *, inside: bool) -> Match:
    ranges = _merged(numbers)
    if len(ranges) > 1:
        listed = _port_list(numbers)
        done.lists[listed.spec.name] = listed
        return _port_in_set(is_source, listed.spec.name, not inside)
    return port_in(is_source, *ranges[0], not inside)


def _in_port_set(name: str, is_source: bool) -> Match:
    return in_set(is_source, name, False, True)


def _ports(side: WantedSide, is_source: bool, done: Rendered) -> list[Match]:
    matches: list[Match] = []
    if side.ports:
        matches.append(_numbers(side.ports, is_source, done, inside=True))
    matches += [_in_port_set(name, is_source) for name in side.port_sets]
    return matches


def _mixes(side: WantedSide) -> bool:
    return bool(side.ports and side.port_sets)


def _is_one_test(rule: WantedRule, side: WantedSide) -> bool:
    """Whether iptables tests numbers and names in a chain of their own, so that they are no alternatives."""
    is_long = sum(1 if low == high else 2 for low, high in _merged(side.ports)) > MULTIPORT
    return _mixes(side) and len(side.port_sets) == 1 and (is_long or (_mixes(rule.source) and _mixes(rule.destination)))


def _port_choice(side: WantedSide, is_source: bool, done: Rendered) -> Match:
    listed = _port_list(side.ports)
    done.lists[listed.spec.name] = listed
    return (PortInEither(is_source, listed.spec.name, side.port_sets[0]),)


def _not_ports(side: WantedSide, is_source: bool, done: Rendered) -> list[Match]:
    match: Match = ()
    if side.not_ports:
        match += _numbers(side.not_ports, is_source, done, inside=False)
    for name in side.not_port_sets:
        match += in_set(is_source, name, True, True)
    return [match]


# -- addresses --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def in_network(network: Network, is_source: bool, negated: bool = False) -> Match:
    """The address of a side is in one network; the network of all addresses needs no test."""
    test = AddressInNet(is_source, network.network_address.packed, network.prefixlen, negated)
    return (test,) if network.prefixlen or negated else ()


def network_list(networks: tuple[Network, ...]) -> ListSet:
    """``networks`` of one family, disjoint. Of a long list each version would stay in memory."""
    return _made_network_list(networks) if len(networks) > _LONG else _network_list(networks)


@lru_cache(maxsize=4096)
def _network_list(networks: tuple[Network, ...]) -> ListSet:
    return _made_network_list(networks)


def _made_network_list(networks: tuple[Network, ...]) -> ListSet:
    family = networks[0].version
    name = f"nets{family}-{digest(*networks)}"
    elements = frozenset(network.network_address.packed + network.broadcast_address.packed for network in networks)
    return ListSet(NftSet(name, (ADDRESS_TYPE[family],), interval=True), elements)


@lru_cache(maxsize=4096)
def in_set(is_source: bool, name: str, negated: bool = False, with_port: bool = False) -> Match:
    return (AddressInSet(is_source, name, negated, with_port),)


def collapsed(networks: Sequence[Network], family: int) -> tuple[Network, ...]:
    same: Any = [network for network in networks if network.version == family]
    return tuple(sorted(collapse_addresses(same)))


def _nets(networks: tuple[Network, ...], family: int, is_source: bool, done: Rendered, *, inside: bool) -> list[Match]:
    mine = collapsed(networks, family)
    if not mine:
        if inside:
            raise _Nothing
        return ALWAYS
    if mine[0].prefixlen == 0:
        if not inside:
            raise _Nothing
        return ALWAYS
    if len(mine) == 1:
        return [in_network(mine[0], is_source, not inside)]
    listed = network_list(mine)
    done.lists[listed.spec.name] = listed
    return [in_set(is_source, listed.spec.name, not inside)]


def _sets(side: WantedSide, is_source: bool, has_networks: HasNetworks) -> list[list[Match]]:
    parts: list[list[Match]] = [[_in_port_set(name, is_source)] for name in side.service_sets]
    for name in side.sets:
        parts.append([in_set(is_source, one) for one in _with_networks(name, has_networks)])
    for name in side.not_sets:
        match: Match = ()
        for one in _with_networks(name, has_networks):
            match += in_set(is_source, one, True)
        parts.append([match])
    return parts


def _with_networks(name: str, has_networks: HasNetworks) -> tuple[str, ...]:
    return (name, name + NETWORKS) if has_networks(name) else (name,)


# -- alternatives that exclude each other -----------------------------------------------------------------------------


def _disjoint(alternatives: list[Match]) -> list[Match]:
    """Each excludes those before it, so that a packet matches only one of them."""
    out: list[Match] = []
    before: Match = ()
    for match in alternatives:
        out.append(before + match)
        if match is not alternatives[-1]:
            before += _opposite(match)
    return out


def _opposite(match: Match) -> Match:
    """What matches wherever one alternative does not, if the tests before its last one pass."""
    *before, last = match
    assert isinstance(last, IsProtocol | IcmpType | PortIn | PortInSet | AddressInSet)  # what has alternatives
    return (*before, replace(last, negated=not last.negated))
