"""PURE: everything the data plane of this node is computed from, as one immutable value.

Rule: a record that cannot be read is left out and named in ``problems``; the rest is used. Blocks are reduced to what
routing needs (``BlockRoute``), because there is one per 64 pods of the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from cni_calico.model.host import Address, Network
from cni_calico.model.keys import BlockKey, Key, ResourceKey
from cni_calico.model.resources import Block, IPPool, Node, WorkloadEndpoint


@dataclass(frozen=True, slots=True)
class BlockRoute:
    """Who a block belongs to (None: nobody), its addresses that other nodes hold, how many are taken (for metrics)."""

    cidr: Network
    node: str | None
    lent: Mapping[Address, str] = field(default_factory=dict)
    used: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``endpoints`` are this node's; ``policies`` counts the policies that nobody enforces here.

    ``unread``: the Nodes, pools, blocks, endpoints and settings for this node that are there, but of which nothing is
    known. What they ask for may be in the kernel, or in BIRD's configuration.
    """

    node: str
    nodes: Mapping[str, Node] = field(default_factory=dict)
    pools: tuple[IPPool, ...] = ()
    blocks: tuple[BlockRoute, ...] = ()
    endpoints: tuple[WorkloadEndpoint, ...] = ()
    felix_node: Mapping[str, Any] | None = None
    felix_default: Mapping[str, Any] | None = None
    policies: int = 0
    problems: tuple[str, ...] = ()
    unread: frozenset[Key] = frozenset()

    @property
    def own(self) -> Node | None:
        return self.nodes.get(self.node)

    @property
    def incomplete(self) -> bool:
        """Whether a Node, pool or block cannot be read."""
        return any(isinstance(key, BlockKey) for key in self.unread) or bool(self.unread_of("Node", "IPPool"))

    def unread_of(self, *kinds: str) -> tuple[ResourceKey, ...]:
        """The resources of these kinds of which nothing is known, in the order of their names."""
        found = [key for key in self.unread if isinstance(key, ResourceKey) and key.kind in kinds]
        return tuple(sorted(found, key=lambda key: (key.kind, key.namespace, key.name)))


def select_pod_cidrs(node: Node) -> tuple[Network, ...]:
    """The networks that Kubernetes gave to a node for its pods; what is none is passed over."""
    listed = (node.status or {}).get("podCIDRs")
    found = []
    for text in listed if isinstance(listed, (list, tuple)) else ():
        try:
            found.append(ip_network(text, strict=False))
        except ValueError:
            continue
    return tuple(found)


def pod_cidr_blocks(nodes: Iterable[Node]) -> tuple[BlockRoute, ...]:
    """Where host-local IPAM gives addresses out of nodes' pod CIDRs, each is routed like a block of its node."""
    return tuple(BlockRoute(cidr, node.metadata.name) for node in nodes for cidr in select_pod_cidrs(node))


def reduce_block(block: Block) -> BlockRoute | None:
    """What routing needs of a block; None for a block that is being deleted."""
    if block.deleted:
        return None
    lent = {}
    for ordinal, index in enumerate(block.allocations):
        if index is None or index >= len(block.attributes):
            continue
        holder = block.attributes[index].secondary.get("node")
        if holder and holder != block.node:
            lent[block.cidr.network_address + ordinal] = holder
    return BlockRoute(block.cidr, block.node, lent, len(block.allocations) - len(block.unallocated))
