"""Everything about addresses, read from the datastore and decoded.

Rule: a record that cannot be read is reported, not fatal: the others are what a user needs to repair it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cni_calico.ctl.session import Session
from cni_calico.errors import CorruptRecord
from cni_calico.ipam.consistency import Records
from cni_calico.model import codec
from cni_calico.model.keys import (
    AffinityKey,
    AffinityList,
    BlockKey,
    BlockList,
    HandleKey,
    HandleList,
    Key,
    ListKey,
    ResourceKey,
    ResourceList,
)
from cni_calico.model.resources import Affinity, Block, Handle, IPPool, Network, Node, WorkloadEndpoint


def read_records(session: Session) -> Records:
    """Raises DatastoreError."""
    corrupt: list[tuple[str, str]] = []
    # blocks last: an address that is taken while we read would otherwise look used but not allocated
    endpoints: list[WorkloadEndpoint] = _read_kind(session, "WorkloadEndpoint", corrupt)
    nodes: list[Node] = _read_kind(session, "Node", corrupt)
    pools = read_pools(session, corrupt)
    affinities: dict[AffinityKey, Affinity] = {}
    for kind in ("host", "virtual"):
        for key, record in _read(session, AffinityList(type=kind), corrupt):
            assert isinstance(key, AffinityKey)
            affinities[key] = record
    handles: dict[str, Handle] = {}
    for key, record in _read(session, HandleList(), corrupt):
        assert isinstance(key, HandleKey)
        handles[key.handle_id] = record
    return Records(read_blocks(session, corrupt), handles, affinities, endpoints, nodes, pools, corrupt)


def read_blocks(session: Session, corrupt: list[tuple[str, str]]) -> dict[Network, Block]:
    blocks: dict[Network, Block] = {}
    for key, record in _read(session, BlockList(), corrupt):
        assert isinstance(key, BlockKey)
        if not record.deleted:
            blocks[key.cidr] = record
    return dict(sorted(blocks.items(), key=lambda item: (item[0].version, item[0].network_address)))


def read_pools(session: Session, corrupt: list[tuple[str, str]]) -> list[IPPool]:
    return _read_kind(session, "IPPool", corrupt)


def _read_kind(session: Session, kind: str, corrupt: list[tuple[str, str]]) -> list[Any]:
    return [record for _, record in _read(session, ResourceList(kind), corrupt)]


def _read(session: Session, listing: ListKey, corrupt: list[tuple[str, str]]) -> list[tuple[Key, Any]]:
    found = []
    decode: Callable[[Key, Any], Any] = codec.decode
    for item in session.store.list(listing, session.deadline).items:
        try:
            found.append((item.key, decode(item.key, item.value)))
        except CorruptRecord as e:
            corrupt.append((codec.describe(item.key), str(e)))
    return found


def read_cluster(session: Session) -> tuple[dict[str, Any], str]:
    """The spec of ClusterInformation "default" ({} when there is none) and its revision."""
    found = session.store.get(ResourceKey("ClusterInformation", "default"), session.deadline)
    if found is None:
        return {}, ""
    return dict(found.value.get("spec") or {}), str(found.revision)
