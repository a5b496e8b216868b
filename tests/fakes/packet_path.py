"""What a kernel does with a packet by our tables, rule by rule: an nf_tables that is slow and needs no kernel.

Rule: the rules are printed, and their expressions get the meaning that nf_tables gives them.
tests/netns/test_verdicts.py and test_host_verdicts.py ask the real one about the same packets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cni_calico.kernel.filter.nf_tables.expressions import (
    Bitwise,
    Compare,
    CompareRange,
    CtLoad,
    Expression,
    FibSourceInterface,
    MetaLoad,
    MetaStore,
    PayloadLoad,
    RejectPacket,
    SetLookup,
    host32,
)
from cni_calico.netfilter.rules import (
    ConnectionLimit,
    CountPacket,
    LogPacket,
    NftRule,
    NoTrack,
    PacketVerdict,
    RateLimit,
)
from cni_calico.netfilter.tables import KEY_BYTES, NftTable
from tests.fakes.expressions import expressions_of
from tests.netns.wire import frame

_INVALID, _NEW, _UNTRACKED = 1, 8, 64  # states of a connection
_DNAT = 1 << 5
_ETHERNET, _NETWORK_HEADER = 14, {4: 20, 6: 40}
_WIDE, _WIDE_BYTES, _NARROW = 4, 16, 8  # registers 1 to 4 have 16 bytes; from 8 on they are the same in parts of four
_COMPARED = {
    "eq": lambda found, data: found == data,
    "neq": lambda found, data: found != data,
    "lt": lambda found, data: found < data,
    "lte": lambda found, data: found <= data,
    "gt": lambda found, data: found > data,
    "gte": lambda found, data: found >= data,
}


@dataclass(slots=True)
class Travelling:
    """A packet as tests describe it, on its way. ``came_from``: the interface that its source is routed to."""

    packet: Mapping[str, Any]
    incoming: str = ""
    outgoing: str = ""
    came_from: str = ""
    mark: int = 0
    tracked: bool = True
    translated: bool = False
    bytes: bytes = b""
    registers: bytearray = field(default_factory=lambda: bytearray(_WIDE * _WIDE_BYTES))

    def __post_init__(self) -> None:
        self.bytes = frame(dict(self.packet), 1)[_ETHERNET:]

    def change(self, packet: Mapping[str, Any]) -> None:
        """Its destination is translated."""
        self.packet, self.translated = packet, True
        self.bytes = frame(dict(packet), 1)[_ETHERNET:]

    @property
    def state(self) -> int:
        return _UNTRACKED if not self.tracked else _INVALID if self.packet.get("invalid") else _NEW


def passes(table: NftTable, hook: str, one: Travelling, *, after: int = -1000, before: int = 1000) -> bool:
    """Whether none of the hook's base chains with a priority between these drops it."""
    base = [
        (chain.hook.priority, chain.name) for chain in table.chains.values() if chain.hook and chain.hook.hook == hook
    ]
    chosen = [name for priority, name in sorted(base) if after < priority < before]
    return all(_through(table, name, one) != "drop" for name in chosen)


def _through(table: NftTable, name: str, one: Travelling) -> str:
    """accept, drop, or return, also where the chain ends."""
    for rule in table.chains[name].rules:
        verdict = _verdict_of(table, rule, one)
        if verdict.kind in ("jump", "goto"):
            decided = _through(table, verdict.chain, one)
            if decided != "return" or verdict.kind == "goto":
                return decided
        elif verdict.kind != "continue":
            return verdict.kind
    return "return"


def _verdict_of(table: NftTable, rule: NftRule, one: Travelling) -> PacketVerdict:
    """``continue`` if one of the rule's expressions does not match."""
    for expression in expressions_of(rule, table.family):
        if isinstance(expression, PacketVerdict):
            return expression
        if isinstance(expression, RejectPacket):
            return PacketVerdict("drop")
        if isinstance(expression, SetLookup) and expression.verdict:
            found = table.verdicts[expression.name].get(_key(table, expression, one))
            if found is None:
                break
            return found
        if not _matches(table, expression, one):
            break
    return PacketVerdict("continue")


def _matches(table: NftTable, expression: Expression, one: Travelling) -> bool:
    if isinstance(expression, MetaLoad | PayloadLoad | CtLoad | FibSourceInterface):
        loaded = _load(expression, one)
        if loaded is None:
            return False
        at = _at(expression.register)
        one.registers[at : at + len(loaded)] = loaded
    elif isinstance(expression, Bitwise):
        at, length = _at(expression.register), len(expression.mask)
        both = zip(one.registers[at : at + length], expression.mask, expression.xor, strict=True)
        one.registers[at : at + length] = bytes(byte & mask ^ xor for byte, mask, xor in both)
    elif isinstance(expression, Compare):
        return _COMPARED[expression.op](_read(one, expression.register, len(expression.data)), expression.data)
    elif isinstance(expression, CompareRange):
        inside = expression.low <= _read(one, expression.register, len(expression.low)) <= expression.high
        return inside is (expression.op == "eq")
    elif isinstance(expression, SetLookup):
        return _is_in(table, expression, one) is not expression.invert
    elif isinstance(expression, MetaStore):
        one.mark = int.from_bytes(_read(one, expression.register, 4), _order())
    elif isinstance(expression, NoTrack):
        one.tracked = False
    elif isinstance(expression, RateLimit):
        return not expression.over
    elif isinstance(expression, ConnectionLimit):
        return False
    else:
        assert isinstance(expression, LogPacket | CountPacket), expression
    return True


def _load(expression: MetaLoad | PayloadLoad | CtLoad | FibSourceInterface, one: Travelling) -> bytes | None:
    """Padded to whole parts of a register; None where there is nothing to load."""
    if isinstance(expression, MetaLoad):
        names = {"iifname": one.incoming, "oifname": one.outgoing}
        if expression.key in names:
            return names[expression.key].encode().ljust(KEY_BYTES["ifname"], b"\0")
        return host32(one.mark) if expression.key == "mark" else _padded(bytes((one.packet["protocol"],)))
    if isinstance(expression, FibSourceInterface):
        return host32(int(one.came_from == one.incoming))
    if isinstance(expression, CtLoad):
        if expression.key == "state":
            return host32(one.state)
        return None if one.state != _NEW else host32(_DNAT * one.translated)
    start = expression.offset
    if expression.base == "transport":
        start += _NETWORK_HEADER[one.packet["source"].version]
    loaded = one.bytes[start : start + expression.length]
    return _padded(loaded) if len(loaded) == expression.length else None


def _padded(loaded: bytes) -> bytes:
    return loaded.ljust(len(loaded) + 3 & ~3, b"\0")


def _order() -> Any:
    return "little" if host32(1)[0] else "big"


def _at(register: int) -> int:
    return (register - 1) * _WIDE_BYTES if register <= _WIDE else (register - _NARROW) * 4


def _read(one: Travelling, register: int, length: int) -> bytes:
    return bytes(one.registers[_at(register) : _at(register) + length])


def _key(table: NftTable, lookup: SetLookup, one: Travelling) -> bytes:
    return _read(one, lookup.register, table.sets[lookup.name].key_bytes)


def _is_in(table: NftTable, lookup: SetLookup, one: Travelling) -> bool:
    key, elements = _key(table, lookup, one), table.elements[lookup.name]
    if not table.sets[lookup.name].interval:
        return key in elements
    return any(span[: len(key)] <= key <= span[len(key) :] for span in elements)
