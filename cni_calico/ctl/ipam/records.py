"""Reads and decodes everything that is stored about addresses.

Rule: a record that cannot be read is reported and the rest is used, because users need the rest to repair it. What is
read is kept packed; endpoints and blocks are decoded when they are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cni_calico.ctl.ipam.packed import Alike, PackedItems, kind_of, pack, unpack
from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import Document, Reading, Versioned, has_transactions
from cni_calico.errors import CorruptRecord
from cni_calico.ipam.consistency import Records
from cni_calico.model.documents.codec import decode, decode_block, describe
from cni_calico.model.keys import (
    CLUSTER,
    AffinityList,
    BlockKey,
    BlockList,
    EverythingList,
    HandleList,
    ListKey,
    ResourceList,
)
from cni_calico.model.resources import Block, Handle, IPPool, Network, WorkloadEndpoint, is_deleted

_OF_ADDRESSES = ("block", "affinity", "virtual affinity", "handle", "Node", "IPPool", "WorkloadEndpoint")
_NOT_KEPT = -1
_NOTHING: Document = {}
# without a snapshot, blocks are read before endpoints; otherwise each ADD during the scan would look like a leak
_IN_TURN: tuple[ListKey, ...] = (
    BlockList(),
    HandleList(),
    AffinityList(type="host"),
    AffinityList(type="virtual"),
    ResourceList("IPPool"),
    ResourceList("Node"),
    ResourceList("WorkloadEndpoint"),
)


class StoredItems:
    """Items by kind, as ``kind_of`` says it."""

    def __init__(self) -> None:
        self._of = {kind: PackedItems() for kind in _OF_ADDRESSES}

    def read(self, session: Session, listing: ListKey, note: Callable[[], None]) -> None:
        """``note`` is called for each. Raises DatastoreError."""
        fresh = {kind: PackedItems() for kind in _OF_ADDRESSES}

        def receive(item: Versioned) -> Versioned:
            note()
            items = fresh.get(kind_of(item.key))
            return Versioned(item.key, _NOTHING, _NOT_KEPT if items is None else items.add(item))

        listed = session.store.list(listing, session.deadline, reading=Reading(receive)).items
        valid: dict[str, list[int]] = {kind: [] for kind in fresh}  # others are of a list that was begun again
        for item in listed:
            if item.revision != _NOT_KEPT:
                assert isinstance(item.revision, int)  # ours
                valid[kind_of(item.key)].append(item.revision)
        for kind, items in fresh.items():
            if items.added:
                items.keep(valid[kind])
                self._of[kind] = items

    def of(self, *kinds: str) -> Iterator[Versioned]:
        for kind in kinds:
            yield from self._of[kind]


def read_items(session: Session, note: Callable[[], None] = lambda: None) -> StoredItems:
    """Everything that ``read_records`` decodes, as it is stored; ``note`` is called for each. Raises DatastoreError."""
    items = StoredItems()
    for listing in (EverythingList(),) if has_transactions(session.store) else _IN_TURN:
        items.read(session, listing, note)
    return items


class _PackedBlocks(Mapping[Network, Block]):
    """In the order of their addresses; decoded whenever they are looked at."""

    def __init__(self, documents: Mapping[Network, bytes]) -> None:
        self._packed = dict(sorted(documents.items(), key=lambda item: _place(item[0])))

    def __getitem__(self, cidr: Network) -> Block:
        return decode_block(BlockKey(cidr), unpack(self._packed[cidr]))

    def __iter__(self) -> Iterator[Network]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


class _PackedEndpoints(Iterable[WorkloadEndpoint]):
    """Decoded whenever they are looked at; those that cannot be are reported once they have been."""

    def __init__(self, items: StoredItems, corrupt: list[tuple[str, str]]) -> None:
        self._items = items
        self._corrupt: list[tuple[str, str]] | None = corrupt

    def __iter__(self) -> Iterator[WorkloadEndpoint]:
        found: list[tuple[str, str]] = []
        for _, record in _decode(self._items.of("WorkloadEndpoint"), found):
            yield record
        if self._corrupt is not None:
            self._corrupt += found
            self._corrupt = None


def read_records(session: Session, items: StoredItems | None = None) -> Records:
    """Made from ``items`` if these have been read already. ``corrupt`` has everything once the endpoints have been
    looked at. Raises DatastoreError.
    """
    items = read_items(session) if items is None else items
    corrupt: list[tuple[str, str]] = []
    blocks = {record.cidr: packed for packed, record in _read_blocks(items, corrupt)}
    affinities = dict(_decode(items.of("affinity", "virtual affinity"), corrupt))
    nodes, pools = ([record for _, record in _decode(items.of(kind), corrupt)] for kind in ("Node", "IPPool"))
    handles = _read_handles(items, corrupt)
    corrupt += session.take_damaged()
    return Records(_PackedBlocks(blocks), handles, affinities, _PackedEndpoints(items, corrupt), nodes, pools, corrupt)


def _read_blocks(items: StoredItems, corrupt: list[tuple[str, str]]) -> Iterator[tuple[bytes, Block]]:
    for item in items.of("block"):
        for _, record in _decode([item], corrupt):
            yield pack(item.value), record


def _read_handles(items: StoredItems, corrupt: list[tuple[str, str]]) -> dict[str, Handle]:
    found = _decode(items.of("handle"), corrupt, Alike(lambda item: decode(item.key, item.value)))
    return {key.handle_id: record for key, record in found}


def endpoints_on(items: StoredItems, node: str) -> Iterator[WorkloadEndpoint]:
    """Those that can be read; others are not decoded."""
    for item in items.of("WorkloadEndpoint"):
        spec = item.value.get("spec")
        if isinstance(spec, Mapping) and spec.get("node") == node:
            for _, record in _decode([item], []):
                yield record


def read_blocks(session: Session, corrupt: list[tuple[str, str]]) -> dict[Network, Block]:
    return _sorted({record.cidr: record for _, record in _read(session, BlockList(), corrupt)})


def read_pools(session: Session, corrupt: list[tuple[str, str]]) -> list[IPPool]:
    return [record for _, record in _read(session, ResourceList("IPPool"), corrupt)]


def _sorted(blocks: dict[Network, Block]) -> dict[Network, Block]:
    return dict(sorted(blocks.items(), key=lambda item: _place(item[0])))


def _place(cidr: Network) -> tuple[int, int]:
    return cidr.version, int(cidr.network_address)


def _read(session: Session, listing: ListKey, corrupt: list[tuple[str, str]]) -> Iterator[tuple[Any, Any]]:
    return _decode(session.store.list(listing, session.deadline).items, corrupt)


def _decode(
    items: Iterable[Versioned],
    corrupt: list[tuple[str, str]],
    read: Callable[[Versioned], Any] = lambda item: decode(item.key, item.value),
) -> Iterator[tuple[Any, Any]]:
    """Keys and records; those marked as deleted count as absent."""
    for item in items:
        try:
            record = read(item)
        except CorruptRecord as e:
            corrupt.append((describe(item.key), str(e)))
            continue
        if not is_deleted(record):
            yield item.key, record


def read_cluster(session: Session) -> tuple[dict[str, Any], str]:
    """The spec of ClusterInformation "default" ({} if there is none) and its revision. Raises CorruptRecord."""
    found = session.store.get(CLUSTER, session.deadline)
    if found is None:
        return {}, ""
    spec = found.value.get("spec") or {}
    if not isinstance(spec, Mapping):
        raise CorruptRecord("cannot read ClusterInformation default: spec is not an object")
    return dict(spec), str(found.revision)
