"""Claims one more block for a node before its last one is full, so that no request has to wait for the claim.

Rule: never one of a small pool's last blocks, because others may need them. Another node that needs the claimed block
can still get it: an empty block older than a minute may be reclaimed. If there was no spare block, nobody looks again
for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.assign import DEFAULT_CONFIG
from cni_calico.ipam.candidates import count_blocks, walk_pool
from cni_calico.ipam.claims import secure_block
from cni_calico.ipam.fitting import unlike_block
from cni_calico.ipam.search import MAX_BLOCKS_DEFAULT
from cni_calico.model.resources import IPPool, Network, is_within

TIMEOUT_S = 10.0
KEEP_FREE = 4  # the number of blocks that a pool must have left for others
PAUSE_S = 30.0
_SPARE_BELOW = 16
_LOOK_AT = 32


def is_short(pools: Sequence[IPPool], left: int) -> bool:
    """Whether so few addresses are left in the node's blocks that it is time to claim one more."""
    smallest = min((p.cidr.max_prefixlen - p.block_size for p in pools if count_blocks(p)), default=0)
    return left < min(_SPARE_BELOW, 1 << max(0, smallest - 1))


class SpareBlocks:
    """Claims blocks in the background, one at a time; ``claimed`` counts them."""

    def __init__(self, allocator: Allocator) -> None:
        self.claimed = 0
        self._allocator = allocator
        self._claiming = threading.Lock()
        self._again_at: dict[object, float] = {}

    def request(self, node: str, family: int, pools: Sequence[IPPool]) -> None:
        """Have one more block claimed, unless a claim is under way or failed a moment ago."""
        what = (node, family, tuple(pool.cidr for pool in pools))
        if time.monotonic() < self._again_at.get(what, 0.0) or not self._claiming.acquire(blocking=False):
            return

        def claim() -> None:
            try:
                found = claim_spare(self._allocator, node, family, pools)
                self.claimed += found is not None
            except CalicoError:
                found = None  # a request that needs the block will report why there is none
            finally:
                self._claiming.release()
            if found is None:
                self._again_at[what] = time.monotonic() + PAUSE_S

        try:
            threading.Thread(target=claim, name="spare-block", daemon=True).start()
        except RuntimeError:  # there cannot be more threads: a spare block must not make a request fail
            self._again_at[what] = time.monotonic() + PAUSE_S
            self._claiming.release()


def claim_spare(allocator: Allocator, node: str, family: int, pools: Sequence[IPPool]) -> Network | None:
    """The block claimed; None if there is none to spare. Raises IPAMError, DatastoreError."""
    deadline = Deadline.after(TIMEOUT_S)
    view = allocator.view
    config = view.config(deadline) or DEFAULT_CONFIG
    own = view.affinities(node, family, deadline)
    if not config.auto_allocate_blocks or len(own) + 1 > (config.max_blocks_per_host or MAX_BLOCKS_DEFAULT):
        return None
    for pool in pools:
        occupied = view.occupied(family, deadline)
        inside = [cidr for cidr in occupied if is_within(cidr, pool.cidr)]
        if unlike_block(pool, occupied) is not None or count_blocks(pool) - len(inside) <= KEEP_FREE:
            continue
        for looked_at, cidr in enumerate(walk_pool(pool, node)):
            if looked_at >= _LOOK_AT + len(inside):
                break
            if cidr in occupied:
                continue
            ledger = allocator.ledger(deadline)
            if ledger.block(cidr) is None and secure_block(ledger, node, cidr, allocator.clock()):
                return cidr
    return None
