"""Addresses that belong to no node: those of load balancers, from blocks with the affinity ``virtual:load-balancer``.

Rule: as for pods, a handle holds what was assigned under it and every write compares, so a request that is repeated, or
made twice at once, ends with one address. Blocks of nodes are never changed, nor borrowed from. Source: upstream's keys
/calico/ipam/v2/virtual/load-balancer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from cni_calico.deadline import Deadline
from cni_calico.errors import AddressOutsidePools, IPAMError, NoPool, PoolExhausted
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.assign import held_addresses
from cni_calico.ipam.batch import Assignment, plan_batch
from cni_calico.ipam.block import count_free, holder_of, reserved_ordinals
from cni_calico.ipam.candidates import block_of, chunked, count_blocks, walk_pool
from cni_calico.ipam.claims import VIRTUAL, release_block, secure_block
from cni_calico.ipam.fitting import require_fitting, unlike_block
from cni_calico.ipam.ledger import Ledger
from cni_calico.ipam.pools import LOAD_BALANCER, NodeFacts, is_usable, pool_of, reserved_networks, select_pools
from cni_calico.model.keys import AffinityKey, AffinityList, BlockKey
from cni_calico.model.resources import Address, IPPool, Network
from cni_calico.model.timestamps import allocation_time

OWNER = "load-balancer"
AFFINITY = f"{VIRTUAL}:{OWNER}"
_LOOKED_AT = 65536  # candidates for a new block in one pool; an IPv6 pool has practically no end
_CHUNK = 64


class VirtualAddresses:
    """The load-balancer controller's view of address management. ``allocator``'s store is fenced."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def held(self, handle_id: str, deadline: Deadline) -> tuple[Address, ...]:
        """Raises DatastoreError."""
        return tuple(item.address for item in self._allocator.addresses_of(handle_id, deadline))

    def release(self, handle_id: str, deadline: Deadline) -> tuple[Address, ...]:
        """Release all that the handle holds; returns what was released. Raises DatastoreError."""
        return self._allocator.release_handle(handle_id, deadline)

    def release_address(self, address: Address, handle_id: str, deadline: Deadline) -> None:
        """Raises AddressMismatch if another handle holds it by now, DatastoreError."""
        self._allocator.release_addresses((address,), deadline, handle_id=handle_id)

    def handles(self, deadline: Deadline) -> dict[str, Mapping[str, str]]:
        """The attributes of each handle that has addresses in load balancers' blocks. Raises DatastoreError."""
        ledger = self._allocator.ledger(deadline)
        found: dict[str, Mapping[str, str]] = {}
        for family in (4, 6):
            for cidr in self._own_blocks(family, deadline):
                block = ledger.block(cidr)
                for attribute in block.attributes if block is not None and block.affinity == AFFINITY else ():
                    if attribute.handle_id:
                        found[attribute.handle_id] = attribute.secondary
        return found

    def leave_blocks_outside(self, pools: Sequence[IPPool], deadline: Deadline) -> None:
        """Release empty blocks that are in no pool for load balancers any more. Raises DatastoreError."""
        serving = [pool for pool in pools if LOAD_BALANCER in pool.allowed_uses]
        ledger = self._allocator.ledger(deadline)
        for family in (4, 6):
            for cidr in self._own_blocks(family, deadline):
                if pool_of(serving, cidr) is None:
                    release_block(ledger, OWNER, cidr, self._allocator.clock(), kind=VIRTUAL)

    # -- taking -------------------------------------------------------------------------------------------------------

    def assign(
        self,
        handle_id: str,
        attributes: Mapping[str, str],
        family: int,
        pools: Sequence[str],
        deadline: Deadline,
        besides: Collection[Address] = (),
    ) -> Address:
        """Returns an address of the family (perhaps one that the handle holds already), but none of ``besides``, which
        are about to be released. ``pools`` are names; if empty, the automatic ones are used.

        Raises NoPool, PoolExhausted, DatastoreError, DeadlineExceeded.
        """
        allocator = self._allocator
        ledger, now_ns = allocator.ledger(deadline), allocator.clock()
        view = allocator.view
        usable = select_pools(
            view.pools(deadline), family=family, node=NodeFacts(OWNER), explicit=pools, use=LOAD_BALANCER
        )
        reserved = reserved_networks(view.reservations(deadline))
        assignment = Assignment(
            handle_id,
            {**attributes, "timestamp": allocation_time(now_ns)},
            num4=int(family == 4),
            num6=int(family == 6),
        )
        while True:
            held = [item.address for item in held_addresses(ledger, handle_id) if item.address not in besides]
            of_family = [address for address in held if address.version == family]
            if of_family:
                return of_family[0]
            cidr = self._with_space(ledger, usable, family, reserved, now_ns)
            withheld = {cidr: reserved_ordinals(cidr, reserved)}
            plan = plan_batch(
                {cidr: ledger.block(cidr)}, {handle_id: ledger.handle(handle_id)}, (assignment,), withheld
            )
            if plan.outcomes[0] is not None:
                ledger.apply(plan.steps)

    def assign_address(
        self, address: Address, handle_id: str, attributes: Mapping[str, str], deadline: Deadline
    ) -> None:
        """Assign exactly this one. Raises AddressOutsidePools, AddressInUse, IPAMError, DatastoreError,
        DeadlineExceeded.
        """
        allocator = self._allocator
        ledger, now_ns = allocator.ledger(deadline), allocator.clock()
        of_family = [pool for pool in allocator.view.pools(deadline) if pool.cidr.version == address.version]
        serving = [pool for pool in of_family if is_usable(pool, of_family) and LOAD_BALANCER in pool.allowed_uses]
        pool = pool_of(serving, address)
        if pool is None or not count_blocks(pool):
            raise AddressOutsidePools(
                f"cannot assign {address}: it is in no pool for load balancers",
                details="an enabled IPPool with allowedUses LoadBalancer must contain it",
            )
        cidr = block_of(pool, address)
        assignment = Assignment(handle_id, {**attributes, "timestamp": allocation_time(now_ns)}, addresses=(address,))
        while True:
            block = ledger.block(cidr)
            if block is None:
                require_fitting(pool, self._occupied(address.version, deadline), f"assign {address}")
            if block is None or block.affinity == AFFINITY:
                if not secure_block(ledger, OWNER, cidr, now_ns, kind=VIRTUAL):
                    continue
                block = ledger.block(cidr)
            if block is None:
                continue
            if block.affinity != AFFINITY:
                raise IPAMError(f"cannot assign {address}: block {cidr} belongs to {block.affinity or 'nobody'}")
            holder = holder_of(block, address)
            if holder is not None and holder.handle_id == handle_id:
                return
            plan = plan_batch({cidr: block}, {handle_id: ledger.handle(handle_id)}, (assignment,))
            if isinstance(plan.outcomes[0], IPAMError):
                raise plan.outcomes[0]
            ledger.apply(plan.steps)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _occupied(self, family: int, deadline: Deadline) -> frozenset[Network]:
        """The blocks of all nodes, and those for load balancers."""
        return self._allocator.view.occupied(family, deadline).union(self._own_blocks(family, deadline))

    def _own_blocks(self, family: int, deadline: Deadline) -> list[Network]:
        listing = self._allocator.store.list(AffinityList(OWNER, family, VIRTUAL), deadline)
        return [item.key.cidr for item in listing.items if isinstance(item.key, AffinityKey)]

    def _with_space(
        self, ledger: Ledger, pools: Sequence[IPPool], family: int, reserved: Sequence[Network], now_ns: int
    ) -> Network:
        """A block for load balancers that is not full. Raises PoolExhausted, NoPool."""
        if not pools:
            raise NoPool(f"there is no IPv{family} pool for load balancers")
        for cidr in self._own_blocks(family, ledger.deadline):
            if pool_of(pools, cidr) is not None and secure_block(
                ledger, OWNER, cidr, now_ns, create=False, kind=VIRTUAL
            ):
                block = ledger.block(cidr)
                if block is not None and count_free(block, reserved_ordinals(cidr, reserved)):
                    return cidr
        occupied = self._occupied(family, ledger.deadline)
        for pool in (pool for pool in pools if unlike_block(pool, occupied) is None):
            for chunk in chunked(islice(walk_pool(pool, OWNER), _LOOKED_AT), _CHUNK, _CHUNK):
                for cidr, found in zip(chunk, ledger.view.blocks(chunk, ledger.deadline), strict=True):
                    if len(reserved_ordinals(cidr, reserved)) == cidr.num_addresses:
                        continue
                    if found is None:
                        ledger.learn(BlockKey(cidr), None)
                        if secure_block(ledger, OWNER, cidr, now_ns, kind=VIRTUAL):
                            return cidr
        raise PoolExhausted(f"No IPs available in pools: [{' '.join(str(pool.cidr) for pool in pools)}]")
