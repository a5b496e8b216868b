"""PURE: the facts in a cluster's picture: pools with their blocks, nodes with their tunnels, BGP sessions.

Rule: everything follows from the stored records; sessions are those that each node's agent would configure from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cni_calico.ipam.consistency import Records
from cni_calico.model.resources import Block, IPPool, Node, Resource, is_within
from cni_calico.nodeagent.bgp.config.peers import MESH, desired_peers
from cni_calico.nodeagent.bgp.config.records import parse_records
from cni_calico.nodeagent.bgp.config.snapshot import snapshot_of


@dataclass(frozen=True, slots=True)
class PicturedBlock:
    cidr: str
    node: str
    used: int
    total: int


@dataclass(frozen=True, slots=True)
class PicturedPool:
    """``transport`` says in words how packets of its addresses reach another node."""

    name: str
    cidr: str
    transport: str
    nat: bool
    disabled: bool
    used: int
    total: int
    blocks: Sequence[PicturedBlock]

    @property
    def share(self) -> float:
        return self.used / self.total


@dataclass(frozen=True, slots=True)
class PicturedNode:
    """``tunnels`` maps their kinds to addresses; ``used`` counts the addresses in its blocks."""

    name: str
    addresses: Sequence[str]
    as_number: int
    tunnels: Mapping[str, str]
    blocks: int
    used: int
    reflects: bool
    in_mesh: bool


@dataclass(frozen=True, slots=True)
class PicturedSession:
    """A session outside the mesh. ``other`` is a node's name, or an address outside; ``source`` is the BGPPeer."""

    node: str
    other: str
    is_node: bool
    as_number: int
    source: str


@dataclass(frozen=True, slots=True)
class Picture:
    version: str
    type: str
    locked: bool
    has_bgp: bool
    bgp_by: str  # what says so
    pools: Sequence[PicturedPool] = ()
    nodes: Sequence[PicturedNode] = ()
    sessions: Sequence[PicturedSession] = ()
    strays: Sequence[PicturedBlock] = ()  # blocks in no pool
    problems: Sequence[str] = field(default_factory=tuple)

    @property
    def mesh_sessions(self) -> int:
        count = sum(node.in_mesh for node in self.nodes)
        return count * (count - 1) // 2


def picture_of(
    records: Records,
    spec: Mapping[str, Any],
    *,
    configurations: Iterable[Resource],
    peers: Iterable[Resource],
    filters: Iterable[Resource],
    backend: str = "",
) -> Picture:
    """``spec`` is ClusterInformation's, the others are the resources of BGP. ``backend``: what the agent of a node here
    uses, "" if none is known.
    """
    configurations, peers = list(configurations), list(peers)
    types = str(spec.get("clusterType") or "").split(",")
    blocks = list(records.blocks.values())
    pools = [_pool(pool, blocks) for pool in sorted(records.pools, key=_place)]
    strays = [block for block in blocks if not any(is_within(block.cidr, pool.cidr) for pool in records.pools)]
    has_bgp, bgp_by = _who_says_bgp(types, backend, any((configurations, peers)))
    nodes, sessions, problems = _nodes(records, has_bgp, configurations, peers, filters)
    return Picture(
        version=str(spec.get("calicoVersion") or "unknown"),
        type=str(spec.get("clusterType") or "unknown"),
        locked=spec.get("datastoreReady") is False,
        has_bgp=has_bgp,
        bgp_by=bgp_by,
        pools=pools,
        nodes=nodes,
        sessions=sessions,
        strays=[_block(block) for block in strays],
        problems=problems,
    )


def _who_says_bgp(types: Sequence[str], backend: str, configured: bool) -> tuple[bool, str]:
    """Whether the nodes have BGP, and what says so: their environment is stored nowhere, an agent knows its own."""
    if backend:
        return backend == "bird", f"this node's agent has CALICO_NETWORKING_BACKEND {backend}"
    if "bgp" in types:
        return True, "the cluster's type"
    if configured:
        return True, "BGP is configured; CALICO_NETWORKING_BACKEND of each node decides"
    return False, "the cluster's type, and no BGP record; CALICO_NETWORKING_BACKEND of each node decides"


def _place(pool: IPPool) -> tuple[int, Any]:
    return pool.cidr.version, pool.cidr.network_address


def _used(block: Block) -> int:
    return sum(index is not None for index in block.allocations)


def _block(block: Block) -> PicturedBlock:
    return PicturedBlock(str(block.cidr), block.node or "", _used(block), block.cidr.num_addresses)


def _pool(pool: IPPool, blocks: Sequence[Block]) -> PicturedPool:
    mine = [_block(block) for block in blocks if is_within(block.cidr, pool.cidr)]
    return PicturedPool(
        name=pool.metadata.name,
        cidr=str(pool.cidr),
        transport=_transport(pool),
        nat=pool.nat_outgoing,
        disabled=not pool.usable,
        used=sum(block.used for block in mine),
        total=pool.cidr.num_addresses,
        blocks=mine,
    )


def _transport(pool: IPPool) -> str:
    for what, mode in (("IPIP", pool.ipip_mode), ("VXLAN", pool.vxlan_mode)):
        if mode == "Always":
            return what
        if mode == "CrossSubnet":
            return f"{what} across subnets"
    return "no tunnel"


def _nodes(
    records: Records,
    has_bgp: bool,
    configurations: Iterable[Resource],
    peers: Iterable[Resource],
    filters: Iterable[Resource],
) -> tuple[list[PicturedNode], list[PicturedSession], list[str]]:
    held: dict[str, tuple[int, int]] = {}
    for block in records.blocks.values():
        count, used = held.get(block.node or "", (0, 0))
        held[block.node or ""] = (count + 1, used + _used(block))
    found: list[PicturedNode] = []
    sessions: dict[tuple[str, str], PicturedSession] = {}
    problems: dict[str, None] = {}
    configurations, peers, filters = list(configurations), list(peers), list(filters)
    members = _mesh_members(records, configurations) if has_bgp else set()
    for node in sorted(records.nodes, key=lambda node: node.metadata.name):
        name, as_number = node.metadata.name, node.as_number or 0
        if has_bgp:
            parsed = parse_records(name, configurations, peers, filters)
            as_number = node.as_number or parsed.configuration.as_number or as_number
            apart = replace(parsed, configuration=replace(parsed.configuration, mesh=False))
            peerings = desired_peers(snapshot_of(apart, name, nodes=records.nodes))
            for peer in peerings.peers:
                other = peer.node or str(peer.address)
                if (other, name) not in sessions:
                    sessions[name, other] = PicturedSession(name, other, bool(peer.node), peer.as_number, peer.bgp_peer)
            problems |= {str(problem): None for problem in peerings.problems}
        count, used = held.get(name, (0, 0))
        found.append(
            PicturedNode(
                name=name,
                addresses=[str(one) for one in (node.ipv4, node.ipv6) if one is not None],
                as_number=as_number,
                tunnels=_tunnels(node),
                blocks=count,
                used=used,
                reflects=bool(node.route_reflector_cluster_id),
                in_mesh=name in members,
            )
        )
    return found, list(sessions.values()), list(problems)


def _mesh_members(records: Records, configurations: Sequence[Resource]) -> set[str]:
    """The nodes of the full mesh: the first one, and those that it would have sessions with."""
    for node in records.nodes:
        name = node.metadata.name
        found = desired_peers(snapshot_of(parse_records(name, configurations), name, nodes=records.nodes)).peers
        others = {peer.node for peer in found if peer.kind == MESH}
        if others:
            return {name, *others}
    return set()


def _tunnels(node: Node) -> dict[str, str]:
    found = {
        "IPIP": node.ipv4_ipip_tunnel,
        "VXLAN": node.ipv4_vxlan_tunnel,
        "VXLAN IPv6": node.ipv6_vxlan_tunnel,
    }
    return {what: str(address) for what, address in found.items() if address is not None}
