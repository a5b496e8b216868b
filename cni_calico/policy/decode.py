"""PURE: converts a stored document, or an object of Kubernetes, into the record that the graph takes.

Rule: one place decides which kinds take part and how each is read, both for the agent and for calicoctl.
"""

from __future__ import annotations

from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import decode_endpoint, decode_resource
from cni_calico.model.documents.fields import JSON, Wrong
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.custom import object_name
from cni_calico.model.kubernetes.policies import (
    CLUSTER_NETWORK_POLICY,
    NETWORK_POLICY,
    ConvertedPolicy,
    read_cluster_network_policy,
    reading_network_policy,
)
from cni_calico.model.resources import Resource, WorkloadEndpoint
from cni_calico.policy.hosts import parse_host
from cni_calico.policy.kubernetes import read_slice, record_of
from cni_calico.policy.nodes import SLICE, GraphRecord
from cni_calico.policy.records import (
    POLICY_KINDS,
    labelled_network_set,
    labelled_node,
    parse_profile,
    parse_tier,
    parsing_policy,
    require_interface,
)
from cni_calico.policy.sets import NETWORK_SETS, NODE
from cni_calico.policy.steps import Steps, finish

# kinds on every datastore, and those that only a Kubernetes datastore has
KINDS = (
    "Tier",
    "GlobalNetworkPolicy",
    "NetworkPolicy",
    "Profile",
    "GlobalNetworkSet",
    "NetworkSet",
    "HostEndpoint",
    "WorkloadEndpoint",
)
KUBERNETES_KINDS = (NETWORK_POLICY, CLUSTER_NETWORK_POLICY, SLICE)


def decode_record(key: ResourceKey, document: JSON) -> tuple[GraphRecord | None, tuple[str, ...]]:
    """The record (None: the object does not take part), and texts about what could not be converted. For the kinds
    above; for Kubernetes' kinds ``document`` is the object itself. Raises CorruptRecord.
    """
    return finish(decoding_record(key, document))


def decoding_record(key: ResourceKey, document: JSON) -> Steps[tuple[GraphRecord | None, tuple[str, ...]]]:
    """As ``decode_record``; a Kubernetes NetworkPolicy in steps."""
    if key.kind == NETWORK_POLICY:
        return _converted((yield from reading_network_policy(document)))
    if key.kind == "WorkloadEndpoint":
        return decode_endpoint(key, document), ()
    if key.kind == SLICE:
        return read_slice(document)[1], ()
    if key.kind == NODE:
        return _read_node(document), ()
    if key.kind == CLUSTER_NETWORK_POLICY:
        return _converted(read_cluster_network_policy(document))
    return decode_resource(key, document), ()


def reduce_record(key: ResourceKey, record: GraphRecord) -> GraphRecord:
    """The part of a record that the graph needs. Raises Wrong for an invalid record, so that it does not replace a
    valid one.
    """
    return finish(reducing(key, record))


def reducing(key: ResourceKey, record: GraphRecord) -> Steps[GraphRecord]:
    """As ``reduce_record``, a rule of a policy at each step."""
    if isinstance(record, WorkloadEndpoint):
        require_interface(record)
    elif isinstance(record, Resource):
        if key.kind in POLICY_KINDS:
            return (yield from parsing_policy(key, record))
        if key.kind in NETWORK_SETS:
            return labelled_network_set(key, record)
        if key.kind == "HostEndpoint":
            return parse_host(record)
        if key.kind == "Profile":
            parse_profile(key, record)
        elif key.kind == "Tier":
            parse_tier(record)
    return record


def _read_node(document: JSON) -> GraphRecord:
    try:
        return labelled_node(document)
    except Wrong as e:
        raise CorruptRecord(f"cannot read {object_name(document)}: {e}") from e


def _converted(policy: ConvertedPolicy | None) -> tuple[GraphRecord | None, tuple[str, ...]]:
    return (None, ()) if policy is None else (record_of(policy.key, policy.document), policy.left_out)
