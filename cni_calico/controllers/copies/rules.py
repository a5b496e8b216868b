"""PURE: which records in etcd follow from objects of Kubernetes, and their content.

Rule: a record is compared by its *content*, the part that follows from the object; the rest of it (identity, time of
creation, what others wrote) is kept. A record whose name is not one of ours belongs to somebody else. Source:
upstream's kube-controllers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.datastore.interface import Document
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import Key, ResourceKey, ResourceList
from cni_calico.model.kubernetes.nodes import KUBE_LABELS
from cni_calico.model.kubernetes.pods import endpoint_key
from cni_calico.model.kubernetes.policies import NETWORK_POLICY, STORED_PREFIX, read_stored_network_policy
from cni_calico.model.names import parse_endpoint_name
from cni_calico.model.validation.defaults import with_defaults


@dataclass(frozen=True, slots=True)
class Content:
    """The part of a record that follows from its object. ``left_out``: in words, what could not be converted."""

    value: Any
    left_out: tuple[str, ...] = ()


NOTHING = Content(None)  # the object exists, but does not determine its records (yet)


@dataclass(frozen=True, slots=True)
class CopyRule:
    """One controller's records: ``records`` in the datastore follow from ``objects`` in Kubernetes.

    ``object_of`` returns the object of a record, given the record's name and what was read of it (None: nothing); None
    for a record that is not ours. ``record_of`` returns the record to make for an object, None if others make the
    records. ``is_current`` compares the wanted content with what was read. ``read_object`` raises CorruptRecord.
    """

    name: str
    objects: ResourceList
    records: ResourceList
    object_of: Callable[[ResourceKey, Any], ResourceKey | None]
    record_of: Callable[[ResourceKey], ResourceKey | None]
    read_object: Callable[[Document], Content]
    read_record: Callable[[Document], Any]
    render: Callable[[ResourceKey, Any, Document | None], dict[str, Any]]
    is_current: Callable[[Any, Any], bool]


def without_empty(value: Any) -> Any:
    """The value without empty fields: leaving them out means the same as writing them."""
    if isinstance(value, Mapping):
        inner = {name: without_empty(item) for name, item in value.items()}
        return {name: item for name, item in inner.items() if item not in (None, {}, [])}
    if isinstance(value, (list, tuple)):
        return [without_empty(item) for item in value]
    return value


def is_same(wanted: Any, found: Any) -> bool:
    return bool(without_empty(wanted) == without_empty(found))


def _spec(document: Document) -> Any:
    return document.get("spec") or {}


def new_document(key: ResourceKey, old: Document | None) -> dict[str, Any]:
    """The record without its spec: the existing one, or the beginning of a new one."""
    if old is not None:
        return dict(old)
    place = {"namespace": key.namespace} if key.namespace else {}
    return {"apiVersion": API_VERSION, "kind": key.kind, "metadata": {"name": key.name, **place}}


# -- profiles ---------------------------------------------------------------------------------------------------------


def _profiles(name: str, prefix: str) -> CopyRule:
    def own(key: ResourceKey, found: Any = None) -> ResourceKey | None:
        return key if key.name.startswith(prefix) else None

    def render(key: ResourceKey, content: Any, old: Document | None) -> dict[str, Any]:
        return {**new_document(key, old), "spec": content}

    listing = ResourceList("Profile", "", prefix)
    return CopyRule(name, listing, listing, own, own, lambda document: Content(_spec(document)), _spec, render, is_same)


NAMESPACES = _profiles("namespace", "kns.")
SERVICE_ACCOUNTS = _profiles("serviceaccount", "ksa.")


# -- policies ---------------------------------------------------------------------------------------------------------


def _policy_object(key: ResourceKey, found: Any = None) -> ResourceKey | None:
    if not key.name.startswith(STORED_PREFIX):
        return None
    return ResourceKey(NETWORK_POLICY, key.name.removeprefix(STORED_PREFIX), key.namespace)


def _stored_policy(key: ResourceKey) -> ResourceKey:
    return ResourceKey("NetworkPolicy", STORED_PREFIX + key.name, key.namespace)


def _read_policy(document: Document) -> Content:
    converted = read_stored_network_policy(document)
    return Content(_spec(with_defaults(converted.document)), converted.left_out)


def _render_policy(key: ResourceKey, content: Any, old: Document | None) -> dict[str, Any]:
    return with_defaults({**new_document(key, old), "spec": content})


POLICIES = CopyRule(
    "policy",
    ResourceList(NETWORK_POLICY),
    ResourceList("NetworkPolicy"),
    _policy_object,
    _stored_policy,
    _read_policy,
    _spec,
    _render_policy,
    is_same,
)


# -- endpoints --------------------------------------------------------------------------------------------------------


def _pod_of(key: ResourceKey, found: Any = None) -> ResourceKey | None:
    """The key that stands for a pod of Kubernetes, from the key of any of the pod's endpoints in the datastore."""
    try:
        node, orchestrator, pod, _ = parse_endpoint_name(key.name)
        return endpoint_key(key.namespace, pod, node) if orchestrator == "k8s" else None
    except ValueError:
        return None


def _read_pod(document: Document) -> Content:
    spec = document["spec"]
    if not spec.get("ipNetworks"):
        return NOTHING
    return Content((document["metadata"]["labels"], spec.get("serviceAccountName", "")))


def _read_endpoint(document: Document) -> Any:
    metadata, spec = document.get("metadata"), document.get("spec")
    if not isinstance(metadata, Mapping) or not isinstance(spec, Mapping):
        raise CorruptRecord("cannot read a WorkloadEndpoint: metadata and spec must be objects")
    return metadata.get("labels") or {}, spec.get("serviceAccountName") or ""


def _render_endpoint(key: ResourceKey, content: Any, old: Document | None) -> dict[str, Any]:
    assert old is not None  # only the CNI plugin creates endpoints
    labels, account = content
    spec = {name: value for name, value in old["spec"].items() if name != "serviceAccountName"}
    if account:
        spec["serviceAccountName"] = account
    return {**old, "metadata": {**old["metadata"], "labels": labels}, "spec": spec}


ENDPOINTS = CopyRule(
    "workloadendpoint",
    ResourceList("WorkloadEndpoint"),
    ResourceList("WorkloadEndpoint"),
    _pod_of,
    lambda key: None,
    _read_pod,
    _read_endpoint,
    _render_endpoint,
    is_same,
)


# -- nodes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """``copied`` is what was copied last, as the node's annotation remembers it; None: it cannot be read."""

    node: str
    labels: Mapping[str, str]
    copied: Mapping[str, str] | None


def _read_node(document: Document) -> NodeLabels:
    metadata, spec = document.get("metadata"), document.get("spec")
    if not isinstance(metadata, Mapping) or not isinstance(spec or {}, Mapping):
        raise CorruptRecord("cannot read a Node: metadata and spec must be objects")
    refs = [ref for ref in (spec or {}).get("orchRefs") or () if isinstance(ref, Mapping)]
    named = [str(ref.get("nodeName") or "") for ref in refs if ref.get("orchestrator") == "k8s"]
    annotations = metadata.get("annotations") or {}
    return NodeLabels(named[0] if named else "", metadata.get("labels") or {}, _copied(annotations.get(KUBE_LABELS)))


def _copied(text: Any) -> Mapping[str, str] | None:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, Mapping) else None


def desired_labels(wanted: Mapping[str, str], found: NodeLabels) -> dict[str, str]:
    """Others' labels stay; copied labels that no longer exist are removed."""
    gone = (found.copied or {}).keys() - wanted.keys()
    return {**{name: value for name, value in found.labels.items() if name not in gone}, **wanted}


def _has_labels(wanted: Any, found: NodeLabels) -> bool:
    return found.copied == wanted and desired_labels(wanted, found) == found.labels


def _render_node(key: ResourceKey, content: Any, old: Document | None) -> dict[str, Any]:
    assert old is not None  # start-up creates Nodes
    labels = desired_labels(content, _read_node(old))
    annotations = {**(old["metadata"].get("annotations") or {}), KUBE_LABELS: json.dumps(content, sort_keys=True)}
    return {**old, "metadata": {**old["metadata"], "labels": labels, "annotations": annotations}}


def _node_object(key: ResourceKey, found: NodeLabels | None) -> ResourceKey | None:
    return ResourceKey("Node", found.node) if found is not None and found.node else None


NODES = CopyRule(
    "node labels",
    ResourceList("Node"),
    ResourceList("Node"),
    _node_object,
    lambda key: None,
    lambda document: Content(dict(document["metadata"].get("labels") or {})),
    _read_node,
    _render_node,
    _has_labels,
)

COPY_RULES: Mapping[str, CopyRule] = {one.name: one for one in (NAMESPACES, SERVICE_ACCOUNTS, POLICIES, ENDPOINTS)}


# -- what is to be done -----------------------------------------------------------------------------------------------


def desired(rule: CopyRule, objects: Mapping[Key, Content]) -> dict[ResourceKey, Any]:
    """The content of every record that must exist because of ``objects``; the loop does the same key by key."""
    found = {}
    for key, content in objects.items():
        assert isinstance(key, ResourceKey)
        record = rule.record_of(key)
        if record is not None and content is not NOTHING:
            found[record] = content.value
    return found
