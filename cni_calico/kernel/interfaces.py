"""The interfaces of the network namespace the calling thread is in, as values; read with pyroute2.

Rule: reads only, and nothing is kept between calls: the caller decides how fresh an answer must be.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address, ip_interface
from typing import Any

from cni_calico.errors import KernelError
from cni_calico.model.host import Address, HostInterface, Interface

_IFF_UP = 1
_TEMPORARY_OR_DEPRECATED = 0x01 | 0x20
_DAD_FAILED = 0x08
_ANY_PORT = 9  # connect() of a datagram socket sends nothing


@contextmanager
def opened(doing: str) -> Iterator[Any]:
    """A pyroute2 socket in this namespace; its errors become KernelError naming what was being done."""
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as ip:
            yield ip
    except NetlinkError as e:
        raise KernelError(f"cannot {doing}: {e}", errno=e.code or 0) from e
    except OSError as e:
        raise KernelError(f"cannot {doing}: {e.strerror or e}", errno=e.errno or 0) from e


def read_interfaces() -> tuple[HostInterface, ...]:
    """Every interface with its addresses, in the order of their indexes. Raises KernelError."""
    with opened("read this host's interfaces") as ip:
        links = list(ip.link("dump"))
        addresses = list(ip.addr("dump"))
    held: dict[int, list[tuple[bool, Interface]]] = {}
    for message in addresses:
        found = _address(message)
        if found is not None:
            held.setdefault(message["index"], []).append(found)
    return tuple(_interface(link, held.get(link["index"], ())) for link in sorted(links, key=lambda x: x["index"]))


def _address(message: Any) -> tuple[bool, Interface] | None:
    """(whether others should not be told it, the address); None for one that cannot be used."""
    text = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
    if text is None:
        return None
    address = ip_interface((text, message["prefixlen"]))
    if address.version == 4:
        return False, address
    flags = message.get_attr("IFA_FLAGS") or message["flags"]
    return None if flags & _DAD_FAILED else (bool(flags & _TEMPORARY_OR_DEPRECATED), address)


def _interface(link: Any, held: Sequence[tuple[bool, Interface]]) -> HostInterface:
    info = link.get_attr("IFLA_LINKINFO")
    return HostInterface(
        index=link["index"],
        name=link.get_attr("IFLA_IFNAME"),
        up=bool(link["flags"] & _IFF_UP),
        mtu=link.get_attr("IFLA_MTU") or 0,
        addresses=tuple(address for last, address in sorted(held, key=lambda item: item[0])),
        mac=link.get_attr("IFLA_ADDRESS") or "",
        kind=(info.get_attr("IFLA_INFO_KIND") or "") if info is not None else "",
    )


def read_default_interface(family: int) -> str:
    """The interface of the default route of a family with the lowest metric, "" without one. Raises KernelError."""
    with opened("read the default route") as ip:
        kernel_family = socket.AF_INET if family == 4 else socket.AF_INET6
        routes = [
            (route.get_attr("RTA_PRIORITY") or 0, route.get_attr("RTA_OIF"))
            for route in ip.route("dump", family=kernel_family, table=254)
            if route["dst_len"] == 0 and route.get_attr("RTA_OIF")
        ]
        if not routes:
            return ""
        links = ip.link("get", index=min(routes)[1])
        return str(links[0].get_attr("IFLA_IFNAME")) if links else ""


def read_source_address(target: str, family: int) -> Address | None:
    """The source address of a packet to ``target`` (an address or a host name); None when there is no way there."""
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
