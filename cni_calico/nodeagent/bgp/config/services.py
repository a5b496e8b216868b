"""PURE: Kubernetes services: which of their addresses this node announces.

Rule: every node announces the ranges as a whole. Single addresses are announced only by a node with a reason: a ready
local endpoint (externalTrafficPolicy Local), or a range of exactly that address (policy Cluster). Without aggregation
load balancers' ranges are not announced, and every address in them counts as such a range while its service has an
endpoint anywhere. A node labelled
``node.kubernetes.io/exclude-from-external-load-balancers`` announces nothing, but still keeps the ranges out of its
kernel, because they are kube-proxy's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

from cni_calico.model.documents.fields import (
    Wrong,
    brief,
    parse_address,
    parse_object,
    parse_objects,
    parse_text,
    parse_texts,
)
from cni_calico.model.resources import Address, Network
from cni_calico.nodeagent.bgp.config.configuration import BgpConfiguration
from cni_calico.nodeagent.bgp.config.findings import BgpProblem, SpecReader

EXCLUDE_LABEL = "node.kubernetes.io/exclude-from-external-load-balancers"
_TYPES = ("ClusterIP", "NodePort", "LoadBalancer")


@dataclass(frozen=True, slots=True)
class ServiceEndpoint:
    """A ready endpoint and the node it runs on."""

    address: Address
    node: str


@dataclass(frozen=True, slots=True)
class Service:
    namespace: str
    name: str
    cluster_ips: tuple[Address, ...] = ()
    external_ips: tuple[Address, ...] = ()
    load_balancer_ips: tuple[Address, ...] = ()
    local: bool = False  # externalTrafficPolicy Local
    endpoints: tuple[ServiceEndpoint, ...] = ()
    has_endpoints: bool = False  # anywhere, ready or not


@dataclass(frozen=True, slots=True)
class ServiceRoutes:
    """``ranges`` are kept out of the kernel, ``announced`` are this node's static routes, both of one family."""

    ranges: tuple[Network, ...] = ()
    announced: tuple[Network, ...] = ()


# -- parsing ----------------------------------------------------------------------------------------------------------


def _object(raw: Any) -> Mapping[str, Any]:
    """An object's part; one of another shape counts as empty, because one Service must not stop the others."""
    return raw if isinstance(raw, Mapping) else {}


def _parse_cluster_ips(reader: SpecReader) -> tuple[Address, ...]:
    texts = reader.read("clusterIPs", parse_texts, ()) or (reader.read("clusterIP", parse_text, ""),)
    inner = reader.inner({"clusterIP": [text for text in texts if text not in ("", "None")]}, "")
    return inner.read_each("clusterIP", parse_address)


def _parse_ingress(raw: Any, at: str) -> Address | None:
    text = parse_object(raw, at).get("ip")
    return parse_address(text, f"{at}.ip") if text else None


def parse_service(
    service: Mapping[str, Any], slices: Iterable[Mapping[str, Any]] = ()
) -> tuple[Service | None, tuple[BgpProblem, ...]]:
    """A Service object with its EndpointSlices; None if it has no address to announce.

    Problems name the service; wrong parts are left out.
    """
    metadata = _object(service.get("metadata"))
    namespace, name = str(metadata.get("namespace", "")), str(metadata.get("name", ""))
    reader = SpecReader(brief(f"Service {namespace}/{name}"), _object(service.get("spec")))
    if reader.spec.get("type", "ClusterIP") not in _TYPES:
        return None, ()
    cluster_ips = _parse_cluster_ips(reader)
    if not cluster_ips:
        return None, tuple(reader.problems)
    status = reader.inner(_object(_object(service.get("status")).get("loadBalancer")), "status.loadBalancer")
    slices = tuple(slices)
    endpoints = [_parse_endpoints(reader, item) for item in slices]
    value = Service(
        namespace,
        name,
        cluster_ips,
        reader.read_each("externalIPs", parse_address),
        tuple(ip for ip in status.read_each("ingress", _parse_ingress) if ip is not None),
        reader.read("externalTrafficPolicy", parse_text, "") == "Local",
        tuple(dict.fromkeys(endpoint for some in endpoints for endpoint in some)),
        any(item.get("endpoints") for item in slices),
    )
    return value, tuple(reader.problems)


def _parse_endpoints(reader: SpecReader, item: Mapping[str, Any]) -> list[ServiceEndpoint]:
    """The ready endpoints of an EndpointSlice."""
    out = []
    for i, endpoint in enumerate(reader.inner(item, "endpoint slice").read("endpoints", parse_objects, ())):
        node = endpoint.get("nodeName")
        ready = _object(endpoint.get("conditions")).get("ready")
        if not isinstance(node, str) or ready is False:
            continue
        addresses = endpoint.get("addresses")
        for text in addresses if isinstance(addresses, list | tuple) else ():
            try:
                out.append(ServiceEndpoint(parse_address(text, f"endpoints[{i}]"), node))
            except Wrong as e:
                reader.error(str(e))
    return out


# -- deciding ---------------------------------------------------------------------------------------------------------


def _host(address: Address) -> Network:
    return ip_network((address, address.max_prefixlen))


def _is_single(network: Network) -> bool:
    return network.prefixlen == network.max_prefixlen


def _inside(address: Address, ranges: Sequence[Network]) -> bool:
    return any(address.version == network.version and address in network for network in ranges)


def _singles_of(service: Service, configuration: BgpConfiguration, node: str) -> list[Address]:
    """The addresses of a service that this node announces one by one."""
    external = [ip for ip in service.external_ips if _inside(ip, configuration.service_external_cidrs)]
    balancer = [ip for ip in service.load_balancer_ips if _inside(ip, configuration.service_load_balancer_cidrs)]
    if not service.local:
        lone = {ip_address(n.network_address) for n in configuration.service_external_cidrs if _is_single(n)}
        if configuration.aggregates_load_balancers:
            lone_balancer = {n.network_address for n in configuration.service_load_balancer_cidrs if _is_single(n)}
            balancer = [ip for ip in balancer if ip in lone_balancer]
        elif not service.has_endpoints:
            balancer = []
        return [ip for ip in external if ip in lone] + balancer
    families = {endpoint.address.version for endpoint in service.endpoints if endpoint.node == node}
    cluster = service.cluster_ips if configuration.service_cluster_cidrs else ()
    return [ip for ip in (*cluster, *external, *balancer) if ip.version in families]


def select_service_routes(
    services: Iterable[Service],
    configuration: BgpConfiguration,
    cluster_cidrs: tuple[Network, ...],
    *,
    node: str,
    excluded: bool,
    version: int,
) -> ServiceRoutes:
    """The routes of one family that the services require on this node; ``node`` is its name in Kubernetes."""
    others = (*configuration.service_external_cidrs, *configuration.service_load_balancer_cidrs)
    ranges = tuple(n for n in dict.fromkeys((*cluster_cidrs, *others)) if n.version == version)
    if excluded:
        return ServiceRoutes(ranges)
    whole = others if configuration.aggregates_load_balancers else configuration.service_external_cidrs
    announced = [n for n in cluster_cidrs if n.version == version]
    announced += [n for n in whole if n.version == version and not _is_single(n)]
    for service in services:
        singles = _singles_of(service, configuration, node)
        announced += [_host(ip) for ip in singles if ip.version == version]
    return ServiceRoutes(ranges, tuple(dict.fromkeys(announced)))
