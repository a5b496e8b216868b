"""PURE: floating IPs: further addresses that lead to a workload of this node.

Rule: whoever may annotate a pod may write any address there, so one that a node, this host, a workload or a holder in
IPAM has is not translated, and neither is one of which that cannot be told; what stands in the way is said. Services'
translations come first, and policies see the workload's own address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from cni_calico.ipam.pools import pool_of
from cni_calico.model.host import HostInterface, HostRoute
from cni_calico.model.resources import Address, WorkloadEndpoint
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.endpoints import host_route
from cni_calico.nodeagent.dataplane.routes import addresses_of
from cni_calico.nodeagent.view.floating import PER_WORKLOAD, is_floating
from cni_calico.nodeagent.view.snapshot import Snapshot

TABLE = "calico-floating"
FAMILIES = {4: "ip", 6: "ip6"}
_ADDRESS = {4: "ipv4_addr", 6: "ipv6_addr"}
# behind services' at -100, whose addresses nobody can take away so; before masquerading at 100
_DESTINATIONS, _SOURCES = -99, 99


@dataclass(frozen=True, slots=True)
class FloatingAddress:
    """``external`` leads to ``internal``, an address of the workload behind ``device``."""

    external: Address
    internal: Address
    device: str


def desired_floating(
    present: Mapping[str, WorkloadEndpoint],
    snapshot: Snapshot,
    interfaces: Iterable[HostInterface],
    felix: FelixSettings,
    backend: str,
) -> tuple[tuple[FloatingAddress, ...], list[str]]:
    """Those of this node's workloads, sorted, and in words what is not as it was written, or will not be reached."""
    enabled = felix.floating_ips == "Enabled"
    asking = {name: each for name, each in present.items() if each.ip_nats and is_floating(each, enabled=enabled)}
    if not asking:
        return (), []
    taken = _holders(present, snapshot, interfaces)
    found: dict[Address, FloatingAddress] = {}
    said = []
    for name, endpoint in sorted(asking.items()):
        who = f"{endpoint.metadata.namespace}/{endpoint.pod or endpoint.workload or endpoint.metadata.name}"
        own = {net.network_address for net in endpoint.ip_networks if net.num_addresses == 1}
        pending = name in snapshot.unproven
        if len(endpoint.ip_nats) > PER_WORKLOAD:
            said.append(f"only the first {PER_WORKLOAD} floating IPs of {who} are used")
        for nat in endpoint.ip_nats[:PER_WORKLOAD]:
            new = FloatingAddress(nat.external_ip, nat.internal_ip, name)
            if new.external.version == 6 and not felix.ipv6_support:
                continue
            if new.internal not in own or new.internal.version != new.external.version:
                why = "" if pending else f"{new.internal} is no address of this workload"
            else:
                why = taken(new.external)
                former = found.get(new.external)
                if not why and former is not None and former.internal != new.internal:
                    first = min(former, new, key=lambda one: str(one.internal))
                    why, found[new.external] = f"two workloads ask for it, and {first.internal} has it", first
                elif not why:
                    found[new.external] = new
            if why:
                said.append(f"the floating IP {new.external} of {who} is not used: {why}")
    used = tuple(sorted(found.values(), key=lambda one: (one.external.version, one.external.packed)))
    return used, said + _unannounced(used, snapshot, backend)


def _holders(
    present: Mapping[str, WorkloadEndpoint], snapshot: Snapshot, interfaces: Iterable[HostInterface]
) -> Callable[[Address], str]:
    """A function that says why an address is not free, "" if it is."""
    nodes = {address for family in FAMILIES for address in addresses_of(snapshot.nodes, family)}
    nodes.update(*snapshot.parts.values())
    host = {address.ip for interface in interfaces for address in interface.addresses}
    workloads = {net.network_address for each in present.values() for net in each.ip_networks if net.num_addresses == 1}
    workloads.update(net.network_address for nets in snapshot.unproven.values() for net in nets)
    blocks = {block.cidr for block in snapshot.blocks}
    lengths = {(block.version, block.prefixlen) for block in blocks}

    def why_not(address: Address) -> str:
        if address.is_loopback or address.is_multicast or address.is_unspecified or address.is_link_local:
            return "no packet to such an address is for a workload"
        if address.is_reserved:
            return "it is reserved"
        if address in nodes or address in host:
            return "a node has it"
        if address in workloads:
            return "a workload has it"
        pool = pool_of(snapshot.pools, address)
        around = None if pool is None else ip_network((address, pool.block_size), strict=False)
        if around is not None and around not in snapshot.floating:
            return f"IPAM has not said yet who has addresses of {around}"
        holder = "" if around is None else snapshot.floating[around].get(address, "")
        if holder:
            return f"IPAM gave it to {holder}"
        for version, length in lengths:
            other = ip_network((address, length), strict=False) if version == address.version else None
            if other in blocks and other != around:
                return f"it is in {other}, whose addresses a node gives to its workloads"
        return ""

    return why_not


def _unannounced(used: Sequence[FloatingAddress], snapshot: Snapshot, backend: str) -> list[str]:
    """Those that no other host learns of."""
    if backend != "bird":
        outside, why = [one.external for one in used], "BGP is off"
    else:
        announced = [pool for pool in snapshot.pools if not pool.disable_bgp_export]
        outside = [one.external for one in used if pool_of(announced, one.external) is None]
        why = "no pool that BGP announces contains them"
    if not outside:
        return []
    shown = ", ".join(map(str, outside[:10])) + (f" and {len(outside) - 10} more" if len(outside) > 10 else "")
    return [f"nobody tells other hosts the way to the floating IPs {shown}: {why}; route them to this node yourself"]


def floating_routes(used: Iterable[FloatingAddress], felix: FelixSettings) -> set[HostRoute]:
    """As the workload's own: BIRD learns them from the kernel."""
    return {host_route(ip_network(one.external), one.device, felix) for one in used}


def render_floating(used: Iterable[FloatingAddress], family: int) -> str:
    """The script for ``nft -f``: afterwards the table of the family says exactly this; without any it is gone."""
    name, mine = FAMILIES[family], [one for one in used if one.external.version == family]
    lines = [f"add table {name} {TABLE}", f"delete table {name} {TABLE}"]
    if not mine:
        return "\n".join([*lines, ""])
    hairpin: dict[Address, Address] = {}
    for one in mine:
        hairpin.setdefault(one.internal, one.external)
    address = _ADDRESS[family]
    lines += [
        f"table {name} {TABLE} {{",
        *_map("workloads", f"{address} : {address}", (f"{one.external} : {one.internal}" for one in mine)),
        *_map("itself", f"{address} . {address} : {address}", (f"{i} . {i} : {e}" for i, e in hairpin.items())),
        *_chain("prerouting", _DESTINATIONS, f"dnat to {name} daddr map @workloads"),
        *_chain("output", _DESTINATIONS, f"dnat to {name} daddr map @workloads"),
        *_chain("postrouting", _SOURCES, f"snat to {name} saddr . {name} daddr map @itself"),
        "}",
    ]
    return "\n".join([*lines, ""])


def _map(name: str, types: str, elements: Iterable[str]) -> list[str]:
    return [f"  map {name} {{", f"    type {types};", f"    elements = {{ {', '.join(elements)} }}", "  }"]


def _chain(hook: str, priority: int, rule: str) -> list[str]:
    return [f"  chain {hook} {{", f"    type nat hook {hook} priority {priority}; policy accept;", f"    {rule}", "  }"]
