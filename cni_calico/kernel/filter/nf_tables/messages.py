"""Operations of a packet filter as messages of nf_tables.

Rule: everything is addressed by name, never by handle, so a change needs no reading first. What ``nft list ruleset``
needs to show our tables (byte order of keys, comments) is in the user data of sets and rules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from cni_calico.kernel.filter.nf_tables.attributes import be32, encode_verdict
from cni_calico.kernel.filter.nf_tables.objects import (
    ARP_HOOKS,
    CHAIN_HOOK,
    CHAIN_NAME,
    CHAIN_POLICY,
    CHAIN_TABLE,
    CHAIN_TYPE,
    DATA,
    DELCHAIN,
    DELRULE,
    DELSET,
    DELSETELEM,
    DELTABLE,
    DESCRIPTION_SIZE,
    ELEM_LIST,
    ELEM_SET,
    ELEM_TABLE,
    HOOK_NUMBER,
    HOOK_PRIORITY,
    HOOKS,
    HOST_ORDER,
    INTERVAL,
    INTERVAL_END,
    KEY,
    KEY_TYPES,
    LIST_ELEMENT,
    MAP,
    NETWORK_ORDER,
    NEWCHAIN,
    NEWRULE,
    NEWSET,
    NEWSETELEM,
    NEWTABLE,
    NLM_F_APPEND,
    RULE_CHAIN,
    RULE_EXPRESSIONS,
    RULE_TABLE,
    RULE_USERDATA,
    SET_DATA_BYTES,
    SET_DATA_TYPE,
    SET_DESCRIPTION,
    SET_FLAGS,
    SET_ID,
    SET_KEY_BYTES,
    SET_KEY_TYPE,
    SET_NAME,
    SET_TABLE,
    SET_USERDATA,
    TABLE_NAME,
    VALUE,
    VERDICT_TYPE,
)
from cni_calico.kernel.filter.nf_tables.printer import print_rule
from cni_calico.kernel.netlink.nfnetlink import FilterMessage, general
from cni_calico.kernel.netlink.wire import NLM_F_CREATE, attribute, nested, text
from cni_calico.netfilter.tables import (
    AddChain,
    AddElements,
    AddRules,
    AddSet,
    AddTable,
    AddVerdicts,
    DropChain,
    DropElements,
    DropSet,
    DropTable,
    FlushChain,
    NftSet,
    Operation,
    TableId,
)

_ATTRIBUTE_ROOM = 60000  # below the 64 KiB that an attribute can hold


def encode_operations(operations: Sequence[Operation]) -> list[FilterMessage]:
    """The messages; each has the number of its operation."""
    messages: list[FilterMessage] = []
    for i, operation in enumerate(operations):
        for kind, flags, body in _ENCODERS[type(operation)](operation):
            messages.append(FilterMessage(kind, flags, body, i))
    return messages


_Encoded = Iterator[tuple[int, int, bytes]]


def _add_table(o: AddTable) -> _Encoded:
    yield NEWTABLE, NLM_F_CREATE, general(o.table.family) + text(TABLE_NAME, o.table.name)


def _drop_table(o: DropTable) -> _Encoded:
    yield DELTABLE, 0, general(o.table.family) + text(TABLE_NAME, o.table.name)


def _chain(table: TableId, name: str) -> bytes:
    return general(table.family) + text(CHAIN_TABLE, table.name) + text(CHAIN_NAME, name)


def _add_chain(o: AddChain) -> _Encoded:
    body = _chain(o.table, o.name)
    if o.hook is not None:
        number = (ARP_HOOKS if o.table.family == "arp" else HOOKS)[o.hook.hook]
        where = be32(HOOK_NUMBER, number) + be32(HOOK_PRIORITY, o.hook.priority & 0xFFFFFFFF)
        body += text(CHAIN_TYPE, o.hook.kind) + be32(CHAIN_POLICY, 1) + nested(CHAIN_HOOK, where)
    yield NEWCHAIN, NLM_F_CREATE, body


def _drop_chain(o: DropChain) -> _Encoded:
    yield DELCHAIN, 0, _chain(o.table, o.name)


def _rules_of(table: TableId, chain: str) -> bytes:
    return general(table.family) + text(RULE_TABLE, table.name) + text(RULE_CHAIN, chain)


def _flush_chain(o: FlushChain) -> _Encoded:
    yield DELRULE, 0, _rules_of(o.table, o.name)


def _add_rules(o: AddRules) -> _Encoded:
    head = _rules_of(o.table, o.chain)
    for rule in o.rules:
        printed = print_rule(rule, o.table.family)
        body = head + nested(RULE_EXPRESSIONS, printed.expressions)
        if printed.comment:
            body += attribute(RULE_USERDATA, _tagged(0, printed.comment.encode() + b"\0"))
        yield NEWRULE, NLM_F_CREATE | NLM_F_APPEND, body


def _add_set(o: AddSet) -> _Encoded:
    spec, flags, kind, order = o.spec, 0, 0, b""
    for part in spec.key:
        kind = kind << 6 | KEY_TYPES[part]
    if spec.interval:
        flags |= INTERVAL
    body = general(o.table.family) + text(SET_TABLE, o.table.name) + text(SET_NAME, spec.name)
    data = b""
    if spec.verdicts:
        flags |= MAP
        data = be32(SET_DATA_TYPE, VERDICT_TYPE) + be32(SET_DATA_BYTES, 0)
    if len(spec.key) == 1:  # without it nft refuses to list the set (a concatenation's length it knows itself)
        order = _tagged(0, _order(HOST_ORDER if spec.key in (("ifname",), ("mark",)) else NETWORK_ORDER))
    body += be32(SET_FLAGS, flags) + be32(SET_KEY_TYPE, kind) + be32(SET_KEY_BYTES, spec.key_bytes) + data
    if spec.size:
        body += nested(SET_DESCRIPTION, be32(DESCRIPTION_SIZE, spec.size))
    body += be32(SET_ID, 1)
    if order:
        body += attribute(SET_USERDATA, order)
    yield NEWSET, NLM_F_CREATE, body


def _order(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)


def _tagged(kind: int, data: bytes) -> bytes:
    """User data as nft's library writes it: type, length, bytes."""
    return bytes((kind, len(data))) + data


def _drop_set(o: DropSet) -> _Encoded:
    yield DELSET, 0, general(o.table.family) + text(SET_TABLE, o.table.name) + text(SET_NAME, o.name)


def _element(key: bytes, more: bytes = b"") -> bytes:
    return nested(LIST_ELEMENT, nested(KEY, attribute(VALUE, key)), more)


def _interval(element: bytes, size: int) -> bytes:
    """The two ends of a range: its first key, and the first key after it (the highest key has none)."""
    first, behind = element[:size], int.from_bytes(element[size:], "big") + 1
    encoded = _element(first)
    if behind < 1 << 8 * size:
        encoded += _element(behind.to_bytes(size, "big"), INTERVAL_END)
    return encoded


def _encoded_elements(spec: NftSet, elements: Iterable[bytes]) -> Iterator[bytes]:
    if spec.interval:
        return (_interval(element, spec.key_bytes) for element in elements)
    return map(_element, elements)


def _in_pieces(kind: int, flags: int, table: TableId, name: str, encoded: Iterable[bytes]) -> _Encoded:
    head = general(table.family) + text(ELEM_TABLE, table.name) + text(ELEM_SET, name)
    piece: list[bytes] = []
    room = _ATTRIBUTE_ROOM
    for element in encoded:
        if room < len(element):
            yield kind, flags, head + nested(ELEM_LIST, *piece)
            piece, room = [], _ATTRIBUTE_ROOM
        piece.append(element)
        room -= len(element)
    if piece:
        yield kind, flags, head + nested(ELEM_LIST, *piece)


def _add_elements(o: AddElements) -> _Encoded:
    encoded = _encoded_elements(o.spec, o.elements)
    return _in_pieces(NEWSETELEM, NLM_F_CREATE, o.table, o.spec.name, encoded)


def _drop_elements(o: DropElements) -> _Encoded:
    return _in_pieces(DELSETELEM, 0, o.table, o.spec.name, _encoded_elements(o.spec, o.elements))


def _add_verdicts(o: AddVerdicts) -> _Encoded:
    encoded = (_element(key, encode_verdict(DATA, verdict)) for key, verdict in o.verdicts.items())
    return _in_pieces(NEWSETELEM, NLM_F_CREATE, o.table, o.spec.name, encoded)


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
