"""The interfaces of the network namespace the calling thread is in, as values.

Rule: reads only, and keeps nothing between calls: the caller decides how fresh an answer must be. It uses the
hand-encoded netlink of the call path: a node with a thousand pods is dumped in milliseconds.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Interface, IPv6Interface, ip_address

from cni_calico.deadline import Deadline
from cni_calico.errors import LinkGone
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.addresses import AF_INET, AF_INET6, address_index, decode_address, list_addresses
from cni_calico.kernel.netlink.links import decode_link, get_link, list_links
from cni_calico.kernel.netlink.routes import decode_route, list_routes
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.model.host import HostInterface
from cni_calico.model.resources import Address, Interface

_FLAGS_ATTRIBUTE = 8  # IFA_FLAGS; the header's own field holds the lower eight bits
_TEMPORARY_OR_DEPRECATED = 0x01 | 0x20
_DAD_FAILED = 0x08
_ANY_PORT = 9  # connect() of a datagram socket sends nothing


def read_interfaces(deadline: Deadline) -> tuple[HostInterface, ...]:
    """Every interface with its addresses, in the order of their indexes. Raises KernelError."""
    with Rtnl() as rtnl:
        payloads = rtnl.dump(list_links(), deadline)
        return _with_addresses(payloads, rtnl.dump(list_addresses(0), deadline))


def read_named_interfaces(names: Iterable[str], deadline: Deadline) -> tuple[HostInterface, ...]:
    """Those of these interfaces that exist; each is asked for, however many others there are. Raises KernelError."""
    payloads: list[bytes] = []
    with Rtnl() as rtnl:
        for outcome in rtnl.submit([get_link(name) for name in names], deadline):
            if outcome.error is None:
                payloads += outcome.replies
            elif not isinstance(outcome.error, LinkGone):
                raise outcome.error
        return _with_addresses(payloads, rtnl.dump(list_addresses(0), deadline) if payloads else ())


def read_interface_name(index: int, deadline: Deadline) -> str:
    """Of the interface with this index, "" if there is none. Raises KernelError."""
    with Rtnl() as rtnl:
        try:
            return decode_link(rtnl.one(get_link(index), deadline)).name
        except LinkGone:
            return ""


def _with_addresses(listed: Sequence[bytes], addresses: Iterable[bytes]) -> tuple[HostInterface, ...]:
    """Of what the kernel says of interfaces, and of all addresses."""
    links = [decode_link(payload) for payload in listed]
    asked = {link.ifindex for link in links}
    held: dict[int, list[tuple[bool, Interface]]] = {}
    for payload in addresses:
        if payload[0] in (AF_INET, AF_INET6) and address_index(payload) in asked:
            index, last, address = _address(payload)
            if address is not None:
                held.setdefault(index, []).append((last, address))
    return tuple(
        HostInterface(
            index=link.ifindex,
            name=link.name,
            up=link.up,
            mtu=link.mtu,
            addresses=_sorted(held.get(link.ifindex, ())),
            mac=link.mac.hex(":"),
            kind=link.kind,
            alias=link.alias,
        )
        for link in sorted(links, key=lambda link: link.ifindex)
    )


def _address(payload: bytes) -> tuple[int, bool, Interface | None]:
    """(interface, whether the address is temporary and not to be announced, the address); None if it cannot be used."""
    found = decode_address(payload)
    place = found.address.packed, found.prefix_length  # an address would be made a text, and that read again
    if found.address.version == 4:
        return found.ifindex, False, IPv4Interface(place)
    flags = wire.number(wire.attributes(payload, 8).get(_FLAGS_ATTRIBUTE), payload[2])
    return found.ifindex, bool(flags & _TEMPORARY_OR_DEPRECATED), None if flags & _DAD_FAILED else IPv6Interface(place)


def _sorted(held: Sequence[tuple[bool, Interface]]) -> tuple[Interface, ...]:
    return tuple(address for _, address in sorted(held, key=lambda item: item[0]))


def read_default_interface(family: int, deadline: Deadline) -> str:
    """The interface of a family's default route with the lowest metric, "" if there is none. Raises KernelError."""
    with Rtnl() as rtnl:
        routes = [decode_route(payload) for payload in rtnl.dump(list_routes(family), deadline)]
        found = [(route.metric, route.oif) for route in routes if route.dst.prefixlen == 0 and route.oif]
        return decode_link(rtnl.one(get_link(min(found)[1]), deadline)).name if found else ""


def read_source_address(target: str, family: int) -> Address | None:
    """The source address of a packet to ``target`` (an address or a host name); None if there is no route to it."""
    kernel_family = socket.AF_INET if family == 4 else socket.AF_INET6
    try:
        places = socket.getaddrinfo(target, _ANY_PORT, kernel_family, socket.SOCK_DGRAM)
    except OSError:
        return None
    for *_, place in places:
        try:
            with socket.socket(kernel_family, socket.SOCK_DGRAM) as probe:
                probe.connect(place)
                return ip_address(str(probe.getsockname()[0]).partition("%")[0])
        except OSError:
            continue
    return None


def is_own_address(packed: bytes) -> bool:
    """Whether the address is this host's, on whatever interface: a packet to it would have it as its source, too."""
    address = ip_address(packed)
    return read_source_address(str(address), address.version) == address
