"""PURE: the records that every cluster has besides its tiers: ClusterInformation, default configurations.

Rule: existing records are completed, never replaced; every function accepts its own result unchanged. Values: what
upstream stores in a new cluster (tests/golden/vectors).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cni_calico import UPSTREAM_VERSION
from cni_calico.datastore.interface import Document
from cni_calico.model.documents.codec import (
    decode_cluster_information,
    decode_resource,
    encode_cluster_information,
    encode_resource,
    new_metadata,
)
from cni_calico.model.keys import CLUSTER, ResourceKey
from cni_calico.model.resources import ClusterInformation, Resource

# The version of the data model: upstream's tools refuse to work on a cluster of a different version, so a version that
# is stored already is never changed.
DATA_VERSION = UPSTREAM_VERSION


def merge_types(stored: str, wanted: Iterable[str]) -> str:
    """The stored words, then the wanted ones that are missing, in order."""
    words = [word.strip() for word in stored.split(",") if word.strip()]
    return ",".join(dict.fromkeys((*words, *wanted)))


def desired_cluster(old: Document | None, types: Iterable[str], *, guid: str, uid: str, now: str) -> dict[str, Any]:
    """ClusterInformation "default". Raises CorruptRecord."""
    if old is None:
        record = ClusterInformation(new_metadata("default", uid=uid, now=now))
    else:
        record = decode_cluster_information(CLUSTER, old)
    record = replace(
        record,
        cluster_guid=record.cluster_guid or guid,
        cluster_type=merge_types(record.cluster_type, types),
        calico_version=record.calico_version or DATA_VERSION,
        datastore_ready=True if record.datastore_ready is None else record.datastore_ready,
    )
    return encode_cluster_information(record)


def desired_fields(
    key: ResourceKey, old: Document | None, fields: Mapping[str, Any], *, uid: str, now: str
) -> dict[str, Any]:
    """A resource whose spec has ``fields`` wherever it has nothing (or an empty text). Raises CorruptRecord."""
    if old is None:
        return encode_resource(Resource(key.kind, new_metadata(key.name, uid=uid, now=now), dict(fields)))
    record = decode_resource(key, old)
    missing = {name: value for name, value in fields.items() if record.spec.get(name) in (None, "")}
    return encode_resource(replace(record, spec={**record.spec, **missing}) if missing else record)


FELIX_DEFAULT_FIELDS: Mapping[str, Any] = {"logSeverityScreen": "Info", "reportingInterval": "0s"}
FELIX_NODE_FIELDS: Mapping[str, Any] = {"defaultEndpointToHostAction": "Return"}
