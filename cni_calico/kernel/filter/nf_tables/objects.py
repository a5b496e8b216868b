"""PURE: nf_tables' numbers, and the kernel's lists decoded as values.

Rule: what we did not write ourselves (another program's flag, policy or key) becomes a value that equals none of ours.
Numbers: linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from cni_calico.kernel.filter.nf_tables.attributes import be32, decode_verdict, number_of, rewritten
from cni_calico.kernel.filter.nf_tables.expressions import PrintedRule
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.wire import list_elements
from cni_calico.netfilter.rules import PacketVerdict
from cni_calico.netfilter.tables import BaseHook, NftSet

_SUBSYSTEM = 10  # nf_tables among nfnetlink's
(
    NEWTABLE,
    GETTABLE,
    DELTABLE,
    NEWCHAIN,
    GETCHAIN,
    DELCHAIN,
    NEWRULE,
    GETRULE,
    DELRULE,
    NEWSET,
    GETSET,
    DELSET,
    NEWSETELEM,
    GETSETELEM,
    DELSETELEM,
    NEWGEN,
    GETGEN,
) = (_SUBSYSTEM << 8 | number for number in range(17))
NLM_F_APPEND = 0x800
TABLE_NAME, TABLE_FLAGS = 1, 2
CHAIN_TABLE, CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY, CHAIN_TYPE = 1, 3, 4, 5, 7
HOOK_NUMBER, HOOK_PRIORITY = 1, 2
RULE_TABLE, RULE_CHAIN, RULE_HANDLE, RULE_EXPRESSIONS, RULE_USERDATA = 1, 2, 3, 4, 7
SET_TABLE, SET_NAME, SET_FLAGS, SET_KEY_TYPE, SET_KEY_BYTES, SET_DATA_TYPE, SET_DATA_BYTES = range(1, 8)
SET_DESCRIPTION, SET_ID, SET_USERDATA = 9, 10, 13
DESCRIPTION_SIZE = 1
ELEM_TABLE, ELEM_SET, ELEM_LIST = 1, 2, 3
LIST_ELEMENT = 1
KEY, DATA, FLAGS = 1, 2, 3
VALUE = 1
INTERVAL, MAP = 0x4, 0x8
INTERVAL_END = be32(FLAGS, 1)
VERDICT_TYPE = 0xFFFFFF00
GENERATION = 1

# the numbers of hooks of the IP families; arp has its own
HOOKS = {"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}
ARP_HOOKS = {"input": 0, "output": 1, "forward": 2}
KEY_TYPES = {"ipv4_addr": 7, "ipv6_addr": 8, "inet_proto": 12, "inet_service": 13, "mark": 19, "ifname": 41}
KEY_NAMES = {number: name for name, number in KEY_TYPES.items()}
HOST_ORDER, NETWORK_ORDER = 1, 2


def is_dormant(table: dict[int, bytes]) -> bool:
    """Whether the table is dormant: the kernel then passes no packet to its base chains."""
    return bool(number_of(table.get(TABLE_FLAGS)) & 1)


def decode_hook(family: str, attributes: dict[int, bytes], *, dormant: bool = False) -> BaseHook | None:
    if CHAIN_HOOK not in attributes:
        return None
    hook = wire.attributes(attributes[CHAIN_HOOK])
    numbers = {number: name for name, number in (ARP_HOOKS if family == "arp" else HOOKS).items()}
    priority = number_of(hook.get(HOOK_PRIORITY))
    name = numbers.get(number_of(hook.get(HOOK_NUMBER)), "?")
    if number_of(attributes.get(CHAIN_POLICY), 1) != 1:
        name += " (policy drop)"  # equals nothing of ours
    if dormant:
        name += " (dormant)"  # the same
    kind = wire.name(attributes.get(CHAIN_TYPE))
    return BaseHook(name, priority - (1 << 32) if priority >> 31 else priority, kind)


def rewritten_list(payload: bytes) -> bytes:
    """All expressions of a rule. Raises KernelError."""
    return b"".join(map(rewritten, list_elements(payload)))


def decode_rule(attributes: dict[int, bytes], rewrite: Callable[[bytes], bytes] = rewritten_list) -> PrintedRule:
    """``rewrite``: as ``rewritten_list``, for who remembers its results."""
    comment = _decode_comment(attributes.get(RULE_USERDATA, b""))
    return PrintedRule(rewrite(attributes.get(RULE_EXPRESSIONS, b"")), comment)


def _decode_comment(data: bytes) -> str:
    at = 0
    while at + 2 <= len(data):
        kind, size = data[at], data[at + 1]
        if kind == 0:
            return wire.name(data[at + 2 : at + 2 + size])
        at += 2 + size
    return ""


def decode_set(attributes: dict[int, bytes]) -> NftSet:
    kind, parts = number_of(attributes.get(SET_KEY_TYPE)), []
    while kind:
        parts.append(KEY_NAMES.get(kind & 0x3F, "?"))
        kind >>= 6
    flags = number_of(attributes.get(SET_FLAGS))
    name = wire.name(attributes.get(SET_NAME))
    if flags & ~(INTERVAL | MAP):
        parts.append("?")  # equals nothing of ours
    description = wire.attributes(attributes.get(SET_DESCRIPTION, b""))
    size = number_of(description.get(DESCRIPTION_SIZE))
    return NftSet(name, tuple(reversed(parts)), bool(flags & INTERVAL), bool(flags & MAP), size)


def key_of(attributes: dict[int, bytes]) -> bytes:
    return wire.attributes(attributes.get(KEY, b"")).get(VALUE, b"")


def decode_map_element(element: bytes) -> tuple[bytes, PacketVerdict]:
    attributes = wire.attributes(element)
    verdict = decode_verdict(attributes.get(DATA))
    return key_of(attributes), PacketVerdict("continue") if verdict is None else verdict


def join_intervals(raw: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Pairs of first and last key, from the starts and ends that the kernel lists in its own order."""
    ends = []
    for element in raw:
        attributes = wire.attributes(element)
        ends.append((key_of(attributes), number_of(attributes.get(FLAGS)) & 1))
    ends.sort(key=lambda end: (end[0], 1 - end[1]))  # where one range ends and the next begins: the end first
    start: bytes | None = None
    for key, is_end in ends:
        if start is not None:
            yield start + (int.from_bytes(key, "big") - 1).to_bytes(size, "big")
        start = None if is_end else key
    if start is not None:
        yield start + b"\xff" * size
