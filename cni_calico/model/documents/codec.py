"""PURE: converts records from and to the JSON documents that every datastore backend carries (etcd's form).

Rule: ``encode(decode(key, document)) == document``, field for field. A document of the wrong shape raises CorruptRecord
and nothing else; the text names the record, the field and the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cni_calico.errors import CorruptRecord
from cni_calico.model.documents import ipam as codec_ipam
from cni_calico.model.documents import kinds as codec_kinds
from cni_calico.model.documents import resources as codec_resources
from cni_calico.model.documents.fields import JSON, Wrong, brief, parse_object
from cni_calico.model.documents.ipam import encode_affinity, encode_block, encode_handle, encode_ipam_config
from cni_calico.model.documents.kinds import (
    encode_cluster_information,
    encode_endpoint,
    encode_node,
    encode_pool,
    encode_reservation,
)
from cni_calico.model.documents.resources import API_VERSION, encode_resource
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, IPAMConfigKey, Key, ResourceKey
from cni_calico.model.resources import (
    Affinity,
    Block,
    ClusterInformation,
    Handle,
    IPAMConfig,
    IPPool,
    IPReservation,
    Metadata,
    Node,
    Record,
    Resource,
    WorkloadEndpoint,
)

ReadRecord = TypeVar("ReadRecord")

__all__ = [
    "API_VERSION",
    "decode",
    "decode_affinity",
    "decode_block",
    "decode_cluster_information",
    "decode_endpoint",
    "decode_handle",
    "decode_ipam_config",
    "decode_node",
    "decode_pool",
    "decode_reservation",
    "decode_resource",
    "describe",
    "encode",
    "encode_affinity",
    "encode_block",
    "encode_cluster_information",
    "encode_endpoint",
    "encode_handle",
    "encode_ipam_config",
    "encode_node",
    "encode_pool",
    "encode_reservation",
    "encode_resource",
    "new_metadata",
]


def describe(key: Key) -> str:
    """A record's identity in words, for messages."""
    if isinstance(key, ResourceKey):
        return f"{key.kind} {key.namespace}/{key.name}" if key.namespace else f"{key.kind} {key.name}"
    if isinstance(key, BlockKey):
        return f"block {key.cidr}"
    if isinstance(key, AffinityKey):
        return f"affinity of block {key.cidr} to {key.type} {key.node}"
    if isinstance(key, HandleKey):
        return f"handle {key.handle_id}"
    return "IPAM configuration"


def corrupt(key: Key, why: object) -> CorruptRecord:
    return CorruptRecord(f"cannot read {brief(describe(key))}: {why}")


def _read(key: Key, document: object, read: Callable[[JSON], ReadRecord]) -> ReadRecord:
    try:
        return read(parse_object(document, "document"))
    except Wrong as e:
        raise corrupt(key, e) from e


def _read_resource(key: Key, document: object, read: Callable[[JSON, ResourceKey], ReadRecord]) -> ReadRecord:
    assert isinstance(key, ResourceKey)
    try:
        return read(parse_object(document, "document"), key)
    except Wrong as e:
        raise corrupt(key, e) from e


# -- address management -----------------------------------------------------------------------------------------------


def decode_block(key: Key, document: JSON) -> Block:
    assert isinstance(key, BlockKey)
    block = _read(key, document, codec_ipam.read_block)
    if block.cidr != key.cidr:
        raise corrupt(key, f'cidr: expected "{key.cidr}" as in its key, got "{block.cidr}"')
    return block


def decode_affinity(key: AffinityKey, document: JSON) -> Affinity:
    return _read(key, document, codec_ipam.read_affinity)


def decode_handle(key: HandleKey, document: JSON) -> Handle:
    return _read(key, document, codec_ipam.read_handle)


def decode_ipam_config(key: IPAMConfigKey, document: JSON) -> IPAMConfig:
    return _read(key, document, codec_ipam.read_ipam_config)


# -- resources --------------------------------------------------------------------------------------------------------


def decode_pool(key: Key, document: JSON) -> IPPool:
    return _read_resource(key, document, codec_kinds.read_pool)


def decode_reservation(key: Key, document: JSON) -> IPReservation:
    return _read_resource(key, document, codec_kinds.read_reservation)


def decode_cluster_information(key: Key, document: JSON) -> ClusterInformation:
    return _read_resource(key, document, codec_kinds.read_cluster_information)


def decode_node(key: Key, document: JSON) -> Node:
    return _read_resource(key, document, codec_kinds.read_node)


def decode_endpoint(key: Key, document: JSON) -> WorkloadEndpoint:
    return _read_resource(key, document, codec_kinds.read_endpoint)


def decode_resource(key: Key, document: JSON) -> Resource:
    """A resource of any kind, in the shape that all kinds share."""
    return _read_resource(key, document, codec_resources.read_resource)


_BY_KIND: Mapping[str, Callable[[ResourceKey, JSON], Record]] = {
    "IPPool": decode_pool,
    "IPReservation": decode_reservation,
    "ClusterInformation": decode_cluster_information,
    "Node": decode_node,
    "WorkloadEndpoint": decode_endpoint,
}


def decode(key: Key, document: JSON) -> Record:
    """The record behind a document. Raises CorruptRecord."""
    if isinstance(key, BlockKey):
        return decode_block(key, document)
    if isinstance(key, AffinityKey):
        return decode_affinity(key, document)
    if isinstance(key, HandleKey):
        return decode_handle(key, document)
    if isinstance(key, IPAMConfigKey):
        return decode_ipam_config(key, document)
    return _BY_KIND.get(key.kind, decode_resource)(key, document)


_ENCODERS: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    Block: encode_block,
    Affinity: encode_affinity,
    Handle: encode_handle,
    IPAMConfig: encode_ipam_config,
    IPPool: encode_pool,
    IPReservation: encode_reservation,
    ClusterInformation: encode_cluster_information,
    Node: encode_node,
    WorkloadEndpoint: encode_endpoint,
    Resource: encode_resource,
}


def encode(record: Record) -> dict[str, Any]:
    """The document of a record. It may share parts with the document it was decoded from: copy before changing it."""
    return _ENCODERS[type(record)](record)


def new_metadata(
    name: str, *, uid: str, now: str, namespace: str = "", labels: Mapping[str, str] | None = None
) -> Metadata:
    """Metadata of a resource that is created now; ``now`` is RFC 3339 in whole seconds and UTC, as upstream
    stores it.
    """
    return Metadata(name=name, namespace=namespace, uid=uid, creation_timestamp=now, labels=labels or {})
