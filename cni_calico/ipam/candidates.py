"""PURE: in which order a host tries a pool's blocks, and what it may do with other nodes' blocks.

Rule: the order depends only on host name and pool: it starts at a point derived from the host's name and goes once
around the pool, so that hosts spread out and each host finds its blocks again. Everything is lazy: a pool may have
2**74 blocks.
"""

from __future__ import annotations

from _sha1 import sha1
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network

from cni_calico.model.resources import Address, Block, IPPool, Network
from cni_calico.model.timestamps import parse_rfc3339

RECLAIM_AGE_NS = 60 * 1_000_000_000


def count_blocks(pool: IPPool) -> int:
    """The number of blocks of a pool; 0 if a block would be larger than the pool."""
    return 1 << (pool.block_size - pool.cidr.prefixlen) if pool.block_size >= pool.cidr.prefixlen else 0


def start_of(node: str, count: int) -> int:
    """Where a host starts in a pool of ``count`` blocks."""
    return int.from_bytes(sha1(node.encode()).digest()[:16], "big") % count


def walk_pool(pool: IPPool, node: str) -> Iterator[Network]:
    """All blocks of a pool, once each, starting at the host's start point and wrapping around."""
    count = count_blocks(pool)
    if not count:
        return
    start = start_of(node, count)
    for index in range(start, start + count):
        yield _block_at(pool, index % count)


def _block_at(pool: IPPool, index: int) -> Network:
    first = int(pool.cidr.network_address) + (index << (pool.cidr.max_prefixlen - pool.block_size))
    make = IPv4Network if pool.cidr.version == 4 else IPv6Network
    return make((first, pool.block_size))


def sort_blocks(pool: IPPool, node: str, cidrs: Iterable[Network]) -> list[Network]:
    """Those of ``cidrs`` that are in the pool, in the order in which the host's walk reaches them."""
    count = count_blocks(pool)
    if not count:
        return []
    shift = pool.cidr.max_prefixlen - pool.block_size
    first, start = int(pool.cidr.network_address), start_of(node, count)
    inside = [cidr for cidr in cidrs if cidr.version == pool.cidr.version and cidr.network_address in pool.cidr]
    return sorted(inside, key=lambda cidr: (((int(cidr.network_address) - first) >> shift) - start) % count)


def block_of(pool: IPPool, address: Address) -> Network:
    """The block of the pool that contains an address."""
    shift = pool.cidr.max_prefixlen - pool.block_size
    return _block_at(pool, (int(address) - int(pool.cidr.network_address)) >> shift)


def chunked(cidrs: Iterable[Network], first: int, largest: int) -> Iterator[list[Network]]:
    """Lists of ``first``, twice as many, ... and at most ``largest`` members."""
    chunk: list[Network] = []
    size = first
    for cidr in cidrs:
        chunk.append(cidr)
        if len(chunk) == size:
            yield chunk
            chunk, size = [], min(size * 2, largest)
    if chunk:
        yield chunk


def is_reclaimable(block: Block, node: str, now_ns: int) -> bool:
    """Whether ``node`` may take an empty block from its owner: it must have been claimed more than a minute ago.

    A block without a claim time is as old as its sequence number, which starts at its creation. A block without an
    owner has been left behind. Blocks of other kinds (load balancers') are never taken.
    """
    if not block.empty or block.node == node or not (block.affinity is None or block.node):
        return False
    if block.affinity is None:
        return True
    claimed_s = parse_rfc3339(block.affinity_claim_time)
    since_ns = block.sequence_number if claimed_s is None else int(claimed_s) * 1_000_000_000
    return now_ns - since_ns > RECLAIM_AGE_NS


def is_borrowable(block: Block) -> bool:
    """Whether single addresses may be taken from another node's block; never from blocks of other kinds."""
    return block.affinity is None or block.node is not None
