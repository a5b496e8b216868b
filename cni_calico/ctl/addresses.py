"""PURE: the addresses that a Node says it has. Rule: what is no address is left out."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from cni_calico.model.resources import Address, Node
from cni_calico.nodeagent.dataplane.encapsulation import IPIP, VXLAN

TUNNELS = (IPIP, *VXLAN.values())


def addresses_of_node(record: Node) -> tuple[Address, ...]:
    """Every address that a Node says it has, the main ones first."""
    return tuple(dict.fromkeys((*main_addresses(record), *(address for address, _ in devices_of_addresses(record)))))


def main_addresses(record: Node) -> Iterator[Address]:
    """Those on the network between nodes."""
    for interface in (record.ipv4, record.ipv6):
        if interface is not None:
            yield interface.ip
    for entry in record.addresses:
        if entry.get("type") == "InternalIP":
            yield from _parse(entry.get("address"))


def devices_of_addresses(record: Node) -> Iterator[tuple[Address, str]]:
    """Addresses whose interface is known, with its name."""
    tunnels = (record.ipv4_ipip_tunnel, record.ipv4_vxlan_tunnel, record.ipv6_vxlan_tunnel)
    for address, name in zip(tunnels, TUNNELS, strict=True):
        if address is not None:
            yield address, name
    for entry in record.interfaces:
        for text in entry.get("addresses") or ():
            yield from ((address, str(entry.get("name") or "")) for address in _parse(text))


def _parse(text: object) -> Iterator[Address]:
    try:
        yield ip_address(str(text).partition("/")[0])
    except ValueError:
        return
