"""Deletes resources that others depend on: a node's endpoints, addresses, blocks and configuration, a pool's blocks.

Rule: dependent records are deleted first, so that a deletion that failed half-way can be repeated. In the Kubernetes
datastore a node belongs to Kubernetes: the datastore refuses to delete it, and none of its records is changed; of a
node that Kubernetes no longer has, the peers, host endpoints and configuration are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from cni_calico.ctl.resources import operations
from cni_calico.ctl.resources.protection import require_deletable_tier, require_unused_pool
from cni_calico.ctl.session import ResourceMissing, Session
from cni_calico.datastore.belongings import remove_belongings
from cni_calico.datastore.interface import pod_of
from cni_calico.errors import CalicoError, CorruptRecord
from cni_calico.ipam.allocator import Allocator, Release
from cni_calico.ipam.consistency import tunnel_addresses
from cni_calico.model.documents import codec
from cni_calico.model.keys import AffinityKey, AffinityList, BlockKey, BlockList, ResourceKey, ResourceList
from cni_calico.model.kubernetes import pods as crd_pods
from cni_calico.model.names import parse_endpoint_name
from cni_calico.model.resources import Address, is_within

_OF_CONTROLLERS = ("projectcalico.org/ippool-finalizer", "projectcalico.org/tier-controller")
_TAKEN_AWAY = {
    "IPPool": " calico-kube-controllers does that when no address of the pool is in use; if none runs, nobody does.",
    "Tier": " calico-kube-controllers does that when no policy is in the tier; if none runs, nobody does.",
}


def delete_resource(session: Session, key: ResourceKey, *, force: bool = False) -> None:
    """Delete a resource; ``force`` also deletes a pool whose addresses are in use.

    Raises ResourceMissing, OperationNotSupported, CommandFailed, DatastoreError.
    """
    operations.require_changeable("delete", key)
    kubernetes = session.store.kind == "kubernetes"
    if key.kind == "Node" and kubernetes:
        if _leave_gone_node(session, key):
            return
    elif key.kind == "Node":
        _leave_node(session, key)
    elif key.kind == "IPPool":
        _leave_pool(session, key, force=force)
    elif key.kind == "Tier":
        require_deletable_tier(session, key)
    elif key.kind == "WorkloadEndpoint" and kubernetes:
        _require_recorded(session, key)
    operations.delete(session, key)


def why_still_there(session: Session, key: ResourceKey) -> str:
    """What a resource waits for that was deleted and is still there, as Kubernetes keeps what has finalizers; "" also
    if that cannot be read: it was deleted all the same.
    """
    if session.store.kind != "kubernetes" or key.kind in ("Node", "WorkloadEndpoint"):
        return ""
    try:
        found = session.store.get(key, session.deadline)
    except CalicoError:
        return ""
    metadata = {} if found is None else found.value.get("metadata") or {}
    if found is None or not metadata.get("deletionTimestamp"):
        return ""
    status = found.value.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    refused = [
        each
        for each in (conditions if isinstance(conditions, list) else ())
        if isinstance(each, Mapping) and each.get("status") == "False" and each.get("message")
    ]
    says = [str(each["message"]) for each in refused]
    finalizers = [str(name) for name in metadata.get("finalizers") or ()]
    waits = f" It waits for {', '.join(finalizers)} to be taken away." if finalizers else ""
    owner = _TAKEN_AWAY.get(key.kind, "") if set(finalizers) & set(_OF_CONTROLLERS) else ""
    return f"{key.kind} {key.name} is being deleted and still there.{waits}{owner}{''.join(f' {one}' for one in says)}"


def _require_recorded(session: Session, key: ResourceKey) -> None:
    """On Kubernetes the record on the pod is deleted; a pod may exist without one."""
    found = operations.read_resource(session, key)
    pod = pod_of(found)
    if pod is not None and not crd_pods.is_recorded(pod):
        missing = ResourceMissing(key)
        missing.details = f"pod {key.namespace}/{pod['metadata']['name']} is there, and has no addresses recorded"
        raise missing


def _endpoints_of(session: Session, node: str) -> Iterator[tuple[ResourceKey, list[Address]]]:
    for item in session.store.list(ResourceList("WorkloadEndpoint"), session.deadline).items:
        assert isinstance(item.key, ResourceKey)
        try:
            endpoint = codec.decode_endpoint(item.key, item.value)
        except CorruptRecord:
            if _node_of(item.key) == node:
                raise
            continue  # another node's
        if endpoint.node == node:
            yield item.key, [network.network_address for network in endpoint.ip_networks]


def _node_of(key: ResourceKey) -> str:
    try:
        return parse_endpoint_name(key.name)[0]
    except ValueError:
        return ""


def _holdings_of(session: Session, node: str) -> Iterator[tuple[BlockKey, list[Release]]]:
    """The node's blocks, and other blocks with addresses whose attributes name the node (leaked, other plugins',
    ...).
    """
    for item in session.store.list(BlockList(), session.deadline).items:
        assert isinstance(item.key, BlockKey)
        try:
            block = codec.decode_block(item.key, item.value)
        except CorruptRecord as e:
            session.note_damaged(item.key, e.message)  # reported, and left unchanged
            continue
        mine = [
            Release(block.cidr[ordinal], block.attributes[index].handle_id, block.sequence_for.get(ordinal))
            for ordinal, index in enumerate(block.allocations)
            if index is not None and block.attributes[index].secondary.get("node") == node
        ]
        if mine or block.node == node:
            yield item.key, mine


def _leave_node(session: Session, key: ResourceKey) -> None:
    found = operations.read_resource(session, key)
    node = codec.decode_node(key, found.value)
    allocator = Allocator(session.store)
    for endpoint, addresses in _endpoints_of(session, key.name):
        allocator.release_addresses(addresses, session.deadline)
        operations.remove_record(session, endpoint, partial(ResourceMissing, endpoint))
    allocator.release_addresses([address for address, _ in tunnel_addresses(node)], session.deadline)
    owned = dict.fromkeys(affinity.cidr for affinity in _host_affinities(session, key.name))
    for block, releases in _holdings_of(session, key.name):
        allocator.release_addresses(releases, session.deadline)
        owned[block.cidr] = None
    for cidr in owned:
        allocator.release_node_block(key.name, cidr, session.deadline, require_empty=False)
    remove_belongings(session.store, key.name, session.deadline)


def _leave_gone_node(session: Session, key: ResourceKey) -> bool:
    """Remove what is left of a node that Kubernetes no longer has; returns whether there was anything."""
    if session.store.get(key, session.deadline) is not None:
        return False
    return remove_belongings(session.store, key.name, session.deadline) > 0


def _host_affinities(session: Session, node: str = "") -> list[AffinityKey]:
    """The node's affinities, found by their content: on Kubernetes older versions wrote them without the labels that
    select them.
    """
    keys = [item.key for item in session.store.list(AffinityList(), session.deadline).items]
    return [key for key in keys if isinstance(key, AffinityKey) and node in ("", key.node)]


def _leave_pool(session: Session, key: ResourceKey, *, force: bool) -> None:
    """Disable the pool, so that no block is claimed from it meanwhile, then take its blocks from their nodes."""
    found = operations.read_resource(session, key)
    try:
        pool = codec.decode_pool(key, found.value)
    except CorruptRecord:
        return  # no blocks have been claimed from it since; those claimed before stay
    if not force:
        require_unused_pool(session, key, pool)
    if not pool.disabled:
        disable = codec.encode_pool(replace(pool, disabled=True))
        operations.modify(session, key, lambda document: {**document, "spec": disable["spec"]})
    allocator = Allocator(session.store)
    for affinity in _host_affinities(session):
        if is_within(affinity.cidr, pool.cidr):
            allocator.release_node_block(affinity.node, affinity.cidr, session.deadline, require_empty=False)
    for item in session.store.list(BlockList(pool.cidr.version), session.deadline).items:
        if isinstance(item.key, BlockKey) and is_within(item.key.cidr, pool.cidr):
            block = codec.decode_block(item.key, item.value)
            if block.affinity is None and block.empty:
                operations.remove_record(session, item.key, lambda: CorruptRecord("gone"))
