"""Reads and decodes everything that is stored about addresses.

Rule: a record that cannot be read is reported and the rest is used, because users need the rest to repair it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import Versioned, has_transactions
from cni_calico.errors import CorruptRecord
from cni_calico.ipam.consistency import Records
from cni_calico.model.documents.codec import decode, describe
from cni_calico.model.keys import (
    CLUSTER,
    AffinityKey,
    AffinityList,
    BlockKey,
    BlockList,
    EverythingList,
    HandleKey,
    HandleList,
    Key,
    ListKey,
    ResourceKey,
    ResourceList,
)
from cni_calico.model.resources import Block, IPPool, Network, is_deleted

_KINDS = ("WorkloadEndpoint", "Node", "IPPool")
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


def read_items(session: Session) -> list[Versioned]:
    """Everything that ``read_records`` decodes, as it is stored. Raises DatastoreError."""
    listings: tuple[ListKey, ...] = (EverythingList(),) if has_transactions(session.store) else _IN_TURN
    return [item for listing in listings for item in session.store.list(listing, session.deadline).items]


def read_records(session: Session, items: Iterable[Versioned] | None = None) -> Records:
    """The decoded records, made from ``items`` if these have been read already. Raises DatastoreError."""
    blocks, handles, affinities = {}, {}, {}
    kinds: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    corrupt: list[tuple[str, str]] = []
    for key, record in _decode(read_items(session) if items is None else items, corrupt):
        if isinstance(key, BlockKey):
            blocks[key.cidr] = record
        elif isinstance(key, HandleKey):
            handles[key.handle_id] = record
        elif isinstance(key, AffinityKey):
            affinities[key] = record
        elif isinstance(key, ResourceKey):
            kinds[key.kind].append(record)
    corrupt += session.take_damaged()
    endpoints, nodes, pools = kinds.values()
    return Records(_sorted(blocks), handles, affinities, endpoints, nodes, pools, corrupt)


def read_blocks(session: Session, corrupt: list[tuple[str, str]]) -> dict[Network, Block]:
    return _sorted({record.cidr: record for _, record in _read(session, BlockList(), corrupt)})


def read_pools(session: Session, corrupt: list[tuple[str, str]]) -> list[IPPool]:
    return [record for _, record in _read(session, ResourceList("IPPool"), corrupt)]


def _sorted(blocks: dict[Network, Block]) -> dict[Network, Block]:
    return dict(sorted(blocks.items(), key=lambda item: (item[0].version, item[0].network_address)))


def _read(session: Session, listing: ListKey, corrupt: list[tuple[str, str]]) -> list[tuple[Key, Any]]:
    return _decode(session.store.list(listing, session.deadline).items, corrupt)


def _decode(items: Iterable[Versioned], corrupt: list[tuple[str, str]]) -> list[tuple[Key, Any]]:
    """The records needed here; those marked as deleted count as absent."""
    found = []
    for item in items:
        if isinstance(item.key, ResourceKey) and item.key.kind not in _KINDS:
            continue
        try:
            record: Any = decode(item.key, item.value)
        except CorruptRecord as e:
            corrupt.append((describe(item.key), str(e)))
            continue
        if not is_deleted(record):
            found.append((item.key, record))
    return found


def read_cluster(session: Session) -> tuple[dict[str, Any], str]:
    """The spec of ClusterInformation "default" ({} if there is none) and its revision. Raises CorruptRecord."""
    found = session.store.get(CLUSTER, session.deadline)
    if found is None:
        return {}, ""
    spec = found.value.get("spec") or {}
    if not isinstance(spec, Mapping):
        raise CorruptRecord("cannot read ClusterInformation default: spec is not an object")
    return dict(spec), str(found.revision)
