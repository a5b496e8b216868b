"""PURE: the members of a set as elements of one family's sets."""

from __future__ import annotations

from dataclasses import dataclass

from cni_calico.policy.wanted import Members, PackedNet, PackedPort

ADDRESS_BYTES = {4: 4, 6: 16}


@dataclass(frozen=True, slots=True)
class Elements:
    """``single``: elements of the plain set. ``ranges``: first and last address of each network, for the set of
    networks.
    """

    single: set[bytes]
    ranges: set[bytes]


def elements_of(members: Members, family: int) -> Elements:
    size = ADDRESS_BYTES[family]
    single = {address for address in members.addresses if len(address) == size}
    single.update(port_element(port) for port in members.ports if len(port[0]) == size)
    return Elements(single, {range_element(net) for net in members.nets if len(net[0]) == size})


def port_element(port: PackedPort) -> bytes:
    """Each part padded to four bytes, as in a concatenation."""
    address, protocol, number = port
    return address + bytes((protocol, 0, 0, 0)) + number.to_bytes(2, "big") + b"\0\0"


def range_element(net: PackedNet) -> bytes:
    """``net``'s host bits are zero."""
    first, length = net
    size = len(first)
    last = int.from_bytes(first, "big") | ((1 << (8 * size - length)) - 1)
    return first + last.to_bytes(size, "big")
