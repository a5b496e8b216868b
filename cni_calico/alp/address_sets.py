"""The members of sets, as policy sync names them: networks, addresses, and addresses with a protocol and a port.

Rule: whether an address is in a set takes one look-up for each length of prefix in it, however many members it has;
whoever asks while it changes finds what was there before or after, never less than both.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address

from cni_calico.policy.rules import PROTOCOLS

AnyAddress = IPv4Address | IPv6Address
_FAMILIES = ((socket.AF_INET, 4), (socket.AF_INET6, 6))


class SyncedSet:
    """``has_ports``: members are addresses with a protocol and a port."""

    def __init__(self, *, has_ports: bool) -> None:
        self._has_ports = has_ports
        self._nets: dict[tuple[int, int], set[int]] = {}  # by family and length of the prefix
        self._ports: set[tuple[int, int, int, int]] = set()

    def change(self, removed: Iterable[str], added: Iterable[str]) -> None:
        """Raises ValueError for what is no member; nothing has changed then."""
        if self._has_ports:
            gone, come = set(map(_parse_port_member, removed)), set(map(_parse_port_member, added))
            self._ports -= gone
            self._ports |= come
            return
        less, more = _by_length(removed), _by_length(added)
        for length, nets in less.items():
            self._nets.get(length, set()).difference_update(nets)
        for length, nets in more.items():
            self._nets.setdefault(length, set()).update(nets)
        for length in less:
            if not self._nets.get(length, True):
                del self._nets[length]

    def holds(self, address: AnyAddress) -> bool:
        value, bits, family = int(address), address.max_prefixlen, address.version
        return any(value >> (bits - length) in nets for (of, length), nets in tuple(self._nets.items()) if of == family)

    def holds_port(self, address: AnyAddress, protocol: int, port: int) -> bool:
        return (address.version, int(address), protocol, port) in self._ports


def _by_length(members: Iterable[str]) -> dict[tuple[int, int], set[int]]:
    found: dict[tuple[int, int], set[int]] = {}
    for member in members:
        family, length, net = _parse_net(member)
        found.setdefault((family, length), set()).add(net)
    return found


def _parse_net(member: str) -> tuple[int, int, int]:
    """Family, length of the prefix, its bits."""
    text, slash, length_text = member.partition("/")
    family, value, bits = _parse_address(text)
    length = int(length_text) if slash else bits
    if not 0 <= length <= bits:
        raise ValueError(f"{member!r} is no network")
    return family, length, value >> (bits - length)


def _parse_port_member(member: str) -> tuple[int, int, int, int]:
    """Of ``ADDRESS,PROTOCOL:PORT``."""
    text, _, rest = member.partition(",")
    protocol_text, _, port = rest.partition(":")
    family, value, _ = _parse_address(text.removesuffix("/32").removesuffix("/128"))
    protocol = PROTOCOLS.get(protocol_text.lower())
    return family, value, int(protocol_text) if protocol is None else protocol, int(port)


def _parse_address(text: str) -> tuple[int, int, int]:
    """Family, value, bits."""
    for family, version in _FAMILIES:
        try:
            packed = socket.inet_pton(family, text)
        except OSError:
            continue
        return version, int.from_bytes(packed, "big"), 8 * len(packed)
    raise ValueError(f"{text!r} is no address")
