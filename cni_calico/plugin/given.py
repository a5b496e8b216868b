"""PURE: what any IPAM plugin assigned to an attachment: addresses, routes and DNS; and the result that says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_interface, ip_network
from typing import Any

from cni_calico.cni.result import Result, ResultInterface, ResultIP, ResultRoute
from cni_calico.model.resources import Address, Network, WorkloadEndpoint


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses, IPAM's routes for the result, destinations that replace the default routes, and the gateways that
    IPAM named for individual addresses. ``shared``: they are still another pod's, to which the host routes them.
    """

    addresses: tuple[Address, ...]
    result_routes: tuple[ResultRoute, ...]
    dns: Mapping[str, Any]
    extra_routes: tuple[Network, ...] = ()
    gateways: Mapping[Address, str] = field(default_factory=dict)
    shared: bool = False


def plan_delegated(result: Result, dns: Mapping[str, Any]) -> Addresses:
    """What another IPAM plugin assigned. ``dns`` is the configuration's, used if the plugin's result has none."""
    return Addresses(
        addresses=tuple(ip.address.ip for ip in result.ips),
        result_routes=result.routes or tuple(ResultRoute(str(ip.address)) for ip in result.ips),
        dns=result.dns or dns,
        extra_routes=plan_extra_routes(result.routes),
        gateways={ip.address.ip: ip.gateway for ip in result.ips if ip.gateway},
    )


def plan_recorded(own: WorkloadEndpoint, routes: tuple[ResultRoute, ...], dns: Mapping[str, Any]) -> Addresses:
    """What another IPAM plugin assigned to the attachment earlier. ``routes`` are the configuration's."""
    return Addresses(
        addresses=tuple(network.network_address for network in own.ip_networks),
        result_routes=routes or tuple(ResultRoute(str(network)) for network in own.ip_networks),
        dns=dns,
        extra_routes=plan_extra_routes(routes),
    )


def plan_extra_routes(routes: Iterable[ResultRoute]) -> tuple[Network, ...]:
    """The destinations of an IPAM plugin's routes, which become routes of the pod."""
    return tuple(ip_network(route.dst, strict=False) for route in routes)


def plan_result(given: Addresses, host: str, pod: ResultInterface) -> Result:
    """The result of ADD: ``host`` and ``pod`` are the two ends of the interface."""
    return Result(
        interfaces=(ResultInterface(host), pod),
        ips=tuple(ResultIP(ip_interface((a, a.max_prefixlen)), 1) for a in given.addresses),
        routes=given.result_routes,
        dns=given.dns,
    )
