"""PURE: how packets get from this node to others: which pools use which tunnel, tunnel devices, MTUs, MACs.

Rule: facts about one family at a time; a node without an address of a family has no tunnels in it. Source: upstream's
naming of devices and MAC addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface

from cni_calico.model.host import HostInterface, TunnelDevice
from cni_calico.model.kubernetes.flannel import parse_end
from cni_calico.model.names import sha1_hex
from cni_calico.model.resources import Address, IPPool, Network, Node
from cni_calico.model.wireguard import DEFAULT_NAMES
from cni_calico.nodeagent.context.felix import FelixSettings

VXLAN = {4: "vxlan.calico", 6: "vxlan-v6.calico"}
IPIP = "tunl0"
OVERHEAD = {"ipip": 20, "vxlan4": 50, "vxlan6": 70, "wireguard4": 60, "wireguard6": 80}
MTU_MIN = 576  # a smaller MTU is not usable, and the kernel refuses IPv6 below 1280
DEFAULT_MTU = 1500
UNMATCHED_MTU = 1460


@dataclass(frozen=True, slots=True)
class TunnelEnd:
    """A node as an end of tunnels of one family. ``vtep`` and ``mac`` are its VXLAN device's."""

    name: str
    address: IPv4Address | IPv6Address
    network: Network
    vtep: Address | None
    mac: str
    ipip: Address | None


def derived_mac(node: str, family: int) -> str:
    """The MAC of a node's VXLAN device if none is stored."""
    digest = sha1_hex(node if family == 4 else f"{node}-v6")
    return ":".join(("66", *(digest[i : i + 2] for i in range(0, 10, 2))))


def endpoint_of(node: Node, family: int) -> TunnelEnd | None:
    """None if the node has no address of the family. What Calico's records do not say flannel's annotations may, on a
    node that is not moved yet; on one that is flannel's nodes go on to use the MAC in them.
    """
    flannel = parse_end(node.status) if family == 4 else None
    address: IPv4Interface | IPv6Interface | None = node.ipv4 if family == 4 else node.ipv6
    if address is None and flannel is not None:
        address = IPv4Interface(flannel.address)
    if address is None:
        return None
    name, vtep = node.metadata.name, node.ipv4_vxlan_tunnel if family == 4 else node.ipv6_vxlan_tunnel
    stored = node.vxlan_tunnel_mac if family == 4 else node.vxlan_tunnel_mac_v6
    return TunnelEnd(
        name=name,
        address=address.ip,
        network=address.network,
        vtep=vtep or (flannel.vtep if flannel else None),
        mac=(stored or (flannel.mac if flannel else derived_mac(name, family))).lower(),
        ipip=node.ipv4_ipip_tunnel if family == 4 else None,
    )


def encapsulation_of(pool: IPPool) -> tuple[str, str]:
    """("vxlan" | "ipip" | "none", mode) of a pool."""
    if pool.vxlan_mode != "Never":
        return "vxlan", pool.vxlan_mode
    if pool.ipip_mode != "Never" and pool.cidr.version == 4:
        return "ipip", pool.ipip_mode
    return "none", "Never"


def wants_vxlan(family: int, pools: Iterable[IPPool], felix: FelixSettings) -> bool:
    if felix.vxlan_enabled is not None:
        return felix.vxlan_enabled
    return any(pool.cidr.version == family and pool.vxlan_mode != "Never" for pool in pools)


def wants_ipip(pools: Iterable[IPPool], felix: FelixSettings) -> bool:
    if felix.ipip_enabled is not None:
        return felix.ipip_enabled
    return any(pool.cidr.version == 4 and pool.ipip_mode != "Never" for pool in pools)


def holder_of(address: Address, interfaces: Iterable[HostInterface]) -> HostInterface | None:
    """The interface that has an address, except our tunnel devices."""
    ours = {IPIP, *VXLAN.values(), *DEFAULT_NAMES.values()}
    for interface in interfaces:
        if interface.name not in ours and any(held.ip == address for held in interface.addresses):
            return interface
    return None


def node_mtu(own: Node | None, interfaces: Sequence[HostInterface], felix: FelixSettings) -> int:
    """The smallest MTU of the interfaces that have the node's addresses; 1500 if none does. With MTUIfacePattern it is
    the smallest of the matching ones that are up.
    """
    if felix.mtu_interfaces is not None:
        return _matching_mtu(felix.mtu_interfaces, interfaces, felix.interface_prefixes)
    addresses = [] if own is None else [a.ip for a in (own.ipv4, own.ipv6) if a is not None]
    holders = [holder for address in addresses if (holder := holder_of(address, interfaces)) is not None]
    return min((holder.mtu for holder in holders), default=DEFAULT_MTU)


def _matching_mtu(pattern: re.Pattern[str], interfaces: Iterable[HostInterface], workloads: tuple[str, ...]) -> int:
    """Of what is not ours, which would shrink at each turn; as upstream has it, 1460 if no interface matches."""
    ours = (IPIP, *VXLAN.values(), *workloads)
    matching = (i.mtu for i in interfaces if i.up and not i.name.startswith(ours) and pattern.search(i.name))
    return min(matching, default=UNMATCHED_MTU)


def _less(mtu: int, overhead: str) -> int:
    return max(mtu - OVERHEAD[overhead], MTU_MIN)


def desired_devices(
    own: Node, pools: Sequence[IPPool], interfaces: Sequence[HostInterface], felix: FelixSettings, backend: str
) -> tuple[dict[str, TunnelDevice], dict[str, str]]:
    """The tunnel devices by name, and why a wanted one cannot be made, or is not enough.

    A VXLAN device is made before it has its address: the address in the Node tells the others that it stands.
    """
    devices: dict[str, TunnelDevice] = {}
    lacking: dict[str, str] = {}
    if backend == "none":
        return devices, lacking
    for family in (4, 6):
        if (family == 6 and not felix.ipv6_support) or not wants_vxlan(family, pools, felix):
            continue
        made = _vxlan(own, family, interfaces, felix)
        if isinstance(made, str):
            lacking[VXLAN[family]] = made
            continue
        devices[made.name] = made
        if made.address is None:
            lacking[made.name] = "this node has no tunnel address for it yet"
    end = endpoint_of(own, 4)
    if wants_ipip(pools, felix) and end is not None:
        mtu = felix.mtu_v4_ipip or _less(_mtu_below(end.address, interfaces, felix), "ipip")
        devices[IPIP] = TunnelDevice(IPIP, "ipip", mtu, end.ipip)
    return devices, lacking


def _mtu_below(address: Address, interfaces: Sequence[HostInterface], felix: FelixSettings) -> int:
    if felix.mtu_interfaces is not None:
        return _matching_mtu(felix.mtu_interfaces, interfaces, felix.interface_prefixes)
    holder = holder_of(address, interfaces)
    return DEFAULT_MTU if holder is None else holder.mtu


def _vxlan(own: Node, family: int, interfaces: Sequence[HostInterface], felix: FelixSettings) -> TunnelDevice | str:
    end = endpoint_of(own, family)
    if end is None:
        return f"this node has no IPv{family} address"
    holder = holder_of(end.address, interfaces)
    if holder is None:
        return f"no interface of this host holds the node's address {end.address}"
    below = _mtu_below(end.address, interfaces, felix)
    mtu = (felix.vxlan_mtu if family == 4 else felix.vxlan_mtu_v6) or _less(below, f"vxlan{family}")
    return TunnelDevice(
        name=VXLAN[family],
        kind="vxlan",
        mtu=mtu,
        address=end.vtep,
        parent=holder.name,
        local=end.address,
        vni=felix.vxlan_vni,
        port=felix.vxlan_port,
        mac=end.mac,
    )


def workload_mtu(
    own: Node | None, pools: Sequence[IPPool], interfaces: Sequence[HostInterface], felix: FelixSettings, backend: str
) -> int:
    """The MTU of workloads' interfaces: the largest that fits through every tunnel in use."""
    base = node_mtu(own, interfaces, felix)
    sizes = [base]
    if backend != "none":
        if wants_ipip(pools, felix):
            sizes.append(felix.mtu_v4_ipip or _less(base, "ipip"))
        if wants_vxlan(4, pools, felix):
            sizes.append(felix.vxlan_mtu or _less(base, "vxlan4"))
        if felix.ipv6_support and wants_vxlan(6, pools, felix):
            sizes.append(felix.vxlan_mtu_v6 or _less(base, "vxlan6"))
    if felix.wireguard_enabled:
        sizes.append(felix.wireguard_mtu or _less(base, "wireguard4"))
    if felix.wireguard_enabled_v6 and felix.ipv6_support:
        sizes.append(felix.wireguard_mtu_v6 or _less(base, "wireguard6"))
    return min(sizes)
