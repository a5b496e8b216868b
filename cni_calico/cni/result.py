"""PURE: the result of ADD, in the format of every CNI version, and back.

Rule: the code uses one Result; versions differ only in ``render_result`` and ``parse_result``. Source: CNI
specification 0.2.0, 0.4.0, 1.1.0 "Result Types".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_prefixed
from cni_calico.cni.versions import SUPPORTED
from cni_calico.model.resources import Interface

_OLD = ("0.1.0", "0.2.0")


@dataclass(frozen=True, slots=True)
class ResultInterface:
    name: str
    mac: str = ""
    sandbox: str = ""
    mtu: int = 0


@dataclass(frozen=True, slots=True)
class ResultIP:
    """``interface`` is an index into the result's interfaces, or None."""

    address: Interface
    interface: int | None = None
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class ResultRoute:
    """``dst`` keeps its host bits: upstream writes the address itself with the block's prefix length."""

    dst: str
    gw: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    ips: tuple[ResultIP, ...] = ()
    interfaces: tuple[ResultInterface, ...] = ()
    routes: tuple[ResultRoute, ...] = ()
    dns: Mapping[str, Any] = field(default_factory=dict)


def _route(route: ResultRoute) -> dict[str, Any]:
    return {"dst": route.dst, "gw": route.gw} if route.gw else {"dst": route.dst}


def render_result(result: Result, version: str) -> dict[str, Any]:
    """The JSON object of a result in the format of ``version``."""
    if version in _OLD:
        return _render_020(result, version)
    from_1_0 = SUPPORTED.index(version) >= SUPPORTED.index("1.0.0")
    document: dict[str, Any] = {"cniVersion": version}
    if result.interfaces:
        document["interfaces"] = [_render_interface(item, with_mtu=from_1_0) for item in result.interfaces]
    document["ips"] = [_render_ip(ip, with_version=not from_1_0) for ip in result.ips]
    if result.routes:
        document["routes"] = [_route(route) for route in result.routes]
    document["dns"] = dict(result.dns)
    return document


def _render_interface(item: ResultInterface, *, with_mtu: bool) -> dict[str, Any]:
    document: dict[str, Any] = {"name": item.name}
    if item.mac:
        document["mac"] = item.mac
    if with_mtu and item.mtu:
        document["mtu"] = item.mtu
    if item.sandbox:
        document["sandbox"] = item.sandbox
    return document


def _render_ip(ip: ResultIP, *, with_version: bool) -> dict[str, Any]:
    document: dict[str, Any] = {"version": str(ip.address.version)} if with_version else {}
    if ip.interface is not None:
        document["interface"] = ip.interface
    document["address"] = str(ip.address)
    if ip.gateway:
        document["gateway"] = ip.gateway
    return document


def _render_020(result: Result, version: str) -> dict[str, Any]:
    document: dict[str, Any] = {"cniVersion": version}
    for ip in result.ips:
        key = f"ip{ip.address.version}"
        if key in document:
            continue  # that format has room for one address per family
        document[key] = {"ip": str(ip.address)}
        if ip.gateway:
            document[key]["gateway"] = ip.gateway
        separator = "." if ip.address.version == 4 else ":"
        routes = [_route(route) for route in result.routes if separator in route.dst]
        if routes:
            document[key]["routes"] = routes
    document["dns"] = dict(result.dns)
    return document


def parse_result(document: Mapping[str, Any], where: str = "prevResult.") -> Result:
    """A result in any version's format. Raises InvalidConfig naming the field."""
    top = JsonFields(document, where)
    if "ip4" in document or "ip6" in document:
        return _parse_020(top)
    interfaces = tuple(
        ResultInterface(
            name=item.text("name"), mac=item.text("mac"), sandbox=item.text("sandbox"), mtu=item.number("mtu")
        )
        for item in (JsonFields(entry, f"{where}interfaces.") for entry in top.objects("interfaces"))
    )
    return Result(
        ips=tuple(_parse_ip(entry, where) for entry in top.objects("ips")),
        interfaces=interfaces,
        routes=_parse_routes(top),
        dns=top.mapping("dns"),
    )


def _parse_ip(entry: Mapping[str, Any], where: str) -> ResultIP:
    item = JsonFields(entry, f"{where}ips.")
    return ResultIP(
        address=parse_prefixed(item.text("address"), f"{where}ips.address"),
        interface=item.number("interface") if entry.get("interface") is not None else None,
        gateway=item.text("gateway"),
    )


def _parse_routes(section: JsonFields) -> tuple[ResultRoute, ...]:
    entries = (JsonFields(entry, f"{section.where}routes.") for entry in section.objects("routes"))
    routes = []
    for entry in entries:
        parse_prefixed(entry.text("dst"), f"{section.where}routes.dst")
        routes.append(ResultRoute(entry.text("dst"), entry.text("gw")))
    return tuple(routes)


def _parse_020(top: JsonFields) -> Result:
    ips: list[ResultIP] = []
    routes: list[ResultRoute] = []
    for key in ("ip4", "ip6"):
        if top.values.get(key) is None:
            continue
        section = top.section(key)
        ips.append(ResultIP(parse_prefixed(section.text("ip"), f"{section.where}ip"), None, section.text("gateway")))
        routes.extend(_parse_routes(section))
    return Result(ips=tuple(ips), routes=tuple(routes), dns=top.mapping("dns"))
