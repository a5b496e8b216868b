"""Finds the blocks of one family that a request may take addresses from, best first, and only as many as are needed.

Rule: first the node's own blocks; then a free one is claimed; then an abandoned empty one of another node is reclaimed;
then, unless affinity is strict, single addresses are borrowed from other nodes' blocks. A pool in which any node's
blocks have another size than the pool's (kubectl gets a blockSize past an API server later, or makes the pool anew with
another one) gives what is left in the node's own blocks, and no new ones, which would overlap others: so the affinities
of all nodes are read before a block is claimed. The search ends with an error that says why there is no more. Other
nodes' blocks are read only where they stand in the node's order, and if the pools have no free block left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from cni_calico.errors import BlockLimit, CorruptRecord, PoolExhausted
from cni_calico.ipam.batch import Step
from cni_calico.ipam.block import count_free, reserved_ordinals
from cni_calico.ipam.candidates import chunked, count_blocks, is_borrowable, is_reclaimable, sort_blocks, walk_pool
from cni_calico.ipam.claims import release_block, secure_block
from cni_calico.ipam.fitting import describe_unlike, unlike_block
from cni_calico.ipam.ledger import Ledger
from cni_calico.ipam.pools import pool_of
from cni_calico.model.keys import AffinityKey, BlockKey
from cni_calico.model.resources import Block, IPAMConfig, IPPool, Network, is_within

MAX_BLOCKS_DEFAULT = 20
PROBES = 64  # places whose blocks are read, whatever the affinities of all nodes say
_OWN_CHUNK = 8
_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Scope:
    """What a request may use for one family; ``pools`` in the order of preference."""

    node: str
    family: int
    pools: tuple[IPPool, ...]
    config: IPAMConfig
    reserved: tuple[Network, ...]
    now_ns: int

    @property
    def max_blocks(self) -> int:
        return self.config.max_blocks_per_host or MAX_BLOCKS_DEFAULT


@dataclass(frozen=True, slots=True)
class Source:
    cidr: Network
    borrowed: bool = False


class BlockSearch:
    """``sources`` yields one block at a time; what it found is in the ledger."""

    def __init__(self, ledger: Ledger, scope: Scope) -> None:
        self._ledger = ledger
        self._scope = scope
        self._owned: set[Network] = set()
        self._unlike: dict[str, Network] = {}  # a block of another size, by the pool's name
        self._abandoned: set[Network] = set()
        self._lenders: set[Network] = set()
        self._seen: set[Network] = set()
        self._occupied: frozenset[Network] | None = None
        self.elsewhere: tuple[Network, ...] = ()  # the node's blocks outside the pools of this request

    def sources(self) -> Iterator[Source]:
        """Always ends by raising PoolExhausted or BlockLimit."""
        yield from self._own()
        if not self._scope.config.auto_allocate_blocks:
            raise PoolExhausted(
                "failed to find or claim a block",
                details="auto_allocate_blocks is off in the IPAM configuration and the node's blocks are full",
            )
        self._require_below_limit()
        for cidr in chain(self._free(), self._reclaimed()):
            self._require_below_limit()
            if secure_block(self._ledger, self._scope.node, cidr, self._scope.now_ns):
                self._owned.add(cidr)
                yield Source(cidr)
            elif (block := self._ledger.block(cidr)) is not None:
                self._remember(block)  # another node has taken it
        yield from self._lent()

    def _require_below_limit(self) -> None:
        if len(self._owned) >= self._scope.max_blocks:
            raise BlockLimit("cannot allocate new block due to per host block limit")

    # -- the node's own -----------------------------------------------------------------------------------------------

    def _own(self) -> Iterator[Source]:
        scope, ledger = self._scope, self._ledger
        affinities = ledger.view.affinities(scope.node, scope.family, ledger.deadline)
        pools = {cidr: pool for cidr in affinities if (pool := pool_of(scope.pools, cidr)) is not None}
        self._owned = set(pools)
        self._unlike = {p.metadata.name: cidr for cidr, p in pools.items() if p.block_size != cidr.prefixlen}
        self.elsewhere = tuple(cidr for cidr in affinities if cidr not in self._owned)
        for cidr, found in affinities.items():
            ledger.learn(AffinityKey(scope.node, cidr), found)
        for chunk in chunked([cidr for cidr in affinities if cidr in self._owned], _OWN_CHUNK, _OWN_CHUNK):
            ledger.load_blocks(chunk)
            for cidr in chunk:
                if secure_block(ledger, scope.node, cidr, scope.now_ns, create=False):
                    yield Source(cidr)
                else:
                    self._owned.discard(cidr)

    def _fitting(self) -> Iterator[IPPool]:
        for pool in self._scope.pools:
            name = pool.metadata.name
            if name not in self._unlike and (other := unlike_block(pool, self._all_occupied())) is not None:
                self._unlike[name] = other
            if name not in self._unlike:
                yield pool

    # -- free blocks --------------------------------------------------------------------------------------------------

    def _free(self) -> Iterator[Network]:
        for pool in self._fitting():
            walk = walk_pool(pool, self._scope.node)
            for chunk in chunked(islice(walk, PROBES), _OWN_CHUNK, _CHUNK):
                yield from self._absent(chunk)
            if count_blocks(pool) > PROBES:
                rest = (cidr for cidr in walk if cidr not in self._all_occupied())
                for chunk in chunked(rest, _OWN_CHUNK, _CHUNK):
                    yield from self._absent(chunk)

    def _all_occupied(self) -> frozenset[Network]:
        if self._occupied is None:
            self._occupied = self._ledger.view.occupied(self._scope.family, self._ledger.deadline)
        return self._occupied

    def _absent(self, cidrs: Sequence[Network]) -> Iterator[Network]:
        """Those of ``cidrs`` that are no other node's block; the others are remembered for reclaiming and borrowing."""
        ledger = self._ledger
        wanted = [cidr for cidr in cidrs if cidr not in self._owned and not self._is_reserved(cidr)]
        self._seen.update(wanted)
        for cidr, found in zip(wanted, ledger.view.blocks(wanted, ledger.deadline), strict=True):
            if isinstance(found, CorruptRecord):
                continue  # it cannot be read: it concerns its owner, and is not free
            block = found.record if found is not None else None
            ours = isinstance(block, Block) and block.node == self._scope.node  # claimed since the affinities were read
            if isinstance(block, Block) and not block.deleted and not ours:
                self._remember(block)
                continue
            ledger.learn(BlockKey(cidr), found)
            ledger.presume_absent(AffinityKey(self._scope.node, cidr))  # it is not among the node's affinities
            yield cidr

    def _is_reserved(self, cidr: Network) -> bool:
        return any(is_within(cidr, reserved) for reserved in self._scope.reserved)

    def _remember(self, block: Block) -> None:
        if is_reclaimable(block, self._scope.node, self._scope.now_ns):
            self._abandoned.add(block.cidr)
        if is_borrowable(block) and count_free(block, reserved_ordinals(block.cidr, self._scope.reserved)):
            self._lenders.add(block.cidr)

    # -- others' blocks -----------------------------------------------------------------------------------------------

    def _reclaimed(self) -> Iterator[Network]:
        for pool in self._fitting():
            yield from self._reclaim(pool)
            if count_blocks(pool) > PROBES:
                unseen = sort_blocks(pool, self._scope.node, self._all_occupied() - self._seen)
                for chunk in chunked(unseen, _CHUNK, _CHUNK):
                    yield from self._absent(chunk)
                    yield from self._reclaim(pool)

    def _reclaim(self, pool: IPPool) -> Iterator[Network]:
        for cidr in sort_blocks(pool, self._scope.node, self._abandoned):
            self._abandoned.discard(cidr)
            if self._is_abandoned_now(cidr):
                yield cidr

    def _is_abandoned_now(self, cidr: Network) -> bool:
        """Take the block from its owner, if it has not changed since it was found."""
        scope, ledger = self._scope, self._ledger
        block = self._reread(cidr)
        if block is None or not is_reclaimable(block, scope.node, scope.now_ns):
            return False
        if block.node is None:
            return ledger.apply([Step(BlockKey(cidr), None)])
        return release_block(ledger, block.node, cidr, scope.now_ns, sequence_number=block.sequence_number)

    def _lent(self) -> Iterator[Source]:
        scope = self._scope
        if scope.config.strict_affinity:
            raise PoolExhausted("No more free affine blocks and strict affinity enabled")
        for pool in _by_name(scope.pools):
            for cidr in sort_blocks(pool, scope.node, self._lenders - self._owned):
                block = self._reread(cidr)
                if block is not None and is_borrowable(block):
                    yield Source(cidr, borrowed=True)
        raise self._exhausted()

    def _exhausted(self) -> PoolExhausted:
        error = PoolExhausted(f"No IPs available in pools: [{' '.join(str(pool.cidr) for pool in self._scope.pools)}]")
        for name, block in self._unlike.items():
            error.details = describe_unlike(name, block)
        return error

    def _reread(self, cidr: Network) -> Block | None:
        """The block as it is now; None if it is gone or cannot be read."""
        self._ledger.forget(BlockKey(cidr))
        try:
            return self._ledger.block(cidr)
        except CorruptRecord:
            return None


def _by_name(pools: Iterable[IPPool]) -> list[IPPool]:
    return sorted(pools, key=lambda pool: pool.metadata.name)
