"""PURE: Calico's custom resources (``crd.projectcalico.org/v1``) from and to keys and documents in etcd's form.

Rule: ``object_of(key, document_of(object), object) == object``: what upstream stored survives our reading and writing.
Nodes, pods and profiles, which are other Kubernetes objects, are in nodes.py and pods.py. Source: tests/golden/vectors,
upstream's behaviour for labels and annotations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import ip_network
from sys import intern
from typing import Any

from cni_calico.errors import CorruptRecord
from cni_calico.model.access import API_GROUP
from cni_calico.model.documents.fields import JSON, Wrong, brief, parse_object, parse_text, parse_text_map, without_zone
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import (
    PLURALS,
    AffinityKey,
    BlockKey,
    HandleKey,
    IPAMConfigKey,
    Key,
    ResourceKey,
)
from cni_calico.model.resources import Network

METADATA = "projectcalico.org/metadata"
NAME_MAX = 252
_HASH_LENGTH = 11
# what the API server maintains about an object: never in a document, kept from the stored object on update
SERVERS = (
    *("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)
_KEPT_FROM_OLD = (*SERVERS, "finalizers", "ownerReferences")
# upstream's order inside the annotation
_NOTE_ORDER = ("name", "creationTimestamp", "deletionTimestamp", "labels", "annotations", "ownerReferences")
_POLICIES = frozenset(("NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy"))
_IPAM_KINDS = {
    "IPAMBlock": "ipamblocks",
    "BlockAffinity": "blockaffinities",
    "IPAMHandle": "ipamhandles",
    "IPAMConfig": "ipamconfigs",
}
_BLOCK_NAMES = (("affinityClaimTime", "affinity_claim_time"),)
_CONFIG_NAMES = (("strictAffinity", "strict_affinity"), ("autoAllocateBlocks", "auto_allocate_blocks"))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record is stored: ``/apis/crd.projectcalico.org/v1/[namespaces/NAMESPACE/]PLURAL/NAME``."""

    kind: str
    plural: str
    name: str
    namespace: str = ""


# -- names ------------------------------------------------------------------------------------------------------------


def cidr_name(cidr: Network) -> str:
    return str(cidr).replace(".", "-").replace(":", "-").replace("/", "-")


def affinity_name(node: str, cidr: Network) -> str:
    """Node and block joined by "-"; if that is longer than 252 characters, the node's name is cut and part of a hash of
    the whole name is appended.
    """
    short = cidr_name(cidr)
    name = f"{node}-{short}"
    if len(name) <= NAME_MAX:
        return name
    import hashlib

    digest = hashlib.sha256(f"{node}+{short}".encode()).hexdigest()[:_HASH_LENGTH]
    return f"{node[: NAME_MAX - len(short) - _HASH_LENGTH - 2]}-{short}-{digest}"


def hostname_hash(node: str) -> str:
    """The value of label ``projectcalico.org/hostname-hash``: SHA3-256 in base32 without padding."""
    import base64
    import hashlib

    return base64.b32encode(hashlib.sha3_256(node.encode()).digest()).decode().rstrip("=")


def affinity_labels(key: AffinityKey) -> dict[str, str]:
    """The labels by which upstream finds the affinities of a node."""
    return {
        "projectcalico.org/affinity-type": key.type,
        "projectcalico.org/hostname-hash": hostname_hash(key.node),
        "projectcalico.org/ip-version": str(key.cidr.version),
    }


def _policy_name(name: str) -> str:
    """Policies are stored under "<tier>.<name>"; a name without a tier is in tier default."""
    return name if "." in name else f"default.{name}"


def _own_name(kind: str, metadata: JSON, note: JSON) -> Any:
    """A policy's own name, from the annotation; old versions wrote no annotation and named the object "default." plus
    that name.
    """
    name = metadata.get("name")
    if kind not in _POLICIES:
        return name
    return note.get("name") or (name.removeprefix("default.") if isinstance(name, str) else name)


def place_of(key: Key) -> Place:
    if isinstance(key, BlockKey):
        return Place("IPAMBlock", "ipamblocks", cidr_name(key.cidr))
    if isinstance(key, AffinityKey):
        return Place("BlockAffinity", "blockaffinities", affinity_name(key.node, key.cidr))
    if isinstance(key, HandleKey):
        return Place("IPAMHandle", "ipamhandles", key.handle_id.lower())
    if isinstance(key, IPAMConfigKey):
        return Place("IPAMConfig", "ipamconfigs", "default")
    name = _policy_name(key.name) if key.kind in _POLICIES else key.name
    return Place(key.kind, PLURALS[key.kind], name, key.namespace)


# -- identities ------------------------------------------------------------------------------------------------------


def turned(uid: Any) -> Any:
    """The UID of a resource for the UID of its custom resource, and back: the bits of each byte in reverse order, but
    for bytes 6 and 8, which say what kind of UUID it is. So the two are two objects to Kubernetes, as in upstream. A
    text that is no UUID stays.
    """
    try:
        raw = bytes.fromhex(uid.replace("-", ""))
    except (ValueError, AttributeError):
        return uid
    if len(raw) != 16 or len(uid) != 36:
        return uid
    text = bytes(each if i in (6, 8) else int(f"{each:08b}"[::-1], 2) for i, each in enumerate(raw)).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _turned_owners(owners: Any, this: str, other: str) -> Any:
    """References to owners in the group ``this`` as references to them in ``other``; those to other objects, and what
    is no reference, stay. (Older versions of ours stored references as users wrote them.)
    """
    if not isinstance(owners, list):
        return owners
    return [
        {**owner, "apiVersion": other, "uid": turned(owner.get("uid"))}
        if isinstance(owner, dict) and owner.get("apiVersion") == this
        else owner
        for owner in owners
    ]


# -- reading ----------------------------------------------------------------------------------------------------------


def read_object(obj: JSON) -> tuple[Key, dict[str, Any]]:
    """The key and the document in a custom resource. Raises CorruptRecord, which names the object."""
    try:
        kind = parse_text(obj.get("kind"), "kind")
        if kind in PLURALS:
            return _read_resource(kind, obj)
        return read_address_record(kind, parse_object(obj.get("spec"), "spec"))
    except Wrong as e:
        raise CorruptRecord(f"cannot read {object_name(obj)}: {e}") from e


def object_name(obj: JSON) -> str:
    """A Kubernetes object in words, for messages."""
    metadata = obj.get("metadata")
    names = [metadata.get(field) for field in ("namespace", "name")] if isinstance(metadata, dict) else []
    return brief(f"{obj.get('kind') or 'object'} {'/'.join(str(name) for name in names if name)}".rstrip())


def key_of(obj: JSON) -> Key:
    return read_object(obj)[0]


def document_of(obj: JSON) -> dict[str, Any]:
    return read_object(obj)[1]


def _parse_cidr(spec: JSON) -> Network:
    try:
        return ip_network(without_zone(parse_text(spec.get("cidr"), "spec.cidr")))
    except ValueError as e:
        raise Wrong("spec.cidr", "the network of a block", spec.get("cidr")) from e


def _renamed(spec: JSON, pairs: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    names = dict(pairs)
    return {names.get(name, name): value for name, value in spec.items()}


def read_address_record(kind: str, spec: JSON) -> tuple[Key, dict[str, Any]]:
    """The key and the document of a block, an affinity, a handle or IPAM's configuration. Raises Wrong."""
    if kind not in _IPAM_KINDS:
        raise Wrong("kind", "a kind of Calico's", kind)
    if kind == "IPAMBlock":
        document = _renamed(spec, _BLOCK_NAMES)
        if document.get("strictAffinity") is False:
            del document["strictAffinity"]
        return BlockKey(_parse_cidr(spec)), document
    if kind == "BlockAffinity":
        node = parse_text(spec.get("node"), "spec.node")
        key = AffinityKey(node, _parse_cidr(spec), parse_text(spec.get("type") or "host", "spec.type"))
        document = {name: value for name, value in spec.items() if name not in ("node", "cidr", "type")}
        document["deleted"] = _parse_deleted(spec.get("deleted"))
        return key, document
    if kind == "IPAMHandle":
        document = {name: value for name, value in spec.items() if name != "handleID"}
        return HandleKey(intern(parse_text(spec.get("handleID"), "spec.handleID"))), document
    return IPAMConfigKey(), _renamed(spec, _CONFIG_NAMES)


def _parse_deleted(raw: Any) -> bool:
    """A text here, a Boolean in ``projectcalico.org/v3``."""
    if raw is False or raw is None or raw in ("", "false"):
        return False
    if raw is True or raw == "true":
        return True
    raise Wrong("spec.deleted", '"true" or "false"', raw)


def _parse_note(annotations: JSON) -> dict[str, Any]:
    """The v3 metadata that the annotation holds."""
    text = annotations.get(METADATA)
    if not text:
        return {}
    at = f"metadata.annotations[{METADATA}]"
    try:
        return dict(parse_object(json.loads(text), at))
    except (ValueError, RecursionError) as e:
        raise Wrong(at, "a JSON object", text) from e


def _read_resource(kind: str, obj: JSON) -> tuple[ResourceKey, dict[str, Any]]:
    metadata = parse_object(obj.get("metadata"), "metadata")
    annotations = parse_text_map(metadata.get("annotations") or {}, "metadata.annotations")
    note = _parse_note(annotations)
    out = {name: value for name, value in note.items() if value is not None}
    out["name"] = parse_text(_own_name(kind, metadata, note), "metadata.name")
    for field in ("namespace", "deletionTimestamp"):
        if metadata.get(field):
            out[field] = metadata[field]
    if metadata.get("uid"):
        out["uid"] = turned(metadata["uid"])
    if note.get("ownerReferences"):
        out["ownerReferences"] = _turned_owners(note["ownerReferences"], API_GROUP, API_VERSION)
    if not out.get("creationTimestamp") and metadata.get("creationTimestamp"):
        out["creationTimestamp"] = metadata["creationTimestamp"]
    own = {name: value for name, value in annotations.items() if name != METADATA}
    labels = parse_text_map(metadata.get("labels") or {}, "metadata.labels")
    for field, values in (("labels", labels), ("annotations", own)):
        merged = {**values, **parse_text_map(note.get(field) or {}, field)}
        if merged:
            out[field] = merged
    document = {name: obj[name] for name in obj if name not in ("apiVersion", "kind", "metadata")}
    namespace = parse_text(out.get("namespace", ""), "metadata.namespace")
    return ResourceKey(kind, out["name"], namespace), {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": out,
        **document,
    }


# -- writing ----------------------------------------------------------------------------------------------------------


def object_of(key: Key, document: JSON, old: JSON | None = None) -> dict[str, Any]:
    """The custom resource for a document; with ``old``, the stored object, ready to replace it."""
    place = place_of(key)
    metadata: dict[str, Any] = {"name": place.name}
    if place.namespace:
        metadata["namespace"] = place.namespace
    if isinstance(key, ResourceKey):
        metadata.update(_resource_metadata(key, document.get("metadata") or {}))
        rest = {name: value for name, value in document.items() if name not in ("apiVersion", "kind", "metadata")}
    else:
        metadata.update(_ipam_metadata(key))
        rest = {"spec": spec_of(key, document)}
    stored = (old or {}).get("metadata") or {}
    metadata.update({name: stored[name] for name in _KEPT_FROM_OLD if name in stored})
    return {"apiVersion": API_GROUP, "kind": place.kind, "metadata": metadata, **rest}


def _ours(name: str) -> bool:
    return "projectcalico.org/" in name or "operator.tigera.io/" in name


def _compact(value: JSON) -> str:
    """JSON as Go writes it: no spaces, the keys of maps sorted."""
    ordered = {name: value[name] for name in _NOTE_ORDER if name in value}
    ordered.update({name: value[name] for name in sorted(value) if name not in ordered})
    for name in ("labels", "annotations"):
        if name in ordered:
            ordered[name] = dict(sorted(ordered[name].items()))
    return json.dumps(ordered, separators=(",", ":"), ensure_ascii=False)


def _resource_metadata(key: ResourceKey, metadata: JSON) -> dict[str, Any]:
    dropped = {"namespace", "uid", "resourceVersion", "generation", "managedFields", "selfLink"}
    if key.kind not in _POLICIES:
        dropped.add("name")
    note = {name: value for name, value in metadata.items() if name not in dropped and value not in ({}, [], "")}
    note.setdefault("creationTimestamp", None)
    if "ownerReferences" in note:
        note["ownerReferences"] = _turned_owners(note["ownerReferences"], API_VERSION, API_GROUP)
    labels = {name: value for name, value in (metadata.get("labels") or {}).items() if _ours(name)}
    annotations = {name: value for name, value in (metadata.get("annotations") or {}).items() if _ours(name)}
    out: dict[str, Any] = {"annotations": {**annotations, METADATA: _compact(note)}}
    if labels:
        out["labels"] = labels
    return out


def _ipam_metadata(key: Key) -> dict[str, Any]:
    note: dict[str, Any] = {"creationTimestamp": None}
    if not isinstance(key, AffinityKey):
        return {"annotations": {METADATA: _compact(note)}}
    note["labels"] = affinity_labels(key)
    return {"annotations": {METADATA: _compact(note)}, "labels": note["labels"]}


def spec_of(key: Key, document: JSON) -> dict[str, Any]:
    """The ``spec`` of what is stored of addresses."""
    if isinstance(key, BlockKey):
        spec = _renamed(document, tuple((ours, theirs) for theirs, ours in _BLOCK_NAMES))
        if spec.get("affinity", "") is None:
            del spec["affinity"]  # the CRD's schema does not allow null there
        return {"strictAffinity": False, **spec}
    if isinstance(key, AffinityKey):
        deleted = "true" if document.get("deleted") else "false"
        return {**document, "cidr": str(key.cidr), "node": key.node, "type": key.type, "deleted": deleted}
    if isinstance(key, HandleKey):
        return {**document, "handleID": key.handle_id}
    spec = _renamed(document, tuple((ours, theirs) for theirs, ours in _CONFIG_NAMES))
    return {"strictAffinity": False, "autoAllocateBlocks": False, **spec}
