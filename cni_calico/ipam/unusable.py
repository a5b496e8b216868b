"""PURE: which IP pools give no addresses, or no more blocks, although nobody disabled them, and why.

Rule: only pools that calicoctl would have refused are found, which kubectl gets past an API server; what is said of
them is what IPAM does with them. Of pools that overlap overlaps.py tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cni_calico.errors import NoPool
from cni_calico.ipam.fitting import describe_unlike, unlike_block
from cni_calico.ipam.pools import NodeFacts, require_selectors
from cni_calico.model.resources import BLOCK_SIZES, IPPool, Network


def describe_unusable(pools: Iterable[IPPool], blocks: Iterable[Network]) -> dict[str, str]:
    """A sentence for each of them, by its name. ``blocks``: those that exist."""
    there = list(blocks)
    found = {}
    for pool in pools:
        why = next(_reasons(pool, there), "")
        if why and not pool.disabled:
            found[pool.metadata.name] = why
    return found


def _reasons(pool: IPPool, blocks: list[Network]) -> Iterator[str]:
    name, size = f"IPPool {pool.metadata.name}", pool.block_size
    low, high, _ = BLOCK_SIZES[pool.cidr.version]
    if not low <= size <= high:
        yield f"{name} gives no addresses: its blockSize is {size}, and must be from {low} to {high}"
    elif not pool.has_blocks:
        yield f"{name} gives no addresses: {pool.cidr} is smaller than one of its blocks (blockSize {size})"
    try:
        require_selectors(pool, NodeFacts(""))
    except NoPool as e:
        yield f"{e.message}; it gives addresses only to who names it"
    if (block := unlike_block(pool, blocks)) is not None:
        yield describe_unlike(pool.metadata.name, block)
