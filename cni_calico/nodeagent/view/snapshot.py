"""PURE: everything the data plane of this node is computed from, as one immutable value.

Rule: a record that cannot be read is left out and listed in ``problems``; the rest is used. Blocks are reduced to what
routing needs (``BlockRoute``), because there is one for every 64 pods of the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from typing import Any

from cni_calico.ipam.pools import pool_of
from cni_calico.model.keys import AffinityKey, BlockKey, Key, ResourceKey
from cni_calico.model.lasting import ALTERNATE
from cni_calico.model.resources import Address, Block, IPPool, Network, Node, WorkloadEndpoint
from cni_calico.nodeagent.context.configurations import NOT_SCOPED, Scoped
from cni_calico.nodeagent.view.claims import Holder


@dataclass(frozen=True, slots=True)
class BlockRoute:
    """A block's owner (None: nobody), and its addresses that other nodes hold.

    ``used``: for the viewing node's own block, how many addresses are taken, for metrics.
    ``held``: for the viewing node, the pods (namespace, name) by the address that the block holds for them;
    ``handles``: the handles under which it does; ``away``: those of them that another pod has now, because a virtual
    machine has left for it or has not come yet.
    ``partial``: a relay has left out what only the block's own node needs.
    """

    cidr: Network
    node: str | None
    lent: Mapping[Address, str] = field(default_factory=dict)
    used: int = field(default=0, compare=False)
    held: Mapping[Address, Holder] = field(default_factory=dict, compare=False)
    handles: Mapping[Address, str] = field(default_factory=dict, compare=False)
    away: frozenset[Address] = frozenset()
    partial: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``endpoints`` are this node's.

    ``unread``: the Nodes, pools, blocks, endpoints and settings for this node that exist but were never readable. Their
    effects may be in the kernel, or in BIRD's configuration. ``unproven``: by host interface, the addresses that only a
    pod's annotation names; they are in no endpoint. ``parts``: by the name of a Node that cannot be read as a whole,
    its addresses that can. ``handles``: IPAM's handles of the pods (namespace, name) that have addresses on this node.
    ``felix_scoped``: the FelixConfiguration that selects this node by its labels. ``floating``: by IPAM's blocks in
    which endpoints have floating IPs, and that have been read, who has which address.
    """

    node: str
    nodes: Mapping[str, Node] = field(default_factory=dict)
    pools: tuple[IPPool, ...] = ()
    blocks: tuple[BlockRoute, ...] = ()
    endpoints: tuple[WorkloadEndpoint, ...] = ()
    felix_node: Mapping[str, Any] | None = None
    felix_default: Mapping[str, Any] | None = None
    felix_scoped: Scoped = NOT_SCOPED
    problems: tuple[str, ...] = ()
    unread: frozenset[Key] = frozenset()
    unproven: Mapping[str, frozenset[Network]] = field(default_factory=dict)
    parts: Mapping[str, frozenset[Address]] = field(default_factory=dict)
    handles: Mapping[str, Holder] = field(default_factory=dict)
    floating: Mapping[Network, Mapping[Address, str]] = field(default_factory=dict)

    @property
    def own(self) -> Node | None:
        return self.nodes.get(self.node)

    @property
    def incomplete(self) -> bool:
        """Whether a Node, pool, block or affinity cannot be read."""
        blocks = any(isinstance(key, BlockKey | AffinityKey) for key in self.unread)
        return blocks or bool(self.unread_of("Node", "IPPool"))

    @property
    def cut_off(self) -> tuple[str, ...]:
        """The other Nodes that exist and of which no address is known, sorted."""
        unread = (key.name for key in self.unread_of("Node"))
        return tuple(name for name in unread if name != self.node and not self.parts.get(name))

    def unread_of(self, *kinds: str) -> tuple[ResourceKey, ...]:
        """The resources of these kinds that were never readable, sorted by name."""
        found = [key for key in self.unread if isinstance(key, ResourceKey) and key.kind in kinds]
        return tuple(sorted(found, key=lambda key: (key.kind, key.namespace, key.name)))


def has_block(snapshot: Snapshot, pool: IPPool, node: str) -> bool:
    """Whether a node owns a block of a pool."""
    return any(block.node == node and pool_of((pool,), block.cidr) is not None for block in snapshot.blocks)


def may_use(snapshot: Snapshot, pool: IPPool, node: str) -> bool:
    """Whether a node has, or may get, addresses of a pool: of a disabled one only those of its blocks."""
    return not pool.disabled or has_block(snapshot, pool, node)


def select_pod_cidrs(node: Node) -> tuple[Network, ...]:
    """The networks that Kubernetes gave to a node for its pods; a text that is not a network is skipped."""
    listed = (node.status or {}).get("podCIDRs")
    found = []
    for text in listed if isinstance(listed, (list, tuple)) else ():
        try:
            found.append(ip_network(text, strict=False))
        except ValueError:
            continue
    return tuple(found)


def pod_cidr_blocks(nodes: Iterable[Node]) -> tuple[BlockRoute, ...]:
    """With host-local IPAM, each of the nodes' pod CIDRs is routed like a block of its node."""
    return tuple(BlockRoute(cidr, node.metadata.name) for node in nodes for cidr in select_pod_cidrs(node))


def reduce_block(block: Block, own: str = "") -> BlockRoute | None:
    """What routing on node ``own`` needs of a block; None for a block that is being deleted."""
    if block.deleted:
        return None
    lent: dict[Address, str] = {}
    held: dict[Address, Holder] = {}
    handles: dict[Address, str] = {}
    away: set[Address] = set()
    for ordinal, index in enumerate(block.allocations):
        if index is None or index >= len(block.attributes):
            continue
        said = block.attributes[index].secondary
        holder = said.get("node")
        if holder and holder != block.node:
            lent[block.cidr.network_address + ordinal] = holder
        for one in (block.attributes[index].extra.get(ALTERNATE), said) if own else ():
            if isinstance(one, Mapping) and one.get("node") == own and one.get("pod"):
                held[block.cidr.network_address + ordinal] = (one.get("namespace", ""), one["pod"])
                handles[block.cidr.network_address + ordinal] = block.attributes[index].handle_id or ""
                if one is not said and said.get("pod") and said.get("node") != own:
                    away.add(block.cidr.network_address + ordinal)
    partial = bool(block.extra.get("partial"))
    used = len(block.allocations) - len(block.unallocated) if own and block.node == own and not partial else 0
    return BlockRoute(block.cidr, block.node, lent, used, held, handles, frozenset(away), partial)


def with_own_parts(block: BlockRoute, own: BlockRoute | None) -> BlockRoute:
    """A block as a relay sends it to all nodes, completed from the full version that only its own node gets; ``own``
    None: there is no full version.
    """
    if not block.partial or own is None:
        return block
    held, handles = {**own.held, **block.held}, {**own.handles, **block.handles}
    return replace(block, used=own.used, held=held, handles=handles, away=own.away | block.away, partial=False)
