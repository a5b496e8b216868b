"""PURE: the language of rules (netfilter/rules.py) as nf_tables' expressions, and which rules of ours the kernel has.

Rule: a rule is one rule of nf_tables; each of its tests and actions is a few expressions, whatever stands beside it.
What the kernel has is recognised by printing what it should be and comparing the two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from cni_calico.kernel.filter.nf_tables.attributes import decode_expression, encode_expression, rewritten
from cni_calico.kernel.filter.nf_tables.expressions import (
    Bitwise,
    Compare,
    CompareRange,
    CtLoad,
    CtStore,
    Expression,
    FibSourceInterface,
    MetaLoad,
    MetaStore,
    PayloadLoad,
    PayloadStore,
    PrintedRule,
    RejectPacket,
    SetLookup,
    UnknownExpression,
    WordsLoad,
    host32,
)
from cni_calico.kernel.netlink.wire import list_elements
from cni_calico.netfilter.rules import (
    COMMENT_CHARACTERS,
    KNOWN_BEFORE,
    KNOWN_BY_STATE,
    KNOWN_BY_STATUS,
    AcceptKnown,
    AddressInNet,
    AddressInSet,
    ArpSenderInSet,
    AtInterface,
    ConnectionIs,
    ConnectionLimit,
    CountPacket,
    Dispatch,
    DispatchMark,
    HasMark,
    IcmpType,
    IsArpReply,
    IsProtocol,
    IsTranslated,
    LabelConnection,
    LogPacket,
    NftRule,
    NoTrack,
    PacketVerdict,
    PortIn,
    PortInSet,
    RateLimit,
    Reject,
    ReportDecision,
    RuleAction,
    RuleTest,
    SetDscp,
    SetMark,
    SetMarkTo,
    SourceIsElsewhere,
    Unrecognised,
)
from cni_calico.netfilter.tables import interface_key

Expressions = tuple[Expression, ...]
# 1,000 policies have some 1,500 tests and actions; what is in excess is kept for nothing (0.5 kB each), because the
# chains of classes have names that do not come again
_CACHED = 2048
_ZERO, _ALL_BITS = host32(0), 0xFFFFFFFF
_ADDRESS_AT = {("ip", True): 12, ("ip", False): 16, ("ip6", True): 8, ("ip6", False): 24}
_ADDRESS_BYTES = {"ip": 4, "ip6": 16}
_FAMILY_OF = {4: "ip", 16: "ip6"}
# after an address in register 1: the protocol's register and the port's, each on the next four bytes
_PORT_REGISTERS = {"ip": (9, 10), "ip6": (2, 13)}
_STATES = {"invalid": 1, "established": 2, "related": 4, "new": 8, "untracked": 64}
_DESTINATION_TRANSLATED, _CONFIRMED = host32(1 << 5), host32(1 << 3)
_WITHOUT_CHAINS = KNOWN_BY_STATE, KNOWN_BY_STATUS, *KNOWN_BEFORE  # maps that lead to none
_UNREACHABLE = {"ip": 3, "ip6": 4}  # codes of ICMP and ICMPv6
# of both headers the first two bytes; in IPv6 the DSCP is in both of them
_DSCP_BITS, _DSCP_SHIFT, _CHECKSUM_AT = {"ip": 0x00FC, "ip6": 0x0FC0}, {"ip": 2, "ip6": 6}, {"ip": 10, "ip6": None}
_ARP_OPERATION, _ARP_REPLY, _ARP_SENDER = PayloadLoad("network", 6, 2), b"\0\2", PayloadLoad("network", 14, 4, 2)

# -- tests ------------------------------------------------------------------------------------------------------------


def _op(*, negated: bool) -> str:
    return "neq" if negated else "eq"


def _has_bits(load: Expression, bits: bytes, *, negated: bool) -> Expressions:
    return load, Bitwise(bits, _ZERO), Compare("eq" if negated else "neq", _ZERO)


def _protocol(test: IsProtocol, _: str) -> Expressions:
    return MetaLoad("l4proto"), Compare(_op(negated=test.negated), bytes((test.number,)))


def _port(*, is_source: bool) -> PayloadLoad:
    return PayloadLoad("transport", 0 if is_source else 2, 2)


def _port_in(test: PortIn, _: str) -> Expressions:
    load, low, high = _port(is_source=test.is_source), test.low.to_bytes(2, "big"), test.high.to_bytes(2, "big")
    if low == high:
        return load, Compare(_op(negated=test.negated), low)
    if test.negated:
        return load, CompareRange("neq", low, high)
    return load, Compare("gte", low), Compare("lte", high)


def _port_in_set(test: PortInSet, _: str) -> Expressions:
    return _port(is_source=test.is_source), SetLookup(test.name, invert=test.negated)


def _icmp(test: IcmpType, _: str) -> Expressions:
    first, last, op = bytes((test.first,)), bytes((test.last,)), _op(negated=test.negated)
    if test.code is not None:
        return PayloadLoad("transport", 0, 2), Compare(op, first + bytes((test.code,)))
    return PayloadLoad("transport", 0, 1), Compare(op, first) if first == last else CompareRange(op, first, last)


def _address(family: str, *, is_source: bool) -> PayloadLoad:
    return PayloadLoad("network", _ADDRESS_AT[family, is_source], _ADDRESS_BYTES[family])


def _address_in_net(test: AddressInNet, _: str) -> Expressions:
    """Whole bytes are loaded where the prefix ends between two."""
    address, length, op = test.address, test.length, _op(negated=test.negated)
    size = len(address)
    load = _address(_FAMILY_OF[size], is_source=test.is_source)
    if length and length % 8 == 0:
        return PayloadLoad("network", load.offset, length // 8), Compare(op, address[: length // 8])
    mask = ((1 << length) - 1 << 8 * size - length).to_bytes(size, "big")
    return load, Bitwise(mask, bytes(size)), Compare(op, address)


def _address_in_set(test: AddressInSet, family: str) -> Expressions:
    load, lookup = _address(family, is_source=test.is_source), SetLookup(test.name, invert=test.negated)
    if not test.with_port:
        return load, lookup
    protocol, port = _PORT_REGISTERS[family]
    at = _port(is_source=test.is_source).offset
    return load, MetaLoad("l4proto", protocol), PayloadLoad("transport", at, 2, port), lookup


def _interface(*, is_out: bool) -> MetaLoad:
    return MetaLoad("oifname" if is_out else "iifname")


def _at_interface(test: AtInterface, _: str) -> Expressions:
    key = interface_key(test.name)
    return _interface(is_out=test.is_out), Compare("eq", key.rstrip(b"\0") if test.is_prefix else key)


def _connection(test: ConnectionIs, _: str) -> Expressions:
    return _has_bits(CtLoad("state"), host32(sum(_STATES[one] for one in test.states)), negated=test.negated)


def _translated(test: IsTranslated, _: str) -> Expressions:
    return _has_bits(CtLoad("status"), _DESTINATION_TRANSLATED, negated=test.negated)


def _marked(test: HasMark, _: str) -> Expressions:
    return _has_bits(MetaLoad("mark"), host32(test.bit), negated=test.negated)


def _source_elsewhere(_: SourceIsElsewhere, __: str) -> Expressions:
    return FibSourceInterface(), Compare("eq", _ZERO)


def _arp_reply(_: IsArpReply, __: str) -> Expressions:
    return _ARP_OPERATION, Compare("eq", _ARP_REPLY)


def _arp_sender(test: ArpSenderInSet, _: str) -> Expressions:
    return _interface(is_out=True), _ARP_SENDER, SetLookup(test.name)


# -- actions ----------------------------------------------------------------------------------------------------------


def _reject(action: Reject, family: str) -> Expressions:
    return (RejectPacket(None if action.with_reset else _UNREACHABLE[family]),)


def _dispatch(action: Dispatch, _: str) -> Expressions:
    return _interface(is_out=action.is_out), SetLookup(action.name, verdict=True)


def _dispatch_mark(action: DispatchMark, _: str) -> Expressions:
    return MetaLoad("mark"), Bitwise(host32(action.bits), _ZERO), SetLookup(action.name, verdict=True)


def _set_mark_to(action: SetMarkTo, _: str) -> Expressions:
    return MetaLoad("mark"), Bitwise(host32(_ALL_BITS & ~action.bits), host32(action.value)), MetaStore("mark")


def _set_mark(action: SetMark, _: str) -> Expressions:
    kept = host32(_ALL_BITS & ~action.bit)
    return MetaLoad("mark"), Bitwise(kept, _ZERO if action.cleared else host32(action.bit)), MetaStore("mark")


def _set_dscp(action: SetDscp, family: str) -> Expressions:
    kept = (0xFFFF & ~_DSCP_BITS[family]).to_bytes(2, "big")
    value = (action.value << _DSCP_SHIFT[family]).to_bytes(2, "big")
    store = PayloadStore("network", 0, 2, _CHECKSUM_AT[family])
    return PayloadLoad("network", 0, 2), Bitwise(kept, value), store


def _accept_known(_: AcceptKnown, __: str) -> Expressions:
    state = CtLoad("state"), SetLookup(KNOWN_BY_STATE, verdict=True)
    return *state, CtLoad("status"), Bitwise(_CONFIRMED, _ZERO), SetLookup(KNOWN_BY_STATUS, verdict=True)


def _label(action: LabelConnection, _: str) -> Expressions:
    words = host32(action.number) + host32(~action.number & _ALL_BITS)
    return WordsLoad(bytes(8) + words if action.ingress else words + bytes(8)), CtStore("labels")


def _itself(
    part: RateLimit | ConnectionLimit | LogPacket | NoTrack | CountPacket | ReportDecision | PacketVerdict, _: str
) -> Expressions:
    return (part,)


_PRINTERS: dict[type, Callable[..., Expressions]] = {
    IsProtocol: _protocol,
    PortIn: _port_in,
    PortInSet: _port_in_set,
    IcmpType: _icmp,
    AddressInNet: _address_in_net,
    AddressInSet: _address_in_set,
    AtInterface: _at_interface,
    ConnectionIs: _connection,
    IsTranslated: _translated,
    HasMark: _marked,
    SourceIsElsewhere: _source_elsewhere,
    RateLimit: _itself,
    ConnectionLimit: _itself,
    IsArpReply: _arp_reply,
    ArpSenderInSet: _arp_sender,
    PacketVerdict: _itself,
    Reject: _reject,
    Dispatch: _dispatch,
    DispatchMark: _dispatch_mark,
    SetMark: _set_mark,
    SetMarkTo: _set_mark_to,
    SetDscp: _set_dscp,
    NoTrack: _itself,
    LogPacket: _itself,
    CountPacket: _itself,
    AcceptKnown: _accept_known,
    LabelConnection: _label,
    ReportDecision: _itself,
}
_OF_A_FAMILY = (AddressInSet, Reject, SetDscp)  # the others are the same in every family, and are remembered once


# -- rules ------------------------------------------------------------------------------------------------------------


@lru_cache(_CACHED)
def _encoded(part: RuleTest | RuleAction, family: str) -> bytes:
    return b"".join(map(encode_expression, _PRINTERS[type(part)](part, family)))


def print_rule(rule: NftRule, family: str) -> PrintedRule:
    """As the kernel has it. ``family``: ip, ip6, inet, arp."""
    first = rule.tests[0] if rule.tests else None
    if isinstance(first, Unrecognised) and isinstance(first.content, PrintedRule):
        return first.content
    return PrintedRule(_print_parts(rule, family, {}), _cut(rule.comment))


def _print_parts(rule: NftRule, family: str, printed: dict[int, bytes]) -> bytes:
    found = []
    for part in (*rule.tests, *rule.actions):
        text = printed.get(id(part))
        if text is None:
            text = printed[id(part)] = _encoded(part, family if isinstance(part, _OF_A_FAMILY) else "")
        found.append(text)
    return b"".join(found)


def _cut(comment: str) -> str:
    """As much of a comment as a rule can hold, in whole characters."""
    if not comment:
        return ""
    data = comment.encode("utf-8", "replace")
    return data[:COMMENT_CHARACTERS].decode(errors="ignore")


def are_printed(
    rules: Sequence[NftRule], there: Sequence[PrintedRule], family: str, printed: dict[int, bytes] | None = None
) -> bool:
    """Whether the kernel has exactly these rules. ``printed``: by identity, what parts of rules have been printed as
    for this family; their owner keeps them while it is used.
    """
    if len(rules) != len(there):
        return False
    printed = {} if printed is None else printed
    return all(_is_printed(*both, family, printed) for both in zip(rules, there, strict=True))


def _is_printed(rule: NftRule, there: PrintedRule, family: str, printed: dict[int, bytes]) -> bool:
    if _is_unrecognised(rule):
        return rule == _unrecognised(there)
    return there.expressions == _print_parts(rule, family, printed) and there.comment == _cut(rule.comment)


def recognise(
    there: Sequence[PrintedRule],
    candidates: Iterable[tuple[NftRule, ...]],
    family: str,
    printed: dict[int, bytes] | None = None,
) -> tuple[NftRule, ...]:
    """The first of ``candidates`` that the kernel has; if it has none of them, rules that equal none of ours. What was
    not recognised before is no candidate: it may be what is wanted now. ``printed``: as for ``are_printed``.
    """
    for rules in candidates:
        if are_printed(rules, there, family, printed) and not any(map(_is_unrecognised, rules[:1])):
            return rules
    return tuple(map(_unrecognised, there))


def is_printed_as(there: Sequence[NftRule], wanted: Sequence[NftRule], family: str) -> bool:
    """Whether rules that were not recognised are these."""
    if len(there) != len(wanted) or not all(map(_is_unrecognised, there)):
        return False
    return are_printed(wanted, [print_rule(rule, family) for rule in there], family)


def _unrecognised(there: PrintedRule) -> NftRule:
    """With what it jumps to, looks up, and changes of the mark."""
    sets, actions, is_known, changed = list[str](), list[RuleAction](), True, Bitwise(b"", b"")
    for expression in map(decode_expression, list_elements(there.expressions)):
        match expression:
            case SetLookup(name, verdict=is_map) if not is_map or name in _WITHOUT_CHAINS:
                sets.append(name)
            case Bitwise():
                changed = expression
            case MetaStore():
                actions += _marks_of(changed)
            case PacketVerdict(kind):
                actions.append(expression)
                is_known = is_known and kind != "goto"
            case SetLookup() | UnknownExpression():
                is_known = False
    return NftRule((Unrecognised(there, tuple(sets), is_known),), tuple(actions))


def _marks_of(changed: Bitwise) -> Iterator[SetMark]:
    """The bits that a store sets and clears; all of them if it is not known which."""
    mask, xor = (int.from_bytes(part.ljust(4, b"\0"), sys.byteorder) for part in (changed.mask, changed.xor))
    bits = ~mask & _ALL_BITS | xor
    for bit, cleared in ((bits & xor, False), (bits & ~xor, True)):
        if bit:
            yield SetMark(bit, cleared)


def _is_unrecognised(rule: NftRule) -> bool:
    return bool(rule.tests) and isinstance(rule.tests[0], Unrecognised)


def forget_cached() -> None:
    """Free what a large load left in the caches of both directions."""
    decode_expression.cache_clear()
    rewritten.cache_clear()
    _encoded.cache_clear()
