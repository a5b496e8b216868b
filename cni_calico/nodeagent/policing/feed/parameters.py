"""PURE: this node's parameters, its tunnels and the services' networks, as the values that the rules depend on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from cni_calico.model.resources import Address
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.encapsulation import IPIP, VXLAN
from cni_calico.nodeagent.dataplane.encryption.families import of_family
from cni_calico.nodeagent.dataplane.routes import addresses_of
from cni_calico.nodeagent.policing.tables.settings import Networks
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.nodeagent.view.snapshot import Snapshot

_SERVICE_FIELDS = ("serviceClusterIPs", "serviceExternalIPs", "serviceLoadBalancerIPs")


def select_tunnels(
    snapshot: Snapshot, felix: FelixSettings, backend: str, devices: Collection[str], ports: Collection[int] = ()
) -> Tunnels:
    """The tunnels of the viewing node, and the nodes that they lead to: never more than the addresses that are known.
    ``devices``: those with our names that are there, or are about to be made; without one there is no rule, because the
    port may be another program's. ``ports``: the UDP ports that the VXLAN devices among them have now.

    Of a Node that cannot be read, its last valid version counts and every address that can be read; a node of which
    neither is known is cut off.
    """
    if backend == "none":
        return Tunnels()
    families = (4, 6) if felix.ipv6_support else (4,)
    addresses = {address for family in families for address in addresses_of(snapshot.nodes, family)}
    addresses |= {address for part in snapshot.parts.values() for address in part if address.version in families}
    return Tunnels(
        frozenset(family for family in families if VXLAN[family] in devices),
        IPIP in devices,
        frozenset((*map(_network, addresses), *felix.external_nodes)),
        frozenset(ports) - {felix.vxlan_port},
        (_wireguard_port(felix, 4), _wireguard_port(felix, 6)),
    )


def _wireguard_port(felix: FelixSettings, family: int) -> int:
    settings = of_family(felix, family)
    return settings.port if settings.enabled else 0


def _network(address: Address) -> IPv4Network | IPv6Network:
    return ip_network(address)


def parse_service_networks(spec: Mapping[str, Any] | None) -> Networks:
    """The networks of services in a BGPConfiguration's spec; invalid ones are left out: another part reports them."""
    return tuple(sorted(set(_networks(spec or {})), key=str))


def _networks(spec: Mapping[str, Any]) -> Iterator[IPv4Network | IPv6Network]:
    for field in _SERVICE_FIELDS:
        listed = spec.get(field)
        for entry in listed if isinstance(listed, list) else ():
            try:
                yield ip_network(str(entry["cidr"]), strict=False)
            except (ValueError, TypeError, KeyError):
                continue
