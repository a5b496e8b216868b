"""PURE: the routes, neighbours and forwarding entries that lead to other nodes' addresses, and our blocks' blackholes.

Rule: VXLAN routes are always the agent's; those of other pools are BIRD's unless ProgramClusterRoutes says otherwise. A
node that cannot be reached (no address, no tunnel address yet) gets no route; that affects nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from ipaddress import ip_network

from cni_calico.ipam.pools import pool_of
from cni_calico.model.host import PROTO_CALICO, ForwardingEntry, HostInterface, HostRoute, NeighbourEntry
from cni_calico.model.resources import Address, IPPool, Network, Node
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.encapsulation import (
    IPIP,
    VXLAN,
    TunnelEnd,
    encapsulation_of,
    endpoint_of,
    holder_of,
)
from cni_calico.nodeagent.view.snapshot import BlockRoute, Snapshot

_TWO = (
    "programClusterRoutes is {} in the {}, and also, maybe by default, in the {}: the agent makes the routes to other "
)
_BOTH = _TWO.format("Enabled", "FelixConfiguration", "BGPConfiguration") + (
    "nodes' blocks, and BIRD does not; set Disabled in the BGPConfiguration"
)
_NEITHER = _TWO.format("Disabled", "BGPConfiguration", "FelixConfiguration") + (
    "nodes' blocks, since nobody else would; set Enabled in the FelixConfiguration"
)


@dataclass(frozen=True)
class Fabric:
    """The node, the others and the devices between them, for one family; ``devices`` exist or will."""

    family: int
    snapshot: Snapshot
    interfaces: Sequence[HostInterface]
    devices: frozenset[str]
    felix: FelixSettings
    backend: str

    @property
    def node(self) -> str:
        return self.snapshot.node

    @property
    def pools(self) -> Sequence[IPPool]:
        return self.snapshot.pools

    @cached_property
    def others_program(self) -> bool:
        """Whether BIRD makes the routes of pools without VXLAN."""
        return _birds(self.felix, self.backend)

    @cached_property
    def ends(self) -> dict[str, TunnelEnd]:
        found = {name: endpoint_of(node, self.family) for name, node in self.snapshot.nodes.items()}
        return {name: end for name, end in found.items() if end is not None}

    @cached_property
    def own(self) -> TunnelEnd | None:
        return self.ends.get(self.node)

    @cached_property
    def parent(self) -> str:
        """The interface that has this node's address, "" if none does."""
        holder = None if self.own is None else holder_of(self.own.address, self.interfaces)
        return "" if holder is None else holder.name


def _birds(felix: FelixSettings, backend: str) -> bool:
    return felix.program_cluster_routes != "Enabled" and backend == "bird"


def decide_writer(felix: FelixSettings, bird: bool | None, backend: str) -> tuple[FelixSettings, str]:
    """Who makes the routes to other nodes' blocks of pools without VXLAN, as parameters, and what is contradictory
    about the two settings programClusterRoutes. ``bird``: BGPConfiguration's; None: not known.

    Upstream takes both literally: with both the kernel has two routes to a block, with neither none.
    """
    agent = felix.program_cluster_routes == "Enabled"
    if bird is None or backend != "bird" or agent != bird:
        return felix, ""
    if agent:
        return felix, _BOTH
    return replace(felix, program_cluster_routes="Enabled"), _NEITHER


def makes_routes(pools: Iterable[IPPool], felix: FelixSettings, backend: str) -> bool:
    """Whether routes to other nodes' addresses are made here, and not by BIRD, for any of the pools."""
    if backend == "none" or felix.route_sync_disabled:
        return False
    return any(encapsulation_of(pool)[0] == "vxlan" or not _birds(felix, backend) for pool in pools)


def desired_remote_routes(fabric: Fabric, blocks: Sequence[BlockRoute]) -> set[HostRoute]:
    """One route per block of another node, and one per address that is used on another node than its block's."""
    routes = set()
    for block in blocks:
        if block.cidr.version != fabric.family:
            continue
        pool = pool_of(fabric.pools, block.cidr)
        if pool is None:
            continue
        for dst, holder in _destinations(block):
            if holder != fabric.node:
                route = _route_to(fabric, pool, dst, holder)
                if route is not None:
                    routes.add(route)
    return routes


def _destinations(block: BlockRoute) -> Iterator[tuple[Network, str]]:
    if block.node is not None:
        yield block.cidr, block.node
    for address, holder in block.lent.items():
        yield ip_network(address), holder


def _route_to(fabric: Fabric, pool: IPPool, dst: Network, holder: str) -> HostRoute | None:
    own, end = fabric.own, fabric.ends.get(holder)
    if own is None or end is None or end.address == own.address:
        return None
    kind, mode = encapsulation_of(pool)
    if kind != "vxlan" and fabric.others_program:
        return None
    same_subnet = end.address in own.network
    if kind == "none" or (mode == "CrossSubnet" and same_subnet):
        if not same_subnet or not fabric.parent:
            return None  # a gateway between the nodes would have no route: for that there is BGP
        return HostRoute(dst, fabric.parent, end.address, protocol=PROTO_CALICO)
    if kind == "ipip":
        if IPIP not in fabric.devices:
            return None
        return HostRoute(dst, IPIP, end.address, onlink=True, protocol=PROTO_CALICO)
    if end.vtep is None or VXLAN[fabric.family] not in fabric.devices:
        return None
    return HostRoute(dst, VXLAN[fabric.family], end.vtep, onlink=True, protocol=PROTO_CALICO)


def desired_blackholes(fabric: Fabric, blocks: Sequence[BlockRoute]) -> set[HostRoute]:
    """Blackholes for our own blocks, so that packets to a free address of ours do not loop.

    Not for single-address blocks, where the blackhole would take the place of the workload's own route.
    """
    routes = set()
    for block in blocks:
        single = block.cidr.prefixlen == block.cidr.max_prefixlen
        if block.node != fabric.node or block.cidr.version != fabric.family or single:
            continue
        pool = pool_of(fabric.pools, block.cidr)
        if pool is not None and (encapsulation_of(pool)[0] == "vxlan" or not fabric.others_program):
            routes.add(HostRoute(block.cidr, kind="blackhole", protocol=PROTO_CALICO))
    return routes


def desired_vteps(fabric: Fabric) -> tuple[set[NeighbourEntry], set[ForwardingEntry]]:
    """How the VXLAN device reaches the others: address -> MAC, MAC -> node."""
    device = VXLAN[fabric.family]
    neighbours: set[NeighbourEntry] = set()
    entries: set[ForwardingEntry] = set()
    if device in fabric.devices:
        for name, end in fabric.ends.items():
            if name != fabric.node and end.vtep is not None:
                neighbours.add(NeighbourEntry(device, end.vtep, end.mac))
                entries.add(ForwardingEntry(device, end.mac, end.address))
    return neighbours, entries


def addresses_of(nodes: Mapping[str, Node], family: int) -> set[Address]:
    """The addresses of all nodes of a family."""
    ends = (endpoint_of(node, family) for node in nodes.values())
    return {end.address for end in ends if end is not None}
