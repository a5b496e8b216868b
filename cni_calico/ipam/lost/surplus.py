"""PURE: which empty blocks a node does not need, and how long one may have been claimed in advance."""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.ipam.lost.leaks import BlockFacts, SurplusBlock
from cni_calico.model.resources import Network

SPARE_S = 3600.0  # servers claim a block before they need it


def judge_surplus(surplus: SurplusBlock, known: Mapping[Network, BlockFacts]) -> str:
    """Why a node does not need an empty block; "" while the block is the node's only one of its family, or the one to
    keep of several that are all empty. ``known`` has all blocks of the node.
    """
    family = {
        cidr: facts
        for cidr, facts in known.items()
        if facts.node == surplus.node and cidr.version == surplus.cidr.version
    }
    facts = family.get(surplus.cidr)
    if facts is None or facts.holdings or len(family) == 1:
        return ""
    if not any(other.holdings for other in family.values()) and surplus.cidr == min(family, key=_position):
        return ""
    return f"node {surplus.node} has {len(family) - 1} other blocks"


def _position(cidr: Network) -> int:
    return int(cidr.network_address)


def is_spare(facts: BlockFacts, now_s: float) -> bool:
    """Whether the block was claimed so recently that it may have been claimed in advance."""
    return now_s - facts.claimed_s < SPARE_S
