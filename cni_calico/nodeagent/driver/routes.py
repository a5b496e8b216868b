"""PURE: which networks are where in the cluster, as a driver is told it: upstream's routes.

Rule: one route for each pool, block, node's address, tunnel's address, local workload's address, and each address that
is used on another node than its block's. What is exactly the same network is one route with the types of all. A node
whose address is not known has its routes without it: what to do is the driver's affair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_network

from cni_calico.ipam.pools import pool_of
from cni_calico.model.resources import Address, IPPool, Network, Node
from cni_calico.model.wireguard import published_address
from cni_calico.nodeagent.dataplane.encapsulation import TunnelEnd, encapsulation_of, endpoint_of
from cni_calico.nodeagent.view.snapshot import Snapshot

REMOTE_WORKLOAD, REMOTE_HOST, LOCAL_WORKLOAD, LOCAL_HOST, REMOTE_TUNNEL, LOCAL_TUNNEL = 1, 2, 4, 8, 16, 32
_FAMILIES = (4, 6)


@dataclass(frozen=True, slots=True)
class DriverRoute:
    """``types``: bits; none: the network of a pool. ``tunnels``: of "ipip", "vxlan", "wireguard", what ends there."""

    dst: Network
    types: int = 0
    node: str = ""
    address: Address | None = None
    pool: IPPool | None = None
    same_subnet: bool = False
    local_workload: bool = False
    borrowed: bool = False
    tunnels: frozenset[str] = frozenset()


def desired_driver_routes(snapshot: Snapshot) -> dict[Network, DriverRoute]:
    found: dict[Network, DriverRoute] = {}
    ends = {family: _ends(snapshot, family) for family in _FAMILIES}
    for route in (*_of_pools(snapshot), *_of_blocks(snapshot), *_of_nodes(snapshot), *_of_workloads(snapshot)):
        before = found.get(route.dst)
        if before is not None:
            route = _both(before, route)
        elif route.types:
            route = _placed(snapshot, route, ends[route.dst.version])
        found[route.dst] = route
    return found


def _ends(snapshot: Snapshot, family: int) -> dict[str, TunnelEnd]:
    ends = {name: endpoint_of(node, family) for name, node in snapshot.nodes.items()}
    return {name: end for name, end in ends.items() if end is not None}


def _of_pools(snapshot: Snapshot) -> Iterator[DriverRoute]:
    for pool in snapshot.pools:
        yield DriverRoute(pool.cidr, pool=pool)


def _of_blocks(snapshot: Snapshot) -> Iterator[DriverRoute]:
    for block in snapshot.blocks:
        if block.node is not None:
            yield DriverRoute(block.cidr, _workloads_of(snapshot, block.node), block.node)
        for address, holder in block.lent.items():
            yield DriverRoute(ip_network(address), _workloads_of(snapshot, holder), holder, borrowed=True)


def _workloads_of(snapshot: Snapshot, node: str) -> int:
    return LOCAL_WORKLOAD if node == snapshot.node else REMOTE_WORKLOAD


def _of_nodes(snapshot: Snapshot) -> Iterator[DriverRoute]:
    for name, node in snapshot.nodes.items():
        host, tunnel = (LOCAL_HOST, LOCAL_TUNNEL) if name == snapshot.node else (REMOTE_HOST, REMOTE_TUNNEL)
        for interface in (node.ipv4, node.ipv6):
            if interface is not None:
                yield DriverRoute(ip_network(interface.ip), host, name)
        for kind, address in _tunnels_of(node):
            if address is not None:
                yield DriverRoute(ip_network(address), tunnel, name, tunnels=frozenset((kind,)))


def _tunnels_of(node: Node) -> Iterator[tuple[str, Address | None]]:
    yield "ipip", node.ipv4_ipip_tunnel
    yield "vxlan", node.ipv4_vxlan_tunnel
    yield "vxlan", node.ipv6_vxlan_tunnel
    for family in _FAMILIES:
        yield "wireguard", published_address(node, family)


def _of_workloads(snapshot: Snapshot) -> Iterator[DriverRoute]:
    for endpoint in snapshot.endpoints:
        for network in endpoint.ip_networks:
            yield DriverRoute(network, LOCAL_WORKLOAD, snapshot.node, local_workload=True)


def _placed(snapshot: Snapshot, route: DriverRoute, ends: dict[str, TunnelEnd]) -> DriverRoute:
    """With its pool and its node's address."""
    pool, end, own = pool_of(snapshot.pools, route.dst), ends.get(route.node), ends.get(snapshot.node)
    crossing = pool is not None and encapsulation_of(pool)[1] == "CrossSubnet"
    same = crossing and end is not None and own is not None and end.address in own.network
    return replace(route, pool=pool, address=None if end is None else end.address, same_subnet=same)


def _both(first: DriverRoute, then: DriverRoute) -> DriverRoute:
    """The same network, with the first one's node: a tunnel's or a workload's address may be lent, or a block."""
    return replace(
        first,
        types=first.types | then.types,
        local_workload=first.local_workload or then.local_workload,
        borrowed=first.borrowed or then.borrowed,
        tunnels=first.tunnels | then.tunnels,
    )
