"""PURE: requests about addresses and neighbours, encoded by hand, and their answers decoded.

Rule: as in kernel/netlink/links.py. Layouts: linux/if_addr.h, neighbour.h.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from struct import Struct
from typing import NamedTuple

from cni_calico import faults
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.wire import NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, Request, attribute
from cni_calico.model.resources import Address

ADDR_ADD = faults.declare("netlink.addr-add")
ADDR_DEL = faults.declare("netlink.addr-del")
NEIGH_SET = faults.declare("netlink.neigh-set")

AF_INET, AF_INET6 = 2, 10
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWNEIGH, RTM_GETNEIGH = 28, 30
IFA_ADDRESS, IFA_LOCAL = 1, 2
IFA_F_NODAD = 0x02
NDA_DST, NDA_LLADDR = 1, 2
NUD_PERMANENT = 0x80

_IFADDR = Struct("=BBBBI")  # family, prefix length, flags, scope, index
_NDMSG = Struct("=BxxxiHBB")  # family, index, state, flags, type


def _address(index: int, address: Address, flags: int, scope: int = 0) -> bytes:
    packed = address.packed
    head = _IFADDR.pack(AF_INET if address.version == 4 else AF_INET6, address.max_prefixlen, flags, scope, index)
    return head + attribute(IFA_LOCAL, packed) + attribute(IFA_ADDRESS, packed)


def add_address(index: int, label: str, address: Address, scope: int = 0) -> Request:
    """Add the /32 or /128; IPv6 without duplicate address detection, or it could not be used at once."""
    body = _address(index, address, IFA_F_NODAD if address.version == 6 else 0, scope)
    return Request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, body, f"add address {address} to {label}", ADDR_ADD)


def delete_address(index: int, label: str, address: Address) -> Request:
    return Request(RTM_DELADDR, 0, _address(index, address, 0), f"remove address {address} from {label}", ADDR_DEL)


def list_addresses(index: int) -> Request:
    return Request(RTM_GETADDR, NLM_F_DUMP, _IFADDR.pack(0, 0, 0, 0, index), "list addresses")


class InterfaceAddress(NamedTuple):
    ifindex: int
    address: Address
    prefix_length: int


def decode_address(payload: bytes) -> InterfaceAddress:
    """Raises KernelError for anything that is not an RTM_NEWADDR payload."""
    if len(payload) < _IFADDR.size:
        raise wire.malformed("an address", f"{len(payload)} bytes")
    family, length, _flags, _scope, index = _IFADDR.unpack_from(payload)
    found = wire.attributes(payload, _IFADDR.size)
    address = parse_packed(family, found.get(IFA_LOCAL, found.get(IFA_ADDRESS, b"")))
    return InterfaceAddress(index, address, length)


def address_index(payload: bytes) -> int:
    """The part of decode_address that says whose it is. Raises KernelError."""
    if len(payload) < _IFADDR.size:
        raise wire.malformed("an address", f"{len(payload)} bytes")
    index: int = _IFADDR.unpack_from(payload)[-1]
    return index


def parse_packed(family: int, packed: bytes) -> Address:
    if family == AF_INET and len(packed) == 4:
        return IPv4Address(packed)
    if family == AF_INET6 and len(packed) == 16:
        return IPv6Address(packed)
    raise wire.malformed("an address", f"{len(packed)} bytes of family {family}")


def set_neighbour(index: int, label: str, address: Address, mac: bytes) -> Request:
    """A permanent entry, replacing a learned one."""
    family = AF_INET if address.version == 4 else AF_INET6
    body = _NDMSG.pack(family, index, NUD_PERMANENT, 0, 0)
    body += attribute(NDA_DST, address.packed) + attribute(NDA_LLADDR, mac)
    return Request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body, f"set neighbour {address} on {label}", NEIGH_SET)


def list_neighbours() -> Request:
    return Request(RTM_GETNEIGH, NLM_F_DUMP, _NDMSG.pack(0, 0, 0, 0, 0), "list neighbours")


class Neighbour(NamedTuple):
    ifindex: int
    address: Address
    mac: bytes
    permanent: bool


def decode_neighbour(payload: bytes) -> Neighbour:
    """Raises KernelError for anything that is not an RTM_NEWNEIGH payload of IPv4 or IPv6."""
    if len(payload) < _NDMSG.size:
        raise wire.malformed("a neighbour", f"{len(payload)} bytes")
    family, index, state, _flags, _type = _NDMSG.unpack_from(payload)
    found = wire.attributes(payload, _NDMSG.size)
    address = parse_packed(family, found.get(NDA_DST, b""))
    return Neighbour(index, address, found.get(NDA_LLADDR, b""), bool(state & NUD_PERMANENT))
