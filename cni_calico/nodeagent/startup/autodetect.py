"""PURE: which address of the host is the node's, given a list of its interfaces and a method.

Rule: of several candidates, the one on the default route's interface comes first, then the Kubernetes InternalIP, then
the newest interface (upstream looks only for the newest interface, and hosts with two network cards often lose their
routes by that). A tunnel's single address is taken if there is no other: WireGuard's interface between nodes, which may
have any name, has one. The built-in patterns are anchored at the start of a name, users' patterns match anywhere in it.
Only global unicast addresses of an interface that is up can be chosen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_interface

from cni_calico.errors import InvalidConfig
from cni_calico.model.host import HostInterface
from cni_calico.model.resources import Address, Interface
from cni_calico.model.wireguard import DEVICE_KINDS
from cni_calico.nodeagent.context.address_setting import METHODS, Method

# Interfaces that no other host can reach: container bridges, our own devices, kube-proxy's and similar ones.
LOCAL_INTERFACES = (
    r"docker.*",
    r"cbr.*",
    r"dummy.*",
    r"podman.*",
    r"virbr.*",
    r"lxcbr.*",
    r"veth.*",
    r"lo$",
    r"br-.*",
    r"cali.*",
    r"tunl.*",
    r"flannel.*",
    r"kube-ipvs.*",
    r"cni.*",
    r"vxlan\.calico$",
    r"vxlan-v6\.calico$",
    r"wireguard\.cali$",
    r"wg-v6\.cali$",
    r"nodelocaldns",
)
_LOCAL = re.compile("|".join(LOCAL_INTERFACES))


@dataclass(frozen=True, slots=True)
class Choice:
    """An address with its prefix and the interface that has it ("" if none does)."""

    address: Interface
    interface: str


def is_local_interface(name: str) -> bool:
    """Whether first-found and skip-interface ignore an interface."""
    return _LOCAL.match(name) is not None


def is_global_unicast(address: Address) -> bool:
    return not (
        address.is_multicast
        or address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address == IPv4Address("255.255.255.255")
    )


def select_addresses(
    method: Method,
    family: int,
    interfaces: Sequence[HostInterface],
    *,
    internal_ips: Collection[Address] = (),
    reached_from: Address | None = None,
    default_interface: str = "",
) -> list[Choice]:
    """The node's possible addresses of a family, the best one first; none if no interface has one that the method
    accepts.

    ``internal_ips`` are the Kubernetes node's; ``reached_from`` is the source address of the route to a can-reach
    target. An internal IP that no interface has is used as it is, with the prefix of a single address.
    """
    if method.kind == "kubernetes-internal-ip":
        return [select_holder(internal, interfaces) for internal in internal_ips if internal.version == family][:1]
    if method.kind == "can-reach":
        if reached_from is None or reached_from.version != family:
            return []
        found = select_holder(reached_from, interfaces)
        return [found] if found.interface else []
    candidates = [
        (
            interface.name != default_interface and _is_last_choice(method, interface, address),
            interface.name != default_interface,
            address.ip not in internal_ips,
            -interface.index,
            place,
            address,
        )
        for interface in interfaces
        if interface.up and _accepts(method, interface.name)
        for place, address in enumerate(interface.addresses)
        if address.version == family and is_global_unicast(address.ip) and _is_inside(method, address.ip)
    ]
    names = {-interface.index: interface.name for interface in interfaces}
    return [Choice(address, names[index]) for *_, index, _, address in sorted(candidates, key=lambda c: c[:5])]


def _accepts(method: Method, name: str) -> bool:
    if method.kind == "interface":
        return any(pattern.search(name) for pattern in method.patterns)
    if method.kind == "cidr":
        return True
    return not is_local_interface(name) and not any(pattern.search(name) for pattern in method.patterns)


def _is_last_choice(method: Method, interface: HostInterface, address: Interface) -> bool:
    single_address = address.network.prefixlen == address.network.max_prefixlen
    return method.kind not in ("interface", "cidr") and interface.kind in DEVICE_KINDS and single_address


def _is_inside(method: Method, address: Address) -> bool:
    if method.kind != "cidr":
        return True
    return any(network.version == address.version and address in network for network in method.networks)


def select_holder(address: Address, interfaces: Iterable[HostInterface]) -> Choice:
    """The address with the prefix that it has on its interface; without an interface that of a single address."""
    for interface in interfaces:
        for held in interface.addresses:
            if held.ip == address:
                return Choice(held, interface.name)
    return Choice(single(address), "")


def single(address: Address) -> Interface:
    """The address as a /32 or /128."""
    return ip_interface((address, address.max_prefixlen))


def not_found(family: int, method: Method, interfaces: Iterable[HostInterface]) -> InvalidConfig:
    """The error for a method that found nothing; it lists the addresses that there were to choose from."""
    seen = [
        f"{interface.name}{'' if interface.up else ' (down)'}: {', '.join(map(str, interface.addresses)) or 'none'}"
        for interface in sorted(interfaces, key=lambda i: i.index)
    ]
    variable = "IP" if family == 4 else "IP6"
    return InvalidConfig(
        f"cannot detect the node's IPv{family} address: method {method.text or method.kind!r} matches none of this "
        "host's addresses",
        details=f"set {variable} to an address or none, or {variable}_AUTODETECTION_METHOD to {METHODS}; "
        f"interfaces and addresses found: {'; '.join(seen) or 'none'}",
    )
