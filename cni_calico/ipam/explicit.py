"""Assigns an address asked for by name: claims its block if nobody has it, or borrows from it.

Rule: it is enough that a usable pool contains the address; the pool's selectors, its allowed uses and reservations do
not matter. If the block would exceed the node's limit, it is made without an owner, so that the request does not fail.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.errors import AddressOutsidePools, BlockLimit, IPAMError
from cni_calico.ipam.assign import read_config
from cni_calico.ipam.batch import Assigned, Assignment, plan_batch
from cni_calico.ipam.block import holder_of, new_block
from cni_calico.ipam.candidates import block_of, count_blocks, is_borrowable
from cni_calico.ipam.claims import secure_block
from cni_calico.ipam.fitting import require_fitting
from cni_calico.ipam.ledger import Ledger
from cni_calico.ipam.pools import is_usable, pool_of
from cni_calico.ipam.search import Scope
from cni_calico.ipam.share import INTERFACE, Share
from cni_calico.ipam.view import Facts
from cni_calico.model.keys import AffinityKey
from cni_calico.model.resources import Address, Attribute, Block, IPPool, Network
from cni_calico.model.timestamps import stamped


def assign_address(
    ledger: Ledger,
    address: Address,
    handle_id: str,
    attributes: Mapping[str, str],
    facts: Facts,
    now_ns: int,
    share: Share | None = None,
) -> Assigned:
    """Assign this address for a handle; if the handle, or one interface of it, holds it already, that is success.

    Raises AddressOutsidePools, AddressInUse, BlockLimit, IPAMError, DatastoreError.
    """
    pool = _pool_with(facts, address)
    cidr = block_of(pool, address)
    assignment = Assignment(handle_id, stamped(attributes, now_ns), addresses=(address,))
    config = read_config(ledger, facts)
    scope = Scope(facts.node.name, address.version, (pool,), config, (), now_ns)
    held = True
    while True:
        block = ledger.block(cidr)
        if block is None:
            occupied = ledger.view.occupied(address.version, ledger.deadline)
            require_fitting(pool, occupied, f"assign {address}")
            if not _is_at_limit(ledger, scope, cidr):
                secure_block(ledger, scope.node, cidr, now_ns)
                continue
            block = _ownerless_block(scope, cidr)
        holder = holder_of(block, address)
        if holder is not None and holder.handle_id == handle_id and not _is_others(address, holder, share):
            return Assigned(address, cidr, held)
        _require_allowed(block, scope, address)
        plan = plan_batch({cidr: block}, {handle_id: ledger.handle(handle_id)}, (assignment,))
        outcome = plan.outcomes[0]
        if isinstance(outcome, IPAMError):
            raise outcome
        ledger.apply(plan.steps)
        held = False


def _is_others(address: Address, holder: Attribute, share: Share | None) -> bool:
    return share is not None and bool(share.others({address: holder.secondary.get(INTERFACE, "")}))


def _pool_with(facts: Facts, address: Address) -> IPPool:
    of_family = [pool for pool in facts.pools if pool.cidr.version == address.version]
    pool = pool_of([pool for pool in of_family if is_usable(pool, of_family)], address)
    if pool is None or not count_blocks(pool):
        raise AddressOutsidePools(
            f"cannot assign {address}: The provided IP address is not in a configured pool",
            details="an IPPool that contains it must exist and be enabled",
        )
    return pool


def _is_at_limit(ledger: Ledger, scope: Scope, cidr: Network) -> bool:
    """Whether one more block would be too many; a claim of this block that is under way counts as one."""
    affinities = ledger.view.affinities(scope.node, scope.family, ledger.deadline)
    ledger.learn(AffinityKey(scope.node, cidr), affinities.get(cidr))
    others = [c for c in affinities if c != cidr and pool_of(scope.pools, c) is not None]
    return len(others) >= scope.max_blocks


def _ownerless_block(scope: Scope, cidr: Network) -> Block:
    if scope.config.strict_affinity:
        raise BlockLimit(
            f"cannot assign an address of {cidr} to node {scope.node}: "
            "cannot allocate new block due to per host block limit"
        )
    return new_block(cidr, None, scope.now_ns, "")


def _require_allowed(block: Block, scope: Scope, address: Address) -> None:
    if block.node == scope.node or (is_borrowable(block) and not scope.config.strict_affinity):
        return
    raise IPAMError(
        f"cannot assign {address} to node {scope.node}: block {block.cidr} belongs to {block.affinity or 'no node'}"
        + ("" if not is_borrowable(block) else " and strict affinity is enabled"),
        details="ask for an address of the node's own blocks, or 'calicoctl ipam configure --strictaffinity=false'",
    )
