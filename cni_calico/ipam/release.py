"""Releases addresses, by handle or by address, and blocks that serve no purpose any more.

Rule: what is already gone is success. A handle is removed with its last address, in the same commit or after it; a
block without an owner is removed with its last address; a block whose pool no longer selects its node is released once
it is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from cni_calico.errors import AddressMismatch, CalicoError
from cni_calico.ipam.batch import Assigned, Give, GiveAddresses, plan_batch
from cni_calico.ipam.block import Release, addresses_of, holder_of, interfaces_of
from cni_calico.ipam.candidates import block_of, count_blocks
from cni_calico.ipam.claims import release_block
from cni_calico.ipam.ledger import Ledger
from cni_calico.ipam.pools import NodeFacts, pool_of, selects_node
from cni_calico.ipam.share import Share
from cni_calico.model.resources import Address, IPPool, Network

BLOCKS_AT_ONCE = 20


def others_in(ledger: Ledger, handle_id: str, cidrs: Iterable[Network], share: Share | None) -> frozenset[Address]:
    """What a handle holds in these blocks besides the share. Raises DatastoreError."""
    if share is None:
        return frozenset()
    held: dict[Address, str] = {}
    for cidr in cidrs:
        block = ledger.block(cidr)
        held |= interfaces_of(block, handle_id) if block is not None else {}
    return share.others(held)


def release_handle(
    ledger: Ledger,
    handle_id: str,
    now_ns: int,
    keep: AbstractSet[Address] = frozenset(),
    share: Share | None = None,
) -> tuple[Address, ...]:
    """Release everything that a handle holds, or one interface of it, except ``keep``; returns what was released.

    Raises DatastoreError.
    """
    freed: dict[Address, None] = {}
    done: dict[Network, None] = {}
    while (handle := ledger.handle(handle_id)) is not None:
        todo = [cidr for cidr in handle.blocks if cidr not in done][:BLOCKS_AT_ONCE]
        if handle.blocks and not todo:
            break
        ledger.load_blocks(todo)
        give = Give(handle_id, keep | others_in(ledger, handle_id, todo, share))
        plan = plan_batch({cidr: ledger.block(cidr) for cidr in todo}, {handle_id: handle}, (give,))
        freed |= dict.fromkeys(_addresses(plan.outcomes[0]))
        if ledger.apply(plan.steps):
            done |= dict.fromkeys(todo)
    leave_emptied(ledger, done, now_ns)
    return tuple(freed)


def drop_idle_handle(ledger: Ledger, handle_id: str) -> bool:
    """Remove a handle that holds no address; False if it holds one, or has just been written."""
    handle = ledger.handle(handle_id)
    if handle is None:
        return False
    ledger.load_blocks(handle.blocks)
    blocks = {cidr: ledger.block(cidr) for cidr in handle.blocks}
    if any(block is not None and addresses_of(block, handle_id) for block in blocks.values()):
        return False
    return ledger.apply(plan_batch(blocks, {handle_id: handle}, (Give(handle_id),)).steps)


def release_addresses(ledger: Ledger, releases: Sequence[Release], now_ns: int) -> tuple[Address, ...]:
    """Release addresses whose guards match; returns those that were released (others were free already).

    Raises AddressMismatch naming the first whose guard does not match; then nothing of its block is released, but
    addresses of other blocks are. Raises DatastoreError.
    """
    freed: dict[Address, None] = {}
    mismatch: CalicoError | None = None
    by_block: dict[Network, list[Release]] = {}
    pools = ledger.view.pools(ledger.deadline) if releases else ()
    for release in releases:
        cidr = _find_block(ledger, release.address, pools)
        if cidr is not None:
            by_block.setdefault(cidr, []).append(release)
    for cidr, mine in by_block.items():
        try:
            freed |= dict.fromkeys(release_in_block(ledger, cidr, tuple(mine)))
        except AddressMismatch as e:
            mismatch = mismatch or e
    leave_emptied(ledger, by_block, now_ns)
    if mismatch is not None:
        raise mismatch
    return tuple(freed)


def release_in_block(ledger: Ledger, cidr: Network, releases: tuple[Release, ...]) -> tuple[Address, ...]:
    """Release addresses of one block whose guards match. Raises AddressMismatch with none released, DatastoreError."""
    freed: dict[Address, None] = {}
    # a handle named by a guard is recounted even if its addresses are gone: a process may have died in between
    handle_ids = {release.handle_id for release in releases if release.handle_id}
    while (block := ledger.block(cidr)) is not None:
        holders = [holder_of(block, release.address) for release in releases]
        handle_ids |= {holder.handle_id for holder in holders if holder is not None and holder.handle_id}
        handles = {handle_id: ledger.handle(handle_id) for handle_id in sorted(handle_ids)}
        plan = plan_batch({cidr: block}, handles, (GiveAddresses(releases, frozenset(handle_ids)),))
        outcome = plan.outcomes[0]
        if isinstance(outcome, CalicoError):
            raise outcome
        freed |= dict.fromkeys(_addresses(outcome))
        if ledger.apply(plan.steps):
            break
    return tuple(freed)


def _addresses(outcome: object) -> tuple[Address, ...]:
    assert isinstance(outcome, tuple)
    given: tuple[Assigned, ...] = outcome
    return tuple(item.address for item in given)


def find_handles(ledger: Ledger, addresses: Iterable[Address]) -> dict[Address, str]:
    """The handle under which each of these addresses is held; free ones are left out. Raises DatastoreError."""
    found: dict[Address, str] = {}
    pools = ledger.view.pools(ledger.deadline)
    for address in addresses:
        cidr = _find_block(ledger, address, pools)
        block = None if cidr is None else ledger.block(cidr)
        holder = None if block is None else holder_of(block, address)
        if holder is not None and holder.handle_id:
            found[address] = holder.handle_id
    return found


def _find_block(ledger: Ledger, address: Address, pools: Sequence[IPPool]) -> Network | None:
    """The block of an address: its pool's, or, if that pool is gone or was created again, whichever contains it."""
    pool = pool_of(pools, address)
    if pool is not None and count_blocks(pool):
        cidr = block_of(pool, address)
        if ledger.block(cidr) is not None:
            return cidr
    everyone = ledger.view.block_cidrs(address.version, ledger.deadline)
    return next((cidr for cidr in everyone if address in cidr), None)


# -- blocks without a reason to stay ----------------------------------------------------------------------------------


def leave_emptied(ledger: Ledger, cidrs: Iterable[Network], now_ns: int) -> None:
    """Release those of these blocks that are empty now and whose pool no longer selects their node.

    The addresses are released already, so what fails here is left to the next request of the block's node.
    """
    try:
        for cidr in cidrs:
            block = ledger.block(cidr)
            if block is not None and block.empty and block.node is not None:
                node = ledger.view.node(block.node, ledger.deadline)
                leave_unselected_blocks(ledger, node, (cidr,), ledger.view.pools(ledger.deadline), now_ns)
    except CalicoError:
        return


def leave_unselected_blocks(
    ledger: Ledger, node: NodeFacts, cidrs: Iterable[Network], pools: Sequence[IPPool], now_ns: int
) -> None:
    """Release the node's empty blocks whose pool no longer selects it; raises nothing except bugs.

    Blocks of a node without a record, and blocks without a pool, are left alone.
    """
    try:
        for cidr in cidrs:
            pool = pool_of(pools, cidr)
            if not node.known or pool is None or selects_node(pool, node):
                continue
            block = ledger.block(cidr)
            if block is not None and block.empty and block.node == node.name:
                release_block(ledger, node.name, cidr, now_ns)
    except CalicoError:
        return
