"""PURE: how full pools and blocks are, as values from which tables and documents are made.

Rule: a block belongs to the pool that contains it, from whichever pool its addresses were requested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cni_calico.ipam.block import holder_of
from cni_calico.ipam.consistency import Allocation, describe_owner, list_allocations
from cni_calico.model.resources import Address, Block, IPPool, Network, is_within


def measure_usage(pools: Sequence[IPPool], blocks: Sequence[Block]) -> dict[str, Any]:
    """``{"pools": [{name, cidr, total, used, free, blocks}], "blocksWithoutPool": [{cidr, affinity, ...}]}``.

    Counts are addresses; pools and blocks are in the order of their addresses.
    """
    found: list[dict[str, Any]] = []
    grouped: set[Network] = set()
    for pool in sorted(pools, key=lambda p: (p.cidr.version, p.cidr.network_address)):
        mine = [block for block in blocks if is_within(block.cidr, pool.cidr)]
        grouped.update(block.cidr for block in mine)
        used = sum(map(_count_used, mine))
        found.append(
            {"name": pool.metadata.name, **_counted(pool.cidr, used), "blocks": [_describe(block) for block in mine]}
        )
    strays = [block for block in blocks if block.cidr not in grouped]
    return {"pools": found, "blocksWithoutPool": [_describe(block) for block in strays]}


def _count_used(block: Block) -> int:
    return sum(index is not None for index in block.allocations)


def _counted(cidr: Network, used: int) -> dict[str, Any]:
    total = cidr.num_addresses
    return {"cidr": str(cidr), "total": total, "used": used, "free": total - used}


def _describe(block: Block) -> dict[str, Any]:
    return {**_counted(block.cidr, _count_used(block)), "affinity": block.affinity or ""}


def find_borrowed(blocks: Sequence[Block]) -> list[dict[str, str]]:
    """The addresses that a node took from a block of another node."""
    rows = []
    for block in blocks:
        for found in list_allocations(block, {}):
            borrower = found.attributes.get("node")
            if block.node is not None and borrower and borrower != block.node:
                row = {"ip": str(found.address), "borrowingNode": borrower, "block": str(block.cidr)}
                row |= {"blockOwner": block.node, "type": _type(found), "allocatedTo": describe_owner(found)}
                rows.append(row)
    return rows


def _type(found: Allocation) -> str:
    return found.attributes.get("type") or ("pod" if found.attributes.get("pod") else "workload")


def find_holder(blocks: Sequence[Block], address: Address) -> Mapping[str, Any]:
    """``{"ip", "assigned"}``, and for an assigned address also ``handle``, ``attributes``, ``block`` and
    ``affinity``.
    """
    for block in blocks:
        if address.version == block.cidr.version and address in block.cidr:
            holder = holder_of(block, address)
            if holder is None:
                break
            return {
                "ip": str(address),
                "assigned": True,
                "handle": holder.handle_id or "",
                "attributes": dict(sorted(holder.secondary.items())),
                "block": str(block.cidr),
                "affinity": block.affinity or "",
            }
    return {"ip": str(address), "assigned": False}
