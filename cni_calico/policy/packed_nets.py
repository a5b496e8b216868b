"""PURE: a list of networks as bytes, which is what the kernel's sets have: large sets are read often and at once.

Rule: what it makes of a list, and what it refuses, is what ``parse_net`` makes of each of its members; only
that the usual form of an IPv4 network takes a fraction of the time.
"""

from __future__ import annotations

from typing import Any

from cni_calico.model.documents.fields import parse_list
from cni_calico.policy.rules import parse_net
from cni_calico.policy.wanted import PackedNet

_PREFIXES = {str(length): length for length in range(33)}
_OCTETS = {str(value): value for value in range(256)}
_MASKS = tuple((0xFFFFFFFF << 32 - length) & 0xFFFFFFFF for length in range(33))


def parse_packed_nets(raw: Any, at: str) -> tuple[tuple[bytes, ...], tuple[PackedNet, ...]]:
    """(single addresses, wider networks), each once, in order. Raises Wrong."""
    single: dict[bytes, None] = {}
    wide: dict[PackedNet, None] = {}
    for i, item in enumerate(parse_list([] if raw is None else raw, at)):
        found = _read(item) if isinstance(item, str) else None
        if found is None:
            net = parse_net(item, at, i)
            found = net.network_address.packed, net.prefixlen
        address, length = found
        if length == 8 * len(address):
            single[address] = None
        else:
            wide[found] = None
    return tuple(single), tuple(wide)


def _read(text: str) -> PackedNet | None:
    """None: it is not "A.B.C.D" or "A.B.C.D/LENGTH"."""
    head, slash, tail = text.partition("/")
    length = _PREFIXES.get(tail) if slash else 32
    if length is None:
        return None
    try:
        first, second, third, fourth = head.split(".")
        address = bytes((_OCTETS[first], _OCTETS[second], _OCTETS[third], _OCTETS[fourth]))
    except (KeyError, ValueError):
        return None
    if length < 32:
        address = (int.from_bytes(address, "big") & _MASKS[length]).to_bytes(4, "big")
    return address, length
