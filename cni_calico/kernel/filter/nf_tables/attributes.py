"""PURE: nf_tables expressions as netlink attributes, and back.

Rule: what we write is read back as an equal value, whatever attributes a newer kernel adds; an expression that we do
not know becomes UnknownExpression, which equals no expression of ours. Numbers are in network order. Layouts:
linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from struct import Struct

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
    RejectPacket,
    SetLookup,
    UnknownExpression,
    WordsLoad,
)
from cni_calico.kernel.netlink import wire
from cni_calico.netfilter.rules import (
    ConnectionLimit,
    CountPacket,
    LogPacket,
    NoTrack,
    PacketVerdict,
    RateLimit,
    ReportDecision,
)

_LIST_ELEMENT = 1
_NAME, _DATA = 1, 2
_DATA_VALUE, _DATA_VERDICT = 1, 2
_VERDICT_CODE, _VERDICT_CHAIN = 1, 2
_U32, _U64, _S32 = Struct(">I"), Struct(">Q"), Struct(">i")

_META = {"mark": 3, "iifname": 6, "oifname": 7, "l4proto": 16}
_CT = {"state": 0, "status": 2, "labels": 13}
_BASES = {"network": 1, "transport": 2}
_OPERATORS = {"eq": 0, "neq": 1, "lt": 2, "lte": 3, "gt": 4, "gte": 5}
_VERDICTS = {"accept": 1, "drop": 0, "continue": -1, "jump": -3, "goto": -4, "return": -5}
_META_NAMES, _CT_NAMES, _BASE_NAMES, _OPERATOR_NAMES, _VERDICT_NAMES = (
    {number: name for name, number in table.items()} for table in (_META, _CT, _BASES, _OPERATORS, _VERDICTS)
)
_FIB_OIF, _FIB_SADDR_MARK_IIF = 1, 0x1 | 0x4 | 0x8
_UNREACHABLE, _RESET = 0, 1
_INVERT = 1
_NO_CHECKSUM, _INTERNET_CHECKSUM = 0, 1  # of a header that is written
# of a decision's report: enough for both headers of IPv6; so many are sent at once, or what there is after some time
REPORT_BYTES, REPORTS_AT_ONCE = 64, 32
# 1,000 policies have some 1,500 expressions; what is in excess is kept for nothing (0.4 kB each), because the chains of
# classes have names that do not come again.
_CACHED = 2048
_ORDER = sys.byteorder


def be32(kind: int, value: int) -> bytes:
    return wire.attribute(kind, _U32.pack(value))


def be64(kind: int, value: int) -> bytes:
    return wire.attribute(kind, _U64.pack(value))


def number_of(payload: bytes | None, default: int = 0) -> int:
    """A 32-bit attribute in network order. Raises KernelError if it has another size."""
    if payload is None:
        return default
    if len(payload) != 4:
        raise wire.malformed("a netlink attribute", f"{len(payload)} bytes where 4 are needed")
    value: int = _U32.unpack(payload)[0]
    return value


def _number64(payload: bytes | None) -> int:
    if payload is None or len(payload) != 8:
        raise wire.malformed("a netlink attribute", "no 64-bit number where one is needed")
    value: int = _U64.unpack(payload)[0]
    return value


# -- encoding ---------------------------------------------------------------------------------------------------------


def _value(kind: int, data: bytes) -> bytes:
    return wire.nested(kind, wire.attribute(_DATA_VALUE, data))


def encode_verdict(kind: int, verdict: PacketVerdict) -> bytes:
    """A verdict as the data of an immediate expression or of a map's element."""
    parts = [wire.attribute(_VERDICT_CODE, _S32.pack(_VERDICTS[verdict.kind]))]
    if verdict.chain:
        parts.append(wire.text(_VERDICT_CHAIN, verdict.chain))
    return wire.nested(kind, wire.nested(_DATA_VERDICT, *parts))


def _meta_load(e: MetaLoad) -> tuple[str, bytes]:
    return "meta", be32(2, _META[e.key]) + be32(1, e.register)


def _meta_store(e: MetaStore) -> tuple[str, bytes]:
    return "meta", be32(2, _META[e.key]) + be32(3, e.register)


def _ct(e: CtLoad) -> tuple[str, bytes]:
    return "ct", be32(2, _CT[e.key]) + be32(1, e.register)


def _ct_store(e: CtStore) -> tuple[str, bytes]:
    return "ct", be32(2, _CT[e.key]) + be32(4, e.register)


def _words(e: WordsLoad) -> tuple[str, bytes]:
    return "immediate", be32(1, e.register) + _value(2, e.data)


def _payload(e: PayloadLoad) -> tuple[str, bytes]:
    return "payload", be32(1, e.register) + be32(2, _BASES[e.base]) + be32(3, e.offset) + be32(4, e.length)


def _payload_store(e: PayloadStore) -> tuple[str, bytes]:
    place = be32(5, e.register) + be32(2, _BASES[e.base]) + be32(3, e.offset) + be32(4, e.length)
    kind = _NO_CHECKSUM if e.checksum_at is None else _INTERNET_CHECKSUM
    return "payload", place + be32(6, kind) + be32(7, e.checksum_at or 0)


def _fib(e: FibSourceInterface) -> tuple[str, bytes]:
    return "fib", be32(3, _FIB_SADDR_MARK_IIF) + be32(2, _FIB_OIF) + be32(1, e.register)


def _bitwise(e: Bitwise) -> tuple[str, bytes]:
    head = be32(1, e.register) + be32(2, e.register) + be32(3, len(e.mask))
    return "bitwise", head + _value(4, e.mask) + _value(5, e.xor)


def _compare(e: Compare) -> tuple[str, bytes]:
    return "cmp", be32(1, e.register) + be32(2, _OPERATORS[e.op]) + _value(3, e.data)


def _range(e: CompareRange) -> tuple[str, bytes]:
    return "range", be32(1, e.register) + be32(2, _OPERATORS[e.op]) + _value(3, e.low) + _value(4, e.high)


def _lookup(e: SetLookup) -> tuple[str, bytes]:
    verdict = be32(3, 0) if e.verdict else b""
    return "lookup", wire.text(1, e.name) + be32(2, e.register) + verdict + be32(5, _INVERT if e.invert else 0)


def _limit(e: RateLimit) -> tuple[str, bytes]:
    flags = be32(5, _INVERT if e.over else 0)
    return "limit", be64(1, e.rate) + be64(2, e.per_s) + be32(3, e.burst) + be32(4, 0) + flags


def _connections(e: ConnectionLimit) -> tuple[str, bytes]:
    return "connlimit", be32(1, e.count) + be32(2, _INVERT)


def _log(e: LogPacket) -> tuple[str, bytes]:
    if e.group:
        return "log", wire.attribute(1, e.group.to_bytes(2, "big")) + wire.text(2, e.prefix)
    return "log", wire.text(2, e.prefix) + be32(5, e.level)


def _report(e: ReportDecision) -> tuple[str, bytes]:
    where = wire.attribute(1, e.group.to_bytes(2, "big")) + wire.text(2, f"{e.number:08x}")
    return "log", where + be32(3, REPORT_BYTES) + wire.attribute(4, REPORTS_AT_ONCE.to_bytes(2, "big"))


def _reject(e: RejectPacket) -> tuple[str, bytes]:
    if e.icmp_code is None:
        return "reject", be32(1, _RESET)
    return "reject", be32(1, _UNREACHABLE) + wire.attribute(2, bytes((e.icmp_code,)))


def _notrack(_: NoTrack) -> tuple[str, bytes]:
    return "notrack", b""


def _counter(_: CountPacket) -> tuple[str, bytes]:
    return "counter", be64(1, 0) + be64(2, 0)


def _immediate(e: PacketVerdict) -> tuple[str, bytes]:
    return "immediate", be32(1, 0) + encode_verdict(2, e)


_ENCODERS: dict[type, Callable[..., tuple[str, bytes]]] = {
    MetaLoad: _meta_load,
    MetaStore: _meta_store,
    CtLoad: _ct,
    CtStore: _ct_store,
    WordsLoad: _words,
    PayloadLoad: _payload,
    PayloadStore: _payload_store,
    FibSourceInterface: _fib,
    Bitwise: _bitwise,
    Compare: _compare,
    CompareRange: _range,
    SetLookup: _lookup,
    RateLimit: _limit,
    ConnectionLimit: _connections,
    LogPacket: _log,
    ReportDecision: _report,
    RejectPacket: _reject,
    NoTrack: _notrack,
    CountPacket: _counter,
    PacketVerdict: _immediate,
}


def encode_expression(expression: Expression) -> bytes:
    """An element of a rule's list of expressions."""
    name, data = _ENCODERS[type(expression)](expression)
    return wire.nested(_LIST_ELEMENT, wire.text(_NAME, name), wire.nested(_DATA, data))


# -- decoding ---------------------------------------------------------------------------------------------------------


class _Strange(Exception):
    """The expression does not have the form in which we write it."""


def _found(payload: bytes | None) -> bytes:
    """The bytes of a data attribute."""
    value = wire.attributes(payload or b"").get(_DATA_VALUE)
    if value is None:
        raise _Strange
    return value


def _register(payload: bytes | None) -> int:
    return number_of(payload, 0)


def decode_verdict(payload: bytes | None) -> PacketVerdict | None:
    """The verdict in a data attribute, None if it holds something else."""
    data = wire.attributes(payload or b"").get(_DATA_VERDICT)
    if data is None:
        return None
    found = wire.attributes(data)
    code = number_of(found.get(_VERDICT_CODE), 0)
    name = _VERDICT_NAMES.get(code - (1 << 32) if code >> 31 else code)
    return None if name is None else PacketVerdict(name, wire.name(found.get(_VERDICT_CHAIN)))


def _read_meta(a: dict[int, bytes]) -> Expression:
    key = _META_NAMES[number_of(a.get(2))]
    return MetaStore(key, _register(a[3])) if 3 in a else MetaLoad(key, _register(a.get(1)))


def _read_ct(a: dict[int, bytes]) -> Expression:
    key = _CT_NAMES[number_of(a.get(2))]
    if 3 in a or (4 in a) is not (key == "labels"):
        raise _Strange
    return CtStore(key, _register(a[4])) if 4 in a else CtLoad(key, _register(a.get(1)))


def _read_payload(a: dict[int, bytes]) -> Expression:
    place = _BASE_NAMES[number_of(a.get(2))], number_of(a.get(3)), number_of(a.get(4))
    if 1 in a:
        return PayloadLoad(*place, _register(a[1]))
    kind, at = number_of(a.get(6)), number_of(a.get(7))
    if kind > _INTERNET_CHECKSUM or number_of(a.get(8)) or (at and kind == _NO_CHECKSUM):
        raise _Strange
    return PayloadStore(*place, None if kind == _NO_CHECKSUM else at, _register(a[5]))


def _read_fib(a: dict[int, bytes]) -> Expression:
    if number_of(a.get(3)) != _FIB_SADDR_MARK_IIF or number_of(a.get(2)) != _FIB_OIF:
        raise _Strange
    return FibSourceInterface(_register(a.get(1)))


def _read_bitwise(a: dict[int, bytes]) -> Expression:
    if number_of(a.get(6)) or a.get(1) != a.get(2):
        raise _Strange
    return Bitwise(_found(a.get(4)), _found(a.get(5)), _register(a.get(1)))


def _read_compare(a: dict[int, bytes]) -> Expression:
    return Compare(_OPERATOR_NAMES[number_of(a.get(2))], _found(a.get(3)), _register(a.get(1)))


def _read_range(a: dict[int, bytes]) -> Expression:
    op = _OPERATOR_NAMES[number_of(a.get(2))]
    return CompareRange(op, _found(a.get(3)), _found(a.get(4)), _register(a.get(1)))


def _read_lookup(a: dict[int, bytes]) -> Expression:
    if 3 in a and number_of(a[3]):
        raise _Strange
    return SetLookup(wire.name(a.get(1)), bool(number_of(a.get(5)) & _INVERT), 3 in a, _register(a.get(2)))


def _read_limit(a: dict[int, bytes]) -> Expression:
    if number_of(a.get(4)):
        raise _Strange
    over = bool(number_of(a.get(5)) & _INVERT)
    return RateLimit(_number64(a.get(1)), _number64(a.get(2)), number_of(a.get(3)), over)


def _read_connections(a: dict[int, bytes]) -> Expression:
    if not number_of(a.get(2)) & _INVERT:
        raise _Strange
    return ConnectionLimit(number_of(a.get(1)))


def _read_log(a: dict[int, bytes]) -> Expression:
    group = int.from_bytes(a.get(1, b""), "big")
    if group and number_of(a.get(3)) == REPORT_BYTES and int.from_bytes(a.get(4, b""), "big") == REPORTS_AT_ONCE:
        return _read_report(a, group)
    if number_of(a.get(6)) or (1 in a and not group) or (group and (3 in a or 4 in a)):
        raise _Strange
    return (
        LogPacket(wire.name(a.get(2)), group=group) if group else LogPacket(wire.name(a.get(2)), number_of(a.get(5), 4))
    )


def _read_report(a: dict[int, bytes], group: int) -> Expression:
    prefix = wire.name(a.get(2))
    try:
        decision = ReportDecision(int(prefix, 16), group)
    except ValueError:
        raise _Strange from None
    if number_of(a.get(6)) or prefix != f"{decision.number:08x}":
        raise _Strange
    return decision


def _read_reject(a: dict[int, bytes]) -> Expression:
    kind = number_of(a.get(1))
    if kind == _RESET:
        return RejectPacket()
    if kind != _UNREACHABLE:
        raise _Strange
    return RejectPacket(a.get(2, b"\0")[0])


def _read_immediate(a: dict[int, bytes]) -> Expression:
    verdict, register = decode_verdict(a.get(2)), number_of(a.get(1))
    if verdict is None and register:
        return WordsLoad(_found(a.get(2)), register)
    if verdict is None or register:
        raise _Strange
    return verdict


_DECODERS: dict[str, Callable[[dict[int, bytes]], Expression]] = {
    "meta": _read_meta,
    "ct": _read_ct,
    "payload": _read_payload,
    "fib": _read_fib,
    "bitwise": _read_bitwise,
    "cmp": _read_compare,
    "range": _read_range,
    "lookup": _read_lookup,
    "limit": _read_limit,
    "connlimit": _read_connections,
    "log": _read_log,
    "reject": _read_reject,
    "notrack": lambda _: NoTrack(),
    "counter": lambda _: CountPacket(),
    "immediate": _read_immediate,
}


@lru_cache(_CACHED)
def decode_expression(payload: bytes) -> Expression:
    """One element of a rule's list. Raises KernelError for attributes with wrong lengths."""
    found = wire.attributes(payload)
    name, data = wire.name(found.get(_NAME)), found.get(_DATA, b"")
    try:
        return _DECODERS[name](wire.attributes(data))
    except (_Strange, KeyError, IndexError):
        return UnknownExpression(name, data)


@lru_cache(_CACHED)
def rewritten(payload: bytes) -> bytes:
    """One element of a rule's list as we would have written it; one that we do not know as it is. Raises KernelError.

    So rules are compared as bytes, whatever the kernel adds or in which order it lists attributes.
    """
    expression = decode_expression(payload)
    if isinstance(expression, UnknownExpression):
        return wire.nested(_LIST_ELEMENT, payload)
    return encode_expression(expression)
