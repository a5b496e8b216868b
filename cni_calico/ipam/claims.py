"""Claims blocks for a node, releases them, and repairs what a dead process left half-done.

Rule: a block belongs to a node if the block says so; the affinity record announces that before and confirms it after,
so that the next process recognises what one that died in between has left. The order of the writes is upstream's; a
store with transactions combines them into one commit.
"""

from __future__ import annotations

from dataclasses import replace

from cni_calico.ipam.batch import Step
from cni_calico.ipam.block import new_block, next_write, without_affinity
from cni_calico.ipam.ledger import Ledger
from cni_calico.model.keys import AffinityKey, BlockKey
from cni_calico.model.resources import Affinity, Block, Network
from cni_calico.model.timestamps import rfc3339

HOST, VIRTUAL = "host", "virtual"  # who owns a block: a node, or a virtual owner that is on no node
PENDING = "pending"
CONFIRMED = "confirmed"
LEAVING = "pendingDeletion"


def secure_block(
    ledger: Ledger, node: str, cidr: Network, now_ns: int, *, create: bool = True, kind: str = HOST
) -> bool:
    """Make the block the node's and its affinity confirmed, whatever state they are in. False: it belongs to another
    node.

    With ``create`` False a claim whose release was under way (the block is gone) is not finished: the affinity is
    removed. ``kind`` is what ``node`` names (HOST, VIRTUAL).
    """
    while True:
        block, affinity = ledger.block(cidr), ledger.affinity(node, cidr, kind)
        if block is None:
            wanted = create or (affinity is not None and affinity.state != LEAVING)
        else:
            wanted = block.affinity == f"{kind}:{node}"
        key = AffinityKey(node, cidr, kind)
        if not wanted:
            if affinity is None or ledger.apply([Step(key, None)]):
                return False
            continue
        if ledger.apply(_claim_steps(key, block, affinity, now_ns)):
            return True
        ledger.refresh((key, BlockKey(cidr)))  # a conflict shows only one of the two records


def _claim_steps(key: AffinityKey, block: Block | None, affinity: Affinity | None, now_ns: int) -> list[Step]:
    if block is not None and affinity is not None and affinity.confirmed:
        return []
    pending, confirm = _affinity_step(key, affinity, PENDING), _affinity_step(key, affinity, CONFIRMED)
    if block is None:
        empty = new_block(key.cidr, key.node, now_ns, rfc3339(now_ns // 1_000_000_000))
        claimed = replace(empty, affinity=f"{key.type}:{key.node}")
        return [pending, Step(BlockKey(key.cidr), claimed), confirm]
    if affinity is not None and affinity.state == PENDING:
        return [confirm]
    # Another process is, or was, about to release the block: writing it makes that release fail.
    return [pending, Step(BlockKey(key.cidr), next_write(block)), confirm]


def _affinity_step(key: AffinityKey, affinity: Affinity | None, state: str) -> Step:
    return Step(key, Affinity(state) if affinity is None else replace(affinity, state=state))


def release_block(
    ledger: Ledger,
    node: str,
    cidr: Network,
    now_ns: int,
    *,
    require_empty: bool = True,
    sequence_number: int | None = None,
    kind: str = HOST,
) -> bool:
    """Take the block from the node: an empty one is deleted, any other keeps its addresses and has no owner.

    False: it was left alone, because it holds addresses and ``require_empty`` is set, or because it was written after
    ``sequence_number``. For a block that is no longer the node's, only a stale affinity is removed.
    """
    key = AffinityKey(node, cidr, kind)
    while True:
        block, affinity = ledger.block(cidr), ledger.affinity(node, cidr, kind)
        mine = block is not None and block.affinity == f"{kind}:{node}"
        if block is not None and mine and not _may_leave(block, require_empty, sequence_number):
            if affinity is not None and affinity.state == LEAVING:
                secure_block(ledger, node, cidr, now_ns, kind=kind)  # another process has changed it before us
            return False
        if ledger.apply(_release_steps(key, block if mine else None, affinity)):
            return True
        ledger.refresh((key, BlockKey(cidr)))


def _may_leave(block: Block, require_empty: bool, sequence_number: int | None) -> bool:
    return (block.empty or not require_empty) and sequence_number in (None, block.sequence_number)


def _release_steps(key: AffinityKey, block: Block | None, affinity: Affinity | None) -> list[Step]:
    steps = []
    if block is not None:
        if affinity is not None:
            steps.append(_affinity_step(key, affinity, LEAVING))
        steps.append(Step(BlockKey(key.cidr), None if block.empty else next_write(without_affinity(block))))
    if affinity is not None:
        steps.append(Step(key, None))
    return steps
