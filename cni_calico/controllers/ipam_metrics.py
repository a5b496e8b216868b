"""PURE: addresses and blocks by pool and node, under the names that upstream's kube-controllers give their metrics.

Rule: the numbers come from the janitor's view of the cluster, so only the leading instance exports them. A block
outside of pools or without a node, and an address without one, are labelled with upstream's words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cni_calico.ipam.lost.leaks import BlockFacts, Holding, Subject
from cni_calico.ipam.pools import pool_of
from cni_calico.model.resources import IPPool, Network

NO_POOL, NO_NODE, UNKNOWN_NODE = "no_ippool", "no_affinity", "unknown_node"
PoolOnNode = tuple[str, str]  # pool, node


@dataclass(frozen=True, slots=True)
class IpamNumbers:
    """``reclaimed``: addresses that were released since this process leads."""

    blocks: Mapping[Network, BlockFacts] = field(default_factory=dict)
    suspects: Iterable[Subject] = ()
    pools: tuple[IPPool, ...] = ()
    reclaimed: Mapping[PoolOnNode, int] = field(default_factory=dict)


def place_of(holding: Holding, pools: Iterable[IPPool]) -> PoolOnNode:
    pool = pool_of(pools, holding.block)
    return pool.metadata.name if pool is not None else NO_POOL, holding.node or UNKNOWN_NODE


def render_ipam_metrics(numbers: IpamNumbers) -> str:
    """As Prometheus reads it."""
    in_use, borrowed, blocks, candidates = (Counter[PoolOnNode]() for _ in range(4))
    for cidr, facts in numbers.blocks.items():
        pool = pool_of(numbers.pools, cidr)
        name = pool.metadata.name if pool is not None else NO_POOL
        blocks[name, facts.node or NO_NODE] += 1
        for holding in facts.holdings:
            place = name, holding.node or UNKNOWN_NODE
            in_use[place] += 1
            borrowed[place] += bool(holding.node) and holding.node != facts.node
    for suspect in numbers.suspects:
        if isinstance(suspect, Holding):
            candidates[place_of(suspect, numbers.pools)] += 1
    sizes = {pool.metadata.name: pool.cidr.num_addresses for pool in numbers.pools}
    return "".join(
        (
            _by_place("ipam_allocations_in_use", "gauge", "Addresses that are taken.", in_use),
            _by_place("ipam_allocations_borrowed", "gauge", "Addresses taken from others' blocks.", borrowed),
            _by_place("ipam_allocations_gc_candidates", "gauge", "Addresses that may be lost.", candidates),
            _by_place("ipam_allocations_gc_reclamations", "counter", "Addresses released.", numbers.reclaimed),
            _by_place("ipam_blocks", "gauge", "Blocks.", blocks),
            _by_label("ipam_ippool_size", "Addresses of a pool.", "ippool", sizes),
            _by_label("ipam_allocations_per_node", "Addresses that are taken.", "node", _by_node(in_use)),
            _by_label("ipam_allocations_borrowed_per_node", "Addresses borrowed.", "node", _by_node(borrowed)),
            _by_label("ipam_blocks_per_node", "Blocks.", "node", _by_node(blocks)),
        )
    )


def _by_node(counts: Mapping[PoolOnNode, int]) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for (_, node), count in counts.items():
        found[node] += count
    return found


def _by_place(name: str, kind: str, meaning: str, counts: Mapping[PoolOnNode, int]) -> str:
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
    lines += [f'{name}{{ippool="{pool}",node="{node}"}} {count}' for (pool, node), count in sorted(counts.items())]
    return "\n".join(lines) + "\n"


def _by_label(name: str, meaning: str, label: str, counts: Mapping[str, int]) -> str:
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
    lines += [f'{name}{{{label}="{value}"}} {count}' for value, count in sorted(counts.items())]
    return "\n".join(lines) + "\n"
