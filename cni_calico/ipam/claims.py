"""Claiming blocks for a node and letting go of them, and putting right what somebody left half done.

Rule: a block belongs to a node when the block says so; the affinity record announces it before and confirms it after,
so that whoever dies in between leaves something that the next one recognises. The orders here are those of
SPEC-datamodel "Claiming and releasing a block"; a store with transactions collapses each into one commit.
"""

from __future__ import annotations

from dataclasses import replace

from cni_calico.ipam.batch import Step
from cni_calico.ipam.block import new_block, next_write, without_affinity
from cni_calico.ipam.ledger import Ledger
from cni_calico.ipam.timestamps import claim_time
from cni_calico.model.keys import AffinityKey, BlockKey
from cni_calico.model.resources import Affinity, Block, Network

PENDING = "pending"
CONFIRMED = "confirmed"
LEAVING = "pendingDeletion"


def secure_block(ledger: Ledger, node: str, cidr: Network, now_ns: int, *, create: bool = True) -> bool:
    """Make the block the node's and its affinity confirmed, from whatever state they are in. False: it is another's.

    ``create`` False does not finish a claim whose release was under way (the block is gone): the affinity goes too.
    """
    while True:
        block, affinity = ledger.block(cidr), ledger.affinity(node, cidr)
        if block is None:
            wanted = create or (affinity is not None and affinity.state != LEAVING)
        else:
            wanted = block.node == node
        if not wanted:
            if affinity is None or ledger.apply([_affinity_step(node, cidr, None, "")]):
                return False
            continue
        if ledger.apply(_claim_steps(node, cidr, block, affinity, now_ns)):
            return True
        ledger.refresh((AffinityKey(node, cidr), BlockKey(cidr)))  # what one conflict tells is half of it


def _claim_steps(node: str, cidr: Network, block: Block | None, affinity: Affinity | None, now_ns: int) -> list[Step]:
    if block is not None and affinity is not None and affinity.confirmed:
        return []
    confirm = _affinity_step(node, cidr, affinity, CONFIRMED)
    if block is None:
        claimed = new_block(cidr, node, now_ns, claim_time(now_ns))
        return [_affinity_step(node, cidr, affinity, PENDING), Step(BlockKey(cidr), claimed), confirm]
    if affinity is not None and affinity.state == PENDING:
        return [confirm]
    # Somebody is, or was, about to release the block: writing it makes that release fail.
    return [_affinity_step(node, cidr, affinity, PENDING), Step(BlockKey(cidr), next_write(block)), confirm]


def _affinity_step(node: str, cidr: Network, affinity: Affinity | None, state: str) -> Step:
    if not state:
        return Step(AffinityKey(node, cidr), None)
    return Step(AffinityKey(node, cidr), Affinity(state) if affinity is None else replace(affinity, state=state))


def release_block(
    ledger: Ledger,
    node: str,
    cidr: Network,
    now_ns: int,
    *,
    require_empty: bool = True,
    sequence_number: int | None = None,
) -> bool:
    """Take the block from the node: an empty one is deleted, another keeps its addresses and belongs to nobody.

    False: left as it is, because it holds addresses and ``require_empty``, or has been written since
    ``sequence_number``. A block that is not the node's any more only loses a stale affinity.
    """
    while True:
        block, affinity = ledger.block(cidr), ledger.affinity(node, cidr)
        mine = block is not None and block.node == node
        if block is not None and mine and not _may_leave(block, require_empty, sequence_number):
            if affinity is not None and affinity.state == LEAVING:
                secure_block(ledger, node, cidr, now_ns)  # we, or somebody before us, were too late
            return False
        if ledger.apply(_release_steps(node, cidr, block if mine else None, affinity)):
            return True
        ledger.refresh((AffinityKey(node, cidr), BlockKey(cidr)))


def _may_leave(block: Block, require_empty: bool, sequence_number: int | None) -> bool:
    return (block.empty or not require_empty) and sequence_number in (None, block.sequence_number)


def _release_steps(node: str, cidr: Network, block: Block | None, affinity: Affinity | None) -> list[Step]:
    steps = []
    if block is not None:
        if affinity is not None:
            steps.append(_affinity_step(node, cidr, affinity, LEAVING))
        steps.append(Step(BlockKey(cidr), None if block.empty else next_write(without_affinity(block))))
    if affinity is not None:
        steps.append(_affinity_step(node, cidr, None, ""))
    return steps
