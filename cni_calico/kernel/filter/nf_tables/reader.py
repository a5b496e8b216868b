"""Reads a table of nf_tables piece by piece, so that the reader can do something else in between.

Rule: it uses its own socket, because an unfinished list keeps the socket busy. A piece is what one datagram of the
kernel contains. What changes while a list is read may or may not be included; the caller knows its own changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.interface import Atom
from cni_calico.kernel.filter.nf_tables.attributes import number_of
from cni_calico.kernel.filter.nf_tables.expressions import PrintedRule
from cni_calico.kernel.filter.nf_tables.objects import (
    CHAIN_NAME,
    ELEM_LIST,
    ELEM_SET,
    FLAGS,
    GETCHAIN,
    GETRULE,
    GETSET,
    GETSETELEM,
    GETTABLE,
    RULE_CHAIN,
    TABLE_NAME,
    decode_hook,
    decode_map_element,
    decode_rule,
    decode_set,
    is_dormant,
    key_of,
)
from cni_calico.kernel.filter.nf_tables.printer import are_printed
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES, Nfnetlink, general
from cni_calico.kernel.netlink.wire import list_elements, text
from cni_calico.netfilter.tables import NftChain, NftSet, TableId


class PieceReader:
    """Reads the kernel's tables, in the network namespace of the thread that created this object."""

    def __init__(self) -> None:
        self._netlink = Nfnetlink()

    def close(self) -> None:
        self._netlink.close()

    def reset(self) -> None:
        self._netlink.close()
        self._netlink = Nfnetlink()

    def sets(self, table: TableId, deadline: Deadline) -> Iterator[list[NftSet]]:
        for part in self._listed(GETSET, table, b"", deadline):
            yield [decode_set(attributes) for attributes in part]

    def chains(self, table: TableId, deadline: Deadline) -> Iterator[list[NftChain]]:
        body, doing = general(table.family) + text(TABLE_NAME, table.name), f"read the packet filter's table {table}"
        replies = self._netlink.request(GETTABLE, 0, body, doing, deadline)
        dormant = any(is_dormant(wire.attributes(reply, GENERAL_BYTES)) for reply in replies)
        for part in self._listed(GETCHAIN, table, b"", deadline):
            hooks = [(found, decode_hook(table.family, found, dormant=dormant)) for found in part]
            yield [NftChain(wire.name(found.get(CHAIN_NAME)), (), hook) for found, hook in hooks]

    def compare_rules(self, table: TableId, chain: NftChain, deadline: Deadline) -> Iterator[bool]:
        at, same = 0, True
        for part in self.rules(table, chain.name, deadline):
            same = same and are_printed(chain.rules[at : at + len(part)], part, table.family)
            at += len(part)
            yield same
        yield same and at == len(chain.rules)

    def rules(self, table: TableId, chain: str, deadline: Deadline) -> Iterator[list[PrintedRule]]:
        for part in self._listed(GETRULE, table, text(RULE_CHAIN, chain), deadline):
            yield [decode_rule(found) for found in part if wire.name(found.get(RULE_CHAIN)) == chain]

    def elements(self, table: TableId, spec: NftSet, deadline: Deadline) -> Iterator[list[Atom]]:
        for part in self._listed(GETSETELEM, table, text(ELEM_SET, spec.name), deadline):
            yield [_atom(spec, element) for found in part for element in list_elements(found.get(ELEM_LIST, b""))]

    def _listed(self, kind: int, table: TableId, more: bytes, deadline: Deadline) -> Iterator[list[dict[int, bytes]]]:
        body = general(table.family) + text(TABLE_NAME, table.name) + more
        doing = f"read the packet filter's table {table}"
        for part in self._netlink.dump_in_parts(kind, body, doing, deadline):
            found = [wire.attributes(payload, GENERAL_BYTES) for payload in part]
            yield [attributes for attributes in found if wire.name(attributes.get(TABLE_NAME)) == table.name]


def _atom(spec: NftSet, element: bytes) -> Atom:
    if spec.verdicts:
        return decode_map_element(element)
    attributes = wire.attributes(element)
    key = key_of(attributes)
    return (key, bool(number_of(attributes.get(FLAGS)) & 1)) if spec.interval else key
