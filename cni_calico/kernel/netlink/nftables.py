"""nf_tables spoken directly: operations in one transaction, a table read back as values.

Rule: everything is named, nothing is addressed by a handle, so a change needs no reading first. What ``nft list
ruleset`` needs to show our tables (byte order of keys, comments) is in the user data of sets and rules; the user data
of others' objects is never looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import ENOENT
from typing import Protocol

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.expressions import (
    be32,
    decode_expression,
    decode_verdict,
    encode_expression,
    encode_verdict,
    list_elements,
    number_of,
)
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES, NFTABLES, FilterMessage, Nfnetlink, general
from cni_calico.kernel.netlink.wire import NLM_F_CREATE, attribute, nested, text
from cni_calico.model.netfilter import (
    AddChain,
    AddElements,
    AddRules,
    AddSet,
    AddTable,
    AddVerdicts,
    BaseHook,
    DropChain,
    DropElements,
    DropSet,
    DropTable,
    FlushChain,
    Immediate,
    NftChain,
    NftRule,
    NftSet,
    NftTable,
    Operation,
    TableId,
)

(
    _NEWTABLE,
    _GETTABLE,
    _DELTABLE,
    _NEWCHAIN,
    _GETCHAIN,
    _DELCHAIN,
    _NEWRULE,
    _GETRULE,
    _DELRULE,
    _NEWSET,
    _GETSET,
    _DELSET,
    _NEWSETELEM,
    _GETSETELEM,
    _DELSETELEM,
    _NEWGEN,
    _GETGEN,
) = (NFTABLES << 8 | number for number in range(17))
_NLM_F_APPEND = 0x800
_TABLE_NAME = 1
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_POLICY, _CHAIN_TYPE = 1, 3, 4, 5, 7
_HOOK_NUMBER, _HOOK_PRIORITY = 1, 2
_RULE_TABLE, _RULE_CHAIN, _RULE_EXPRESSIONS, _RULE_USERDATA = 1, 2, 4, 7
_SET_TABLE, _SET_NAME, _SET_FLAGS, _SET_KEY_TYPE, _SET_KEY_BYTES, _SET_DATA_TYPE, _SET_DATA_BYTES = range(1, 8)
_SET_ID, _SET_USERDATA = 10, 13
_ELEM_TABLE, _ELEM_SET, _ELEM_LIST = 1, 2, 3
_LIST_ELEMENT = 1
_KEY, _DATA, _FLAGS = 1, 2, 3
_VALUE = 1
_INTERVAL, _MAP = 0x4, 0x8
_INTERVAL_END = be32(_FLAGS, 1)
_VERDICT_TYPE = 0xFFFFFF00
_GENERATION = 1

# an address's hook numbers are those of its family; arp has its own
_HOOKS = {"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}
_ARP_HOOKS = {"input": 0, "output": 1, "forward": 2}
_KEY_TYPES = {"ipv4_addr": 7, "ipv6_addr": 8, "inet_proto": 12, "inet_service": 13, "ifname": 41}
_KEY_NAMES = {number: name for name, number in _KEY_TYPES.items()}
_HOST_ORDER, _NETWORK_ORDER = 1, 2

COMMENT_BYTES = 120
_ATTRIBUTE_ROOM = 60000  # below the 64 KiB that an attribute can hold


class PacketFilter(Protocol):
    """What the policy engine needs of a kernel; the tests' fake is another implementation."""

    def apply(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        """All or nothing. Raises RulesRefused (``index``: the operation), RulesUnknown, DeadlineExceeded."""

    def read_table(self, table: TableId, deadline: Deadline) -> NftTable | None:
        """The table with everything in it, None when there is none. Raises KernelError."""

    def generation(self, deadline: Deadline) -> int:
        """A number that grows with every transaction of anybody. Raises KernelError."""


class NfTables:
    """The real one, in the network namespace of the thread that made it."""

    def __init__(self) -> None:
        self._netlink = Nfnetlink()

    def close(self) -> None:
        self._netlink.close()

    def __enter__(self) -> NfTables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def apply(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        self._netlink.transact(encode_operations(operations), "change the packet filter's rules", deadline)

    def generation(self, deadline: Deadline) -> int:
        replies = self._netlink.request(_GETGEN, 0, general(""), "read the packet filter's generation", deadline)
        for reply in replies:
            return number_of(wire.attributes(reply, GENERAL_BYTES).get(_GENERATION))
        raise KernelError("cannot read the packet filter's generation: the kernel did not say it")

    def read_table(self, table: TableId, deadline: Deadline) -> NftTable | None:
        doing = f"read the packet filter's table {table}"
        mine = text(_TABLE_NAME, table.name)
        try:
            self._netlink.request(_GETTABLE, 0, general(table.family) + mine, doing, deadline)
        except KernelError as e:
            if e.errno == ENOENT:
                return None
            raise
        found = NftTable(table.family, table.name)

        def listed(kind: int, body: bytes) -> Iterator[dict[int, bytes]]:
            for reply in self._netlink.dump(kind, general(table.family) + body, doing, deadline):
                attributes = wire.attributes(reply, GENERAL_BYTES)
                if wire.name(attributes.get(_TABLE_NAME)) == table.name:  # old kernels do not filter
                    yield attributes

        for attributes in listed(_GETSET, mine):
            spec = _decode_set(attributes)
            found.sets[spec.name] = spec
        for spec in found.sets.values():
            self._read_elements(found, spec, listed(_GETSETELEM, mine + text(_ELEM_SET, spec.name)))
        rules: dict[str, list[NftRule]] = {}
        for attributes in listed(_GETRULE, mine):
            rules.setdefault(wire.name(attributes.get(_RULE_CHAIN)), []).append(_decode_rule(attributes))
        for attributes in listed(_GETCHAIN, b""):
            name = wire.name(attributes.get(_CHAIN_NAME))
            hook = _decode_hook(table.family, attributes)
            found.chains[name] = NftChain(name, tuple(rules.get(name, ())), hook)
        return found

    @staticmethod
    def _read_elements(found: NftTable, spec: NftSet, listed: Iterable[dict[int, bytes]]) -> None:
        raw = [element for message in listed for element in list_elements(message.get(_ELEM_LIST, b""))]
        if spec.verdicts:
            found.verdicts[spec.name] = dict(map(_decode_map_element, raw))
        elif spec.interval:
            found.elements[spec.name] = set(_join_intervals(raw, spec.key_bytes))
        else:
            found.elements[spec.name] = {_key_of(wire.attributes(element)) for element in raw}


# -- operations as messages -------------------------------------------------------------------------------------------


def encode_operations(operations: Sequence[Operation]) -> list[FilterMessage]:
    """Each message knows the number of its operation."""
    messages: list[FilterMessage] = []
    for i, operation in enumerate(operations):
        for kind, flags, body in _ENCODERS[type(operation)](operation):
            messages.append(FilterMessage(kind, flags, body, i))
    return messages


_Encoded = Iterator[tuple[int, int, bytes]]


def _add_table(o: AddTable) -> _Encoded:
    yield _NEWTABLE, NLM_F_CREATE, general(o.table.family) + text(_TABLE_NAME, o.table.name)


def _drop_table(o: DropTable) -> _Encoded:
    yield _DELTABLE, 0, general(o.table.family) + text(_TABLE_NAME, o.table.name)


def _chain(table: TableId, name: str) -> bytes:
    return general(table.family) + text(_CHAIN_TABLE, table.name) + text(_CHAIN_NAME, name)


def _add_chain(o: AddChain) -> _Encoded:
    body = _chain(o.table, o.name)
    if o.hook is not None:
        number = (_ARP_HOOKS if o.table.family == "arp" else _HOOKS)[o.hook.hook]
        where = be32(_HOOK_NUMBER, number) + be32(_HOOK_PRIORITY, o.hook.priority & 0xFFFFFFFF)
        body += text(_CHAIN_TYPE, o.hook.kind) + be32(_CHAIN_POLICY, 1) + nested(_CHAIN_HOOK, where)
    yield _NEWCHAIN, NLM_F_CREATE, body


def _drop_chain(o: DropChain) -> _Encoded:
    yield _DELCHAIN, 0, _chain(o.table, o.name)


def _rules_of(table: TableId, chain: str) -> bytes:
    return general(table.family) + text(_RULE_TABLE, table.name) + text(_RULE_CHAIN, chain)


def _flush_chain(o: FlushChain) -> _Encoded:
    yield _DELRULE, 0, _rules_of(o.table, o.name)


def _add_rules(o: AddRules) -> _Encoded:
    head = _rules_of(o.table, o.chain)
    for rule in o.rules:
        body = head + nested(_RULE_EXPRESSIONS, *map(encode_expression, rule.expressions))
        if rule.comment:
            body += attribute(_RULE_USERDATA, _tagged(0, cut_comment(rule.comment) + b"\0"))
        yield _NEWRULE, NLM_F_CREATE | _NLM_F_APPEND, body


def cut_comment(comment: str) -> bytes:
    """As much of it as a rule can carry, in whole characters."""
    data = comment.encode("utf-8", "replace")
    return data if len(data) <= COMMENT_BYTES else data[:COMMENT_BYTES].decode(errors="ignore").encode()


def _add_set(o: AddSet) -> _Encoded:
    spec, flags, kind, order = o.spec, 0, 0, b""
    for part in spec.key:
        kind = kind << 6 | _KEY_TYPES[part]
    if spec.interval:
        flags |= _INTERVAL
    body = general(o.table.family) + text(_SET_TABLE, o.table.name) + text(_SET_NAME, spec.name)
    data = b""
    if spec.verdicts:
        flags |= _MAP
        data = be32(_SET_DATA_TYPE, _VERDICT_TYPE) + be32(_SET_DATA_BYTES, 0)
    if len(spec.key) == 1:  # without it nft refuses to list the set; a concatenation's it knows
        order = _tagged(0, _order(_HOST_ORDER if spec.key == ("ifname",) else _NETWORK_ORDER))
    body += be32(_SET_FLAGS, flags) + be32(_SET_KEY_TYPE, kind) + be32(_SET_KEY_BYTES, spec.key_bytes) + data
    body += be32(_SET_ID, 1)
    if order:
        body += attribute(_SET_USERDATA, order)
    yield _NEWSET, NLM_F_CREATE, body


def _order(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)


def _tagged(kind: int, data: bytes) -> bytes:
    """User data as nft's library writes it: type, length, bytes."""
    return bytes((kind, len(data))) + data


def _drop_set(o: DropSet) -> _Encoded:
    yield _DELSET, 0, general(o.table.family) + text(_SET_TABLE, o.table.name) + text(_SET_NAME, o.name)


def _element(key: bytes, more: bytes = b"") -> bytes:
    return nested(_LIST_ELEMENT, nested(_KEY, attribute(_VALUE, key)), more)


def _interval(element: bytes, size: int) -> bytes:
    """Its first key, and the first one behind it, which the highest key has none of."""
    first, behind = element[:size], int.from_bytes(element[size:], "big") + 1
    encoded = _element(first)
    if behind < 1 << 8 * size:
        encoded += _element(behind.to_bytes(size, "big"), _INTERVAL_END)
    return encoded


def _encoded_elements(spec: NftSet, elements: Iterable[bytes]) -> Iterator[bytes]:
    if spec.interval:
        return (_interval(element, spec.key_bytes) for element in elements)
    return map(_element, elements)


def _in_pieces(kind: int, flags: int, table: TableId, name: str, encoded: Iterable[bytes]) -> _Encoded:
    head = general(table.family) + text(_ELEM_TABLE, table.name) + text(_ELEM_SET, name)
    piece: list[bytes] = []
    room = _ATTRIBUTE_ROOM
    for element in encoded:
        if room < len(element):
            yield kind, flags, head + nested(_ELEM_LIST, *piece)
            piece, room = [], _ATTRIBUTE_ROOM
        piece.append(element)
        room -= len(element)
    if piece:
        yield kind, flags, head + nested(_ELEM_LIST, *piece)


def _add_elements(o: AddElements) -> _Encoded:
    encoded = _encoded_elements(o.spec, o.elements)
    return _in_pieces(_NEWSETELEM, NLM_F_CREATE, o.table, o.spec.name, encoded)


def _drop_elements(o: DropElements) -> _Encoded:
    return _in_pieces(_DELSETELEM, 0, o.table, o.spec.name, _encoded_elements(o.spec, o.elements))


def _add_verdicts(o: AddVerdicts) -> _Encoded:
    encoded = (_element(key, encode_verdict(_DATA, verdict)) for key, verdict in o.verdicts.items())
    return _in_pieces(_NEWSETELEM, NLM_F_CREATE, o.table, o.spec.name, encoded)


_ENCODERS: dict[type, Callable[..., _Encoded]] = {
    AddTable: _add_table,
    DropTable: _drop_table,
    AddChain: _add_chain,
    FlushChain: _flush_chain,
    DropChain: _drop_chain,
    AddRules: _add_rules,
    AddSet: _add_set,
    DropSet: _drop_set,
    AddElements: _add_elements,
    DropElements: _drop_elements,
    AddVerdicts: _add_verdicts,
}


# -- answers as values ------------------------------------------------------------------------------------------------


def _decode_hook(family: str, attributes: dict[int, bytes]) -> BaseHook | None:
    if _CHAIN_HOOK not in attributes:
        return None
    hook = wire.attributes(attributes[_CHAIN_HOOK])
    numbers = {number: name for name, number in (_ARP_HOOKS if family == "arp" else _HOOKS).items()}
    priority = number_of(hook.get(_HOOK_PRIORITY))
    name = numbers.get(number_of(hook.get(_HOOK_NUMBER)), "?")
    if number_of(attributes.get(_CHAIN_POLICY), 1) != 1:
        name += " (policy drop)"  # equals nothing of ours
    kind = wire.name(attributes.get(_CHAIN_TYPE))
    return BaseHook(name, priority - (1 << 32) if priority >> 31 else priority, kind)


def _decode_rule(attributes: dict[int, bytes]) -> NftRule:
    listed = list_elements(attributes.get(_RULE_EXPRESSIONS, b""))
    return NftRule(tuple(map(decode_expression, listed)), _decode_comment(attributes.get(_RULE_USERDATA, b"")))


def _decode_comment(data: bytes) -> str:
    at = 0
    while at + 2 <= len(data):
        kind, size = data[at], data[at + 1]
        if kind == 0:
            return wire.name(data[at + 2 : at + 2 + size])
        at += 2 + size
    return ""


def _decode_set(attributes: dict[int, bytes]) -> NftSet:
    kind, parts = number_of(attributes.get(_SET_KEY_TYPE)), []
    while kind:
        parts.append(_KEY_NAMES.get(kind & 0x3F, "?"))
        kind >>= 6
    flags = number_of(attributes.get(_SET_FLAGS))
    name = wire.name(attributes.get(_SET_NAME))
    if flags & ~(_INTERVAL | _MAP):
        parts.append("?")  # equals nothing of ours
    return NftSet(name, tuple(reversed(parts)), bool(flags & _INTERVAL), bool(flags & _MAP))


def _key_of(attributes: dict[int, bytes]) -> bytes:
    return wire.attributes(attributes.get(_KEY, b"")).get(_VALUE, b"")


def _decode_map_element(element: bytes) -> tuple[bytes, Immediate]:
    attributes = wire.attributes(element)
    verdict = decode_verdict(attributes.get(_DATA))
    return _key_of(attributes), Immediate("continue") if verdict is None else verdict


def _join_intervals(raw: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Pairs of first and last key, from the starts and ends that the kernel lists in an order of its own."""
    ends = []
    for element in raw:
        attributes = wire.attributes(element)
        ends.append((_key_of(attributes), number_of(attributes.get(_FLAGS)) & 1))
    ends.sort(key=lambda end: (end[0], 1 - end[1]))  # where one ends and the next begins: the end first
    start: bytes | None = None
    for key, is_end in ends:
        if start is not None:
            yield start + (int.from_bytes(key, "big") - 1).to_bytes(size, "big")
        start = None if is_end else key
    if start is not None:
        yield start + b"\xff" * size
