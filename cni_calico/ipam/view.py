"""The interface through which the allocator reads, and its plain implementation: a few requests to the datastore per
call.

Rule: a view returns decoded records together with what they were decoded from, so that a write can be compared against
it. An answer may be out of date without harm: every write is compare-and-swap, and a conflict returns the stored
record. The resident server answers the same questions from its caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cni_calico.datastore.interface import Datastore, Listing, Versioned, has_transactions
from cni_calico.deadline import Deadline
from cni_calico.errors import CorruptRecord
from cni_calico.ipam.pools import NodeFacts, PoolsRead, unreadable_pool
from cni_calico.model.documents import codec
from cni_calico.model.keys import (
    AffinityKey,
    AffinityList,
    BlockKey,
    BlockList,
    HandleKey,
    IPAMConfigKey,
    Key,
    ListKey,
    ResourceKey,
    ResourceList,
)
from cni_calico.model.resources import Affinity, IPAMConfig, IPPool, IPReservation, Network, Record


@dataclass(frozen=True, slots=True)
class Stored:
    """A record and where it was found; the fields of ``at`` are those of datastore.interface.Versioned."""

    at: Versioned
    record: Record


@dataclass(frozen=True, slots=True)
class Facts:
    """The records that an assignment reads first; ``config`` and ``handle`` are None if there is no record."""

    pools: Sequence[IPPool]
    reservations: Sequence[IPReservation]
    config: IPAMConfig | None
    node: NodeFacts
    handle: Stored | None


class View(Protocol):
    """Answers may be out of date, but each record in them is complete. All of them raise DatastoreError and
    DeadlineExceeded.
    """

    def facts(self, node: str, handle_id: str, deadline: Deadline) -> Facts:
        """All of pools, reservations, config, node and handle, in as few round trips as possible."""

    def pools(self, deadline: Deadline) -> Sequence[IPPool]: ...

    def reservations(self, deadline: Deadline) -> Sequence[IPReservation]: ...

    def config(self, deadline: Deadline) -> IPAMConfig | None: ...

    def node(self, name: str, deadline: Deadline) -> NodeFacts: ...

    def affinities(self, node: str, family: int, deadline: Deadline) -> Mapping[Network, Stored]:
        """The host affinities of a node."""

    def occupied(self, family: int, deadline: Deadline) -> frozenset[Network]:
        """Blocks that a confirmed affinity of any node names: a cheap first answer to which blocks are taken."""

    def block_cidrs(self, family: int, deadline: Deadline) -> Sequence[Network]:
        """The blocks that exist; for the rare case that their pool does not say which."""

    def blocks(self, cidrs: Sequence[Network], deadline: Deadline) -> Sequence[Stored | CorruptRecord | None]:
        """The blocks, in the order of ``cidrs``. A block that cannot be read is returned as its error, so that another
        node's bad block does not hide the others.
        """

    def handle(self, handle_id: str, deadline: Deadline) -> Stored | None:
        """The handle's record; None only if it is certain that there is none, because a release relies on that."""


def stored(found: Versioned) -> Stored:
    """Raises CorruptRecord."""
    return Stored(found, codec.decode(found.key, found.value))


def node_facts(name: str, found: Versioned | None) -> NodeFacts:
    """The labels of a Node resource. Raises CorruptRecord."""
    if found is None:
        return NodeFacts(name, known=False)
    return NodeFacts(name, codec.decode_resource(ResourceKey("Node", name), found.value).metadata.labels)


class DirectView:
    """Every answer is read from the datastore now."""

    def __init__(self, store: Datastore) -> None:
        self._store = store

    def facts(self, node: str, handle_id: str, deadline: Deadline) -> Facts:
        keys: list[Key] = [IPAMConfigKey(), HandleKey(handle_id)]
        together = has_transactions(self._store)
        if together:
            keys.append(ResourceKey("Node", node))
        config, handle, *node_record = self._store.get_many(keys, deadline)
        pools = self.pools(deadline)
        return Facts(
            pools=pools,
            reservations=self.reservations(deadline),
            config=None if config is None else codec.decode_ipam_config(IPAMConfigKey(), config.value),
            node=node_facts(node, node_record[0]) if together else self._node_if_asked(node, pools, deadline),
            handle=None if handle is None else stored(handle),
        )

    def _node_if_asked(self, node: str, pools: Sequence[IPPool], deadline: Deadline) -> NodeFacts:
        """The node, on a store with one request per record (Kubernetes) read only if a selector looks at its labels."""
        if all(pool.node_selector.strip() in ("", "all()") for pool in pools):
            return NodeFacts(node)
        return self.node(node, deadline)

    def pools(self, deadline: Deadline) -> Sequence[IPPool]:
        """One that cannot be read spoils no other. Raises CorruptRecord if none can be read."""
        listing = self._store.list(ResourceList("IPPool"), deadline)
        readable: list[IPPool] = []
        wrong: list[IPPool] = []
        reasons: dict[str, str] = {}
        lost, first = _unreadable(listing), None
        for item in listing.items:
            key = _resource_key(item.key)
            try:
                readable.append(codec.decode_pool(key, item.value))
            except CorruptRecord as e:
                first = first or e
                pool = unreadable_pool(key.name, item.value)
                if pool is None:
                    lost = lost or e
                else:
                    wrong.append(pool)
                    reasons[key.name] = e.message
        if not readable and (error := first or lost) is not None:
            raise error
        return PoolsRead([*readable, *wrong], reasons, lost)

    def reservations(self, deadline: Deadline) -> Sequence[IPReservation]:
        items = self._all(ResourceList("IPReservation"), deadline)
        return [codec.decode_reservation(_resource_key(item.key), item.value) for item in items]

    def config(self, deadline: Deadline) -> IPAMConfig | None:
        found = self._store.get(IPAMConfigKey(), deadline)
        return None if found is None else codec.decode_ipam_config(IPAMConfigKey(), found.value)

    def node(self, name: str, deadline: Deadline) -> NodeFacts:
        return node_facts(name, self._store.get(ResourceKey("Node", name), deadline))

    def affinities(self, node: str, family: int, deadline: Deadline) -> Mapping[Network, Stored]:
        items = self._all(AffinityList(node, family), deadline)
        return {item.key.cidr: stored(item) for item in items if isinstance(item.key, AffinityKey)}

    def occupied(self, family: int, deadline: Deadline) -> frozenset[Network]:
        items = self._store.list(AffinityList("", family), deadline).items
        return frozenset(item.key.cidr for item in items if isinstance(item.key, AffinityKey) and _is_confirmed(item))

    def block_cidrs(self, family: int, deadline: Deadline) -> Sequence[Network]:
        items = self._store.list(BlockList(family), deadline).items
        return [item.key.cidr for item in items if isinstance(item.key, BlockKey)]

    def blocks(self, cidrs: Sequence[Network], deadline: Deadline) -> Sequence[Stored | CorruptRecord | None]:
        return [decode_found(item) for item in read_each(self._store, [BlockKey(c) for c in cidrs], deadline)]

    def _all(self, listing: ListKey, deadline: Deadline) -> Sequence[Versioned]:
        return require_readable(self._store.list(listing, deadline))

    def handle(self, handle_id: str, deadline: Deadline) -> Stored | None:
        found = self._store.get(HandleKey(handle_id), deadline)
        return None if found is None else stored(found)


def require_readable(listing: Listing) -> Sequence[Versioned]:
    """All records of a listing: a record that had to be left out may be the one that matters. Raises CorruptRecord."""
    if (error := _unreadable(listing)) is not None:
        raise error
    return listing.items


def _unreadable(listing: Listing) -> CorruptRecord | None:
    """Of the first record that was left out."""
    for key, why in listing.unreadable:
        return CorruptRecord(f"cannot read {codec.describe(key)}: {why}")
    return None


def _resource_key(key: Key) -> ResourceKey:
    assert isinstance(key, ResourceKey)
    return key


def _is_confirmed(item: Versioned) -> bool:
    try:
        affinity = codec.decode(item.key, item.value)
    except CorruptRecord:
        return False  # its block is checked instead
    return isinstance(affinity, Affinity) and affinity.confirmed


def read_each(store: Datastore, keys: Sequence[Key], deadline: Deadline) -> Sequence[Versioned | CorruptRecord | None]:
    """Like get_many, but a record that is not a document is returned as its error."""
    if not keys:
        return ()
    try:
        return store.get_many(keys, deadline)
    except CorruptRecord:
        return [_read_one(store, key, deadline) for key in keys]


def _read_one(store: Datastore, key: Key, deadline: Deadline) -> Versioned | CorruptRecord | None:
    try:
        return store.get(key, deadline)
    except CorruptRecord as e:
        return e


def decode_found(found: Versioned | CorruptRecord | None) -> Stored | CorruptRecord | None:
    if not isinstance(found, Versioned):
        return found
    try:
        return stored(found)
    except CorruptRecord as e:
        return e
