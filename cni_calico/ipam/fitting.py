"""PURE: whether new blocks may be made in a pool, given the blocks that are in it.

Rule: where a block has another size than the pool's, a new one could lie over it and give its addresses once more, so
none is made until the pool has the former size again. kubectl gets a blockSize past an API server later, or makes a
pool anew with another one while pods have their addresses.
"""

from __future__ import annotations

from collections.abc import Iterable

from cni_calico.errors import IPAMError
from cni_calico.model.resources import IPPool, Network


def unlike_block(pool: IPPool, occupied: Iterable[Network]) -> Network | None:
    """One of the blocks in a pool that has another size than the pool's."""
    others = (cidr for cidr in occupied if cidr.prefixlen != pool.block_size and cidr.version == pool.cidr.version)
    return min((cidr for cidr in others if cidr.network_address in pool.cidr), default=None, key=str)


def describe_unlike(pool: str, block: Network) -> str:
    """What it means, and what to do."""
    return (
        f"IPPool {pool} gets no new blocks, because its blockSize is not that of block {block} in it: give it the "
        "former one again, or make another pool"
    )


def require_fitting(pool: IPPool, occupied: Iterable[Network], doing: str) -> None:
    """Raises IPAMError. ``doing``: what cannot be done, as "assign 10.0.0.1"."""
    if (block := unlike_block(pool, occupied)) is not None:
        raise IPAMError(f"cannot {doing}: {describe_unlike(pool.metadata.name, block)}")
