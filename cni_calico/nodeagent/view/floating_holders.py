"""Who has the addresses in those of IPAM's blocks in which workloads of this node have floating IPs.

Rule: nobody reserves a floating IP, so IPAM is asked, and goes on being asked, whether it gave the address to somebody;
a block that has not been read, or cannot be read, counts as not asked.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Versioned
from cni_calico.datastore.last_good import LastGoodCaches
from cni_calico.model.documents.codec import decode_block
from cni_calico.model.keys import BlockList
from cni_calico.model.resources import Address, Network


def _holders(item: Versioned) -> Mapping[Address, str]:
    block = decode_block(item.key, item.value)
    found: dict[Address, str] = {}
    for ordinal, index in enumerate(block.allocations):
        if index is None:
            continue
        given = block.attributes[index] if index < len(block.attributes) else None
        pod = "" if given is None else given.secondary.get("pod", "")
        holder = f"{given.secondary.get('namespace', '')}/{pod}" if given is not None and pod else ""
        found[block.cidr.network_address + ordinal] = (
            holder or (given.handle_id if given is not None else "") or "somebody"
        )
    return found


class FloatingHolders:
    """For one thread. ``kept`` is nobody else's: others follow some of the same blocks."""

    def __init__(self, kept: LastGoodCaches) -> None:
        self._kept = kept
        self._blocks: dict[Network, Cache[Mapping[Address, str]]] = {}

    @property
    def caches(self) -> tuple[Cache[Mapping[Address, str]], ...]:
        return tuple(self._blocks.values())

    def settle(self, wanted: frozenset[Network]) -> None:
        """Follow these blocks, and no others."""
        for cidr in wanted - self._blocks.keys():
            self._blocks[cidr] = self._kept.follow(BlockList(cidr=cidr), _holders)
        for cidr in self._blocks.keys() - wanted:
            self._kept.dismiss(self._blocks.pop(cidr))

    @property
    def asked(self) -> bool:
        """Whether each block has been read, or it is known why it cannot be."""
        return all(cache.synced or cache.error is not None for cache in self._blocks.values())

    def known(self) -> dict[Network, Mapping[Address, str]]:
        """By block, who has which of its addresses; a block that is not there has none."""
        found: dict[Network, Mapping[Address, str]] = {}
        for cidr, cache in self._blocks.items():
            if cache.synced and not self._kept.unread(cache):
                found[cidr] = {at: who for each in self._kept.records(cache).values() for at, who in each.items()}
        return found

    def stop(self) -> None:
        self._kept.stop()
