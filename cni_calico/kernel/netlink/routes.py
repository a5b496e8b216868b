"""PURE: requests about routes, encoded by hand, and their answers decoded.

Rule: as in kernel/netlink/links.py. Layouts: linux/rtnetlink.h.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from struct import Struct
from typing import NamedTuple

from cni_calico import faults
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.addresses import AF_INET, AF_INET6, parse_packed
from cni_calico.kernel.netlink.wire import NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, Request, attribute, u32
from cni_calico.model.resources import Address, Network

ROUTE_ADD = faults.declare("netlink.route-add")
ROUTE_DEL = faults.declare("netlink.route-del")

RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_TABLE = 1, 4, 5, 6, 15
TABLE_MAIN, TABLE_LOCAL = 254, 255
SCOPE_UNIVERSE, SCOPE_LINK = 0, 253
PROTO_KERNEL, PROTO_BOOT = 2, 3
RTN_UNICAST, RTN_LOCAL = 1, 2
RTNH_F_ONLINK = 4
RTM_F_LOOKUP_TABLE, RTM_F_FIB_MATCH = 0x1000, 0x2000

_RTMSG = Struct("=BBBBBBBBI")  # family, dst length, src length, tos, table, protocol, scope, type, flags


class Route(NamedTuple):
    """``oif`` 0: a route without one interface (blackhole, several next hops); ``metric`` 0: the kernel's default."""

    dst: Network
    oif: int = 0
    gateway: Address | None = None
    metric: int = 0
    scope: int = SCOPE_UNIVERSE
    protocol: int = PROTO_BOOT
    kind: int = RTN_UNICAST
    table: int = TABLE_MAIN
    tos: int = 0


def _route(route: Route, flags: int = 0) -> bytes:
    family = AF_INET if route.dst.version == 4 else AF_INET6
    table = route.table if route.table < 256 else 0
    head = (family, route.dst.prefixlen, 0, route.tos, table, route.protocol, route.scope, route.kind, flags)
    body = _RTMSG.pack(*head) + u32(RTA_TABLE, route.table)
    if route.dst.prefixlen:
        body += attribute(RTA_DST, route.dst.network_address.packed)
    if route.oif:
        body += u32(RTA_OIF, route.oif)
    if route.gateway is not None:
        body += attribute(RTA_GATEWAY, route.gateway.packed)
    return body + u32(RTA_PRIORITY, route.metric) if route.metric else body


def add_route(route: Route, label: str, *, replace: bool = False, onlink: bool = False) -> Request:
    """Without ``replace`` an existing route to the destination answers EEXIST, whatever interface it uses."""
    flags = NLM_F_CREATE | (NLM_F_REPLACE if replace else NLM_F_EXCL)
    body = _route(route, RTNH_F_ONLINK if onlink else 0)
    return Request(RTM_NEWROUTE, flags, body, f"add route {route.dst} through {label}", ROUTE_ADD)


def delete_route(route: Route, label: str) -> Request:
    return Request(RTM_DELROUTE, 0, _route(route), f"remove route {route.dst} through {label}", ROUTE_DEL)


def match_route(address: Address) -> Request:
    """The route that a packet to ``address`` takes now, as in the table."""
    family = AF_INET if address.version == 4 else AF_INET6
    # without the first flag IPv4 does not name the table; IPv6 refuses the flag and always names the table
    flags = RTM_F_FIB_MATCH | (RTM_F_LOOKUP_TABLE if address.version == 4 else 0)
    body = _RTMSG.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, flags) + attribute(RTA_DST, address.packed)
    return Request(RTM_GETROUTE, 0, body, f"look up the route to {address}")


def list_routes(version: int, *, table: int = TABLE_MAIN) -> Request:
    family = AF_INET if version == 4 else AF_INET6
    body = _RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0) + u32(RTA_TABLE, table)
    return Request(RTM_GETROUTE, NLM_F_DUMP, body, "list routes")


def decode_route(payload: bytes) -> Route:
    """Raises KernelError for anything except an RTM_NEWROUTE payload of IPv4 or IPv6."""
    if len(payload) < _RTMSG.size:
        raise wire.malformed("a route", f"{len(payload)} bytes")
    family, length, _src, tos, table, protocol, scope, kind, _flags = _RTMSG.unpack_from(payload)
    found = wire.attributes(payload, _RTMSG.size)
    network = IPv4Network if family == AF_INET else IPv6Network
    size = 4 if family == AF_INET else 16
    dst = found.get(RTA_DST, bytes(size))
    if family not in (AF_INET, AF_INET6) or len(dst) != size or length > size * 8:
        raise wire.malformed("a route", f"family {family}, {len(dst)} bytes, prefix length {length}")
    gateway = found.get(RTA_GATEWAY)
    return Route(
        dst=network((dst, length), strict=False),
        oif=wire.number(found.get(RTA_OIF)),
        gateway=None if gateway is None else parse_packed(family, gateway),
        metric=wire.number(found.get(RTA_PRIORITY)),
        scope=scope,
        protocol=protocol,
        kind=kind,
        table=wire.number(found.get(RTA_TABLE), table),
        tos=tos,
    )
