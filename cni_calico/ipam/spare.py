"""One more block for a node before its last one is full, so that no request has to wait for the claim.

Rule: never one of a small pool's last blocks, others may need them; what another node could use it takes back by
itself, an empty block of more than a minute may be reclaimed.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni_calico.deadline import Deadline
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.assign import DEFAULT_CONFIG
from cni_calico.ipam.candidates import count_blocks, walk_pool
from cni_calico.ipam.claims import secure_block
from cni_calico.ipam.search import MAX_BLOCKS_DEFAULT
from cni_calico.model.resources import IPPool, Network

TIMEOUT_S = 10.0
KEEP_FREE = 4  # blocks that a pool must have left for others
_LOOK_AT = 32


def claim_spare(allocator: Allocator, node: str, family: int, pools: Sequence[IPPool]) -> Network | None:
    """The block claimed; None when there is none to spare. Raises IPAMError, DatastoreError."""
    deadline = Deadline.after(TIMEOUT_S)
    view = allocator.view
    config = view.config(deadline) or DEFAULT_CONFIG
    own = view.affinities(node, family, deadline)
    if not config.auto_allocate_blocks or len(own) + 1 > (config.max_blocks_per_host or MAX_BLOCKS_DEFAULT):
        return None
    for pool in pools:
        occupied = view.occupied(family, deadline)
        inside = sum(1 for cidr in occupied if _lies_in(cidr, pool))
        if count_blocks(pool) - inside <= KEEP_FREE:
            continue
        for looked_at, cidr in enumerate(walk_pool(pool, node)):
            if looked_at >= _LOOK_AT + inside:
                break
            if cidr in occupied:
                continue
            ledger = allocator.ledger(deadline)
            if ledger.block(cidr) is None and secure_block(ledger, node, cidr, allocator.clock()):
                return cidr
    return None


def _lies_in(cidr: Network, pool: IPPool) -> bool:
    return cidr.version == pool.cidr.version and cidr.subnet_of(pool.cidr)  # type: ignore[arg-type]
