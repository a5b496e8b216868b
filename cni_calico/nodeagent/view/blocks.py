"""The part of IPAM's records that this node follows, and the blocks that it knows from them.

Rule: every block is followed only while this node makes routes to addresses that may be on another node than their
block. Otherwise it follows the affinities, of which one changes for 64 pods, and only a few whole blocks: this node's
own, and those in which a pod of this node says that it has an address. What was known before counts until what replaces
it has been read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Versioned
from cni_calico.datastore.last_good import LastGoodCaches
from cni_calico.datastore.remembered import decoding
from cni_calico.errors import DatastoreDenied
from cni_calico.model.documents.codec import decode_affinity, decode_block, decode_ipam_config
from cni_calico.model.keys import AffinityKey, AffinityList, BlockList, IPAMConfigList, Key
from cni_calico.model.resources import IPAMConfig, Network
from cni_calico.nodeagent.view.snapshot import BlockRoute, reduce_block, with_own_parts

# states of an affinity that may own its block: an undecided claim does not, one that is being released may
CLAIMING, OWNING, LEAVING = "claiming", "owning", "leaving"


def _affinity(item: Versioned) -> str:
    assert isinstance(item.key, AffinityKey)
    affinity = decode_affinity(item.key, item.value)
    if affinity.confirmed:
        return OWNING
    return CLAIMING if affinity.state == "pending" else LEAVING


def _same_block(before: BlockRoute | None, after: BlockRoute | None) -> bool:
    """Whether two versions of a block mean the same here; includes which pods of this node have addresses in it,
    because an endpoint may be waiting for that confirmation, and how many addresses this node has taken, for metrics.
    """
    if before is None or after is None:
        return before is after
    return (before, before.held, before.used) == (after, after.held, after.used)


class FollowedBlocks:
    """For one thread. ``spread``: how long to wait before a list that all nodes may ask for in one moment. ``partial``:
    the list of all blocks has only a part of each, and there is a second list of this node's blocks.
    """

    def __init__(
        self, kept: LastGoodCaches, node: str, spread: Callable[[threading.Event], float], *, partial: bool = False
    ) -> None:
        self._kept = kept
        self._node = node
        self._spread = spread
        self._all: Cache[BlockRoute | None] | None = None
        self._partial = partial
        self._own_parts: Cache[BlockRoute | None] | None = None
        self._affinities: Cache[str] | None = None
        self._config: Cache[IPAMConfig] | None = None
        self._may_read_config = True
        self._single: dict[Network, Cache[BlockRoute | None]] = {}
        self._owners: dict[Network, str] = {}
        self._lost: set[Network] = set()  # blocks whose affinity has been removed meanwhile
        self._seen_all = False  # every block, and since then every affinity that went
        self._ready = False

    def settle(self, *, routed: bool, claimed: Iterable[Network]) -> bool:
        """Follow what is needed now, and no longer what is not. Returns whether enough has been read once.

        ``routed``: this node makes routes to other nodes' blocks. ``claimed``: the blocks of addresses that pods of
        this node say they have.
        """
        whole = self._needs_all(routed=routed)
        if whole and self._all is None:
            self._all = self._follow(BlockList(), delay=self._spread)
            if self._partial:
                self._own_parts = self._follow(BlockList(owner=f"host:{self._node}"))
        if whole and self._all is not None and self._all_read():
            self._dismiss_affinities()
            self._ready = True
        elif not whole and self._affinities is None:
            self._affinities = self._kept.follow(AffinityList(), _affinity, delay=self._spread)
        if self._affinities is not None and self._affinities.synced:
            self._follow_few(self._read_owners(self._affinities), claimed, watchful=routed)
            if not whole and self._few_read():
                self._dismiss_all()
                self._ready = True
        return self._ready

    def _follow(
        self, listing: BlockList, *, delay: Callable[[threading.Event], float] | None = None
    ) -> Cache[BlockRoute | None]:
        return self._kept.follow(listing, self._block, same=_same_block, delay=delay)

    def _block(self, item: Versioned) -> BlockRoute | None:
        return reduce_block(decode_block(item.key, item.value), self._node)

    # -- which of the two ---------------------------------------------------------------------------------------------

    def _needs_all(self, *, routed: bool) -> bool:
        if not routed:
            self._seen_all = False
            if self._config is not None:
                self._kept.dismiss(self._config)
                self._config = None
            return False
        if not self._is_strict():
            return True
        # no node borrows addresses now; addresses that were borrowed before, or whose block has lost its node, are
        # exceptions
        if self._all is not None:
            self._seen_all = self._all.synced and not self._any_lent(self._all)
            return not self._seen_all
        return not self._seen_all or any(self._any_lent(self._single[cidr]) for cidr in self._lost_followed())

    def _is_strict(self) -> bool:
        """Whether nodes take addresses from their own blocks only; False if we may not know (upstream's role)."""
        if self._config is None and self._may_read_config:
            self._config = self._kept.follow(IPAMConfigList(), decoding(decode_ipam_config))
        if self._config is None:
            return False
        if not self._config.synced and isinstance(self._config.error, DatastoreDenied):
            self._may_read_config = False
            self._kept.dismiss(self._config)
            self._config = None
            return False
        return any(config.strict_affinity for config in self._kept.records(self._config).values())

    def _any_lent(self, cache: Cache[BlockRoute | None]) -> bool:
        return any(block is not None and block.lent for block in self._kept.records(cache).values())

    def _lost_followed(self) -> list[Network]:
        return [cidr for cidr in self._lost if cidr in self._single]

    # -- affinities, and a few blocks ---------------------------------------------------------------------------------

    def _follow_few(self, owners: dict[Network, str], claimed: Iterable[Network], *, watchful: bool) -> None:
        lost = self._lost.union(self._known_owned() - owners.keys()) if watchful else set()
        self._lost = {cidr for cidr in lost if cidr not in owners and self._may_be_lent(cidr)}
        self._owners = owners
        self._follow_single(self._own().union(claimed), self._lost)

    def _known_owned(self) -> set[Network]:
        if self._all is None or not self._all.synced:
            return set(self._owners)
        known = self._kept.records(self._all).values()
        return {block.cidr for block in known if block is not None and block.node is not None}

    def _own(self) -> set[Network]:
        return {cidr for cidr, node in self._owners.items() if node == self._node}

    def _few_read(self) -> bool:
        return all(self._single[cidr].synced for cidr in self._own())

    def _read_owners(self, cache: Cache[str]) -> dict[Network, str]:
        owners: dict[Network, str] = {}
        for key, says in self._kept.records(cache).items():
            assert isinstance(key, AffinityKey)
            if says == OWNING or (says == LEAVING and key.cidr not in owners):
                owners[key.cidr] = key.node
        return owners

    def _may_be_lent(self, cidr: Network) -> bool:
        """Whether a block without affinity may still have addresses: true while it has addresses, or until we have read
        that its node is gone; our copy may be older than its affinity.
        """
        cache = self._single.get(cidr)
        if cache is None or not cache.synced:
            return True
        known = self._kept.records(cache).values()
        return any(block is not None and (block.node is not None or block.lent) for block in known)

    def _follow_single(self, wanted: set[Network], lost: set[Network]) -> None:
        for cidr in wanted | lost:
            if cidr not in self._single:
                # all nodes ask about one that has lost its node
                delay = None if cidr in wanted else self._spread
                self._single[cidr] = self._follow(BlockList(cidr=cidr), delay=delay)
        for cidr in self._single.keys() - wanted - lost:
            self._kept.dismiss(self._single.pop(cidr))

    def _all_read(self) -> bool:
        return all(cache.synced for cache in (self._all, self._own_parts) if cache is not None)

    def _dismiss_all(self) -> None:
        for cache in (self._all, self._own_parts):
            if cache is not None:
                self._kept.dismiss(cache)
        self._all = self._own_parts = None

    def _dismiss_affinities(self) -> None:
        if self._affinities is not None:
            self._kept.dismiss(self._affinities)
            self._affinities = None
        for cache in self._single.values():
            self._kept.dismiss(cache)
        self._single, self._owners, self._lost = {}, {}, set()

    # -- what is known ------------------------------------------------------------------------------------------------

    def routes(self) -> tuple[BlockRoute, ...]:
        """The known blocks; for those that are not followed, only the network and the node."""
        if self._all is not None and self._all.synced:
            own = {} if self._own_parts is None else self._kept.records(self._own_parts)
            known = self._kept.records(self._all).items()
            return tuple(with_own_parts(block, own.get(key)) for key, block in known if block is not None)
        found = [BlockRoute(cidr, node) for cidr, node in self._owners.items() if not self._has_read(cidr)]
        for cache in self._single.values():
            found += [block for block in self._kept.records(cache).values() if block is not None]
        return tuple(found)

    def _has_read(self, cidr: Network) -> bool:
        cache = self._single.get(cidr)
        return cache is not None and cache.synced

    def unread(self) -> frozenset[Key]:
        """The records that exist but of which no version is known."""
        caches: list[Cache[Any]] = [*self._single.values()]
        caches += [cache for cache in (self._all, self._own_parts, self._affinities) if cache is not None]
        return frozenset().union(*(self._kept.unread(cache) for cache in caches))
