"""Reads a whole table of nf_tables, within a bound.

Rule: what is far larger than it should be, or takes too long, is not read to its end (EFBIG): the caller can
replace it without knowing what is in it. Reading uses its own socket, because a list that is given up keeps its socket
busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from errno import EFBIG, ENOENT
from functools import lru_cache

from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded, KernelError
from cni_calico.kernel.filter.nf_tables.expressions import PrintedRule
from cni_calico.kernel.filter.nf_tables.objects import (
    CHAIN_NAME,
    ELEM_LIST,
    ELEM_SET,
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
    join_intervals,
    key_of,
    rewritten_list,
)
from cni_calico.kernel.filter.nf_tables.printer import recognise
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES, Nfnetlink, general
from cni_calico.kernel.netlink.wire import list_elements, text
from cni_calico.netfilter.tables import NftChain, NftSet, NftTable, TableId

READ_S = 20.0  # for one table
READ_BYTES = 12 << 20  # of a table that should be empty: some 30,000 rules, about a second
_RULE_BYTES, _ELEMENT_BYTES = 1500, 200  # twice what usual ones take
_REMEMBERED = 2048  # rules of different text, while one table is read: many policies have the same ones


def read_bounded(table: TableId, deadline: Deadline, likes: Sequence[NftTable]) -> NftTable | None:
    """The table with everything in it, None if there is none, from the network namespace of the calling thread.

    ``likes``: what may be there; a chain that is in none of them as it is in the kernel is not recognised. Raises
    KernelError, DeadlineExceeded.
    """
    doing = f"read the packet filter's table {table}"
    bounded = deadline.sooner(READ_S)
    with Nfnetlink() as netlink:
        try:
            return _read_all(netlink, table, doing, bounded, likes)
        except DeadlineExceeded as e:
            if deadline.expired():
                raise
            raise KernelError(f"cannot {doing}: it takes more than {READ_S:g} s", errno=EFBIG) from e


def most_bytes_of(like: NftTable) -> int:
    """How much of a table is read: several times what should be in it."""
    rules = sum(len(chain.rules) for chain in like.chains.values())
    elements = sum(map(len, like.elements.values())) + sum(map(len, like.verdicts.values()))
    return READ_BYTES + _RULE_BYTES * rules + _ELEMENT_BYTES * (elements + len(like.sets) + len(like.chains))


def ask_for(netlink: Nfnetlink, table: TableId, doing: str, deadline: Deadline) -> list[bytes]:
    """What the kernel says about the table itself; nothing if there is none. Raises KernelError."""
    try:
        return netlink.request(GETTABLE, 0, general(table.family) + text(TABLE_NAME, table.name), doing, deadline)
    except KernelError as e:
        if e.errno == ENOENT:
            return []
        raise


def _read_all(
    netlink: Nfnetlink, table: TableId, doing: str, deadline: Deadline, likes: Sequence[NftTable]
) -> NftTable | None:
    replies = ask_for(netlink, table, doing, deadline)
    if not replies:
        return None
    mine, its_name = text(TABLE_NAME, table.name), table.name.encode() + b"\0"
    left = max(map(most_bytes_of, likes), default=READ_BYTES)
    found = NftTable(table.family, table.name)
    dormant = any(is_dormant(wire.attributes(reply, GENERAL_BYTES)) for reply in replies)

    def listed(kind: int, body: bytes) -> Iterator[dict[int, bytes]]:
        nonlocal left
        replies = netlink.dump(kind, general(table.family) + body, doing, deadline, left)
        left -= sum(map(len, replies))
        for reply in replies:
            deadline.require(doing)  # to decode a rule takes longer than to read it
            attributes = wire.attributes(reply, GENERAL_BYTES)
            if attributes.get(TABLE_NAME) == its_name:  # old kernels do not filter
                yield attributes

    for attributes in listed(GETSET, mine):
        spec = decode_set(attributes)
        found.sets[spec.name] = spec
    for spec in found.sets.values():
        _read_elements(found, spec, listed(GETSETELEM, mine + text(ELEM_SET, spec.name)))
    rules: dict[bytes, list[PrintedRule]] = {}
    rewrite, printed = lru_cache(_REMEMBERED)(rewritten_list), dict[int, bytes]()
    for attributes in listed(GETRULE, mine):
        rules.setdefault(attributes.get(RULE_CHAIN, b""), []).append(decode_rule(attributes, rewrite))
    for attributes in listed(GETCHAIN, b""):
        name = wire.name(attributes.get(CHAIN_NAME))
        hook = decode_hook(table.family, attributes, dormant=dormant)
        candidates = (like.chains[name].rules for like in likes if name in like.chains)
        there = rules.get(attributes.get(CHAIN_NAME, b""), ())
        found.chains[name] = NftChain(name, recognise(there, candidates, table.family, printed), hook)
    return found


def _read_elements(found: NftTable, spec: NftSet, listed: Iterable[dict[int, bytes]]) -> None:
    raw = [element for message in listed for element in list_elements(message.get(ELEM_LIST, b""))]
    if spec.verdicts:
        found.verdicts[spec.name] = dict(map(decode_map_element, raw))
    elif spec.interval:
        found.elements[spec.name] = set(join_intervals(raw, spec.key_bytes))
    else:
        found.elements[spec.name] = {key_of(wire.attributes(element)) for element in raw}
