"""PURE: host-local's stored files, converted into our allocations.

Rule: a file named by an address holds the container's ID in its first line; any other file is reported and left alone.
The pod that has the address, if there is one, says which container it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from cni_calico.model.names import handle_id
from cni_calico.model.resources import Address

LOCK = "lock"
LAST_RESERVED = "last_reserved_ip"
INTERFACES = "cali"


@dataclass(frozen=True, slots=True)
class Reservation:
    """One file. ``container_id`` is "" if the file says nothing."""

    file: str
    address: Address
    container_id: str


@dataclass(frozen=True, slots=True)
class Migration:
    """An address to allocate under ``handle_id``; ``reservation`` is removed afterwards."""

    reservation: Reservation
    handle_id: str
    attributes: Mapping[str, str]


def parse_reservation(file: str, content: bytes) -> Reservation | None:
    """None for a file that is not a reservation."""
    try:
        address = ip_address(file)
    except ValueError:
        return None
    lines = content.decode("utf-8", "replace").splitlines()
    return Reservation(file, address, lines[0].strip() if lines else "")


def other_ipam(template: str) -> str:
    """The IPAM plugin that a network configuration names, "" for calico-ipam. The text is a template, with placeholders
    that are not JSON.
    """
    begin = re.search(r'"ipam"\s*:\s*\{', template)
    depth, flat = 1, ""
    for character in template[begin.end() :] if begin is not None else "":
        depth += (character in "{[") - (character in "}]")
        if not depth:
            break
        flat += character if depth == 1 else ""
    found = re.search(r'"type"\s*:\s*"([^"]*)"', flat)
    return found.group(1) if found is not None and found.group(1) != "calico-ipam" else ""


def is_bookkeeping(file: str) -> bool:
    """Whether the file is one that host-local keeps besides its reservations; it is no longer needed then."""
    return file == LOCK or file.startswith(LAST_RESERVED)


def plan_migration(
    reservation: Reservation,
    network: str,
    node: str,
    pods: Mapping[Address, tuple[str, str]] | None,
    routed: Iterable[Address],
) -> Migration | None:
    """None if nothing uses the address any more: neither a pod nor a workload's interface.

    ``pods`` maps addresses to (namespace, name); None without Kubernetes: then every reservation counts.
    """
    if not reservation.container_id:
        return None
    handle, attributes = handle_id(network, reservation.container_id), {"node": node}
    if pods is not None and reservation.address in pods:
        namespace, pod = pods[reservation.address]
        return Migration(reservation, handle, {**attributes, "namespace": namespace, "pod": pod})
    if pods is None or reservation.address in routed:
        return Migration(reservation, handle, attributes)
    return None


def parse_routes(v4: str, v6: str) -> frozenset[Address]:
    """The addresses that the host routes to a workload's interface, from /proc/net/route and /proc/net/ipv6_route."""
    found: set[Address] = set()
    for line in v4.splitlines():
        fields = line.split()
        if len(fields) > 7 and fields[0].startswith(INTERFACES) and fields[7] == "FFFFFFFF":
            found.add(IPv4Address(bytes.fromhex(fields[1])[::-1]))
    for line in v6.splitlines():
        fields = line.split()
        if len(fields) > 9 and fields[9].startswith(INTERFACES) and fields[1] == "80":
            found.add(IPv6Address(bytes.fromhex(fields[0])))
    return frozenset(found)
