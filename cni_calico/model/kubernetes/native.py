"""PURE: Calico's records as objects of ``projectcalico.org/v3``, from and to keys and documents in etcd's form.

Rule: an object is the resource itself: names, labels, annotations, owners and finalizers stand where Kubernetes has
them, and UIDs are the API server's. So ``object_of(key, document_of(object), object) == object`` here too. What is
stored of addresses differs from ``crd.projectcalico.org/v1`` (custom.py) in three places: the kind IPAMConfiguration, a
Boolean ``deleted`` of affinities, and their labels, which stand nowhere else.
"""

from __future__ import annotations

import re
from typing import Any

from cni_calico.errors import CorruptRecord, RecordRefused
from cni_calico.model.access import NATIVE_GROUP
from cni_calico.model.documents.fields import JSON, Wrong, parse_object, parse_text, parse_text_map
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import PLURALS, AffinityKey, BlockKey, IPAMConfigKey, Key, ResourceKey
from cni_calico.model.kubernetes import custom

CONFIGURATION = "IPAMConfiguration"
_OWN_KINDS = {"IPAMConfig": CONFIGURATION}
_NOT_THEIRS = {"IPAMConfiguration": "IPAMConfig"}
# what the API server maintains and no reader needs
_LEFT_OUT = ("resourceVersion", "generation", "managedFields", "selfLink", "deletionGracePeriodSeconds")
# kept from the stored object, unless the document says what they shall be
_OTHERS = ("finalizers", "ownerReferences")
_OWNER_OF_BLOCK = re.compile(r"(host|virtual):[a-zA-Z0-9.\-_]+")


def place_of(key: Key) -> custom.Place:
    if isinstance(key, IPAMConfigKey):
        return custom.Place(CONFIGURATION, "ipamconfigurations", "default")
    if isinstance(key, ResourceKey):
        return custom.Place(key.kind, PLURALS[key.kind], key.name, key.namespace)
    return custom.place_of(key)


# -- reading ----------------------------------------------------------------------------------------------------------


def read_object(obj: JSON) -> tuple[Key, dict[str, Any]]:
    """The key and the document in an object. Raises CorruptRecord, which names the object."""
    try:
        kind = parse_text(obj.get("kind"), "kind")
        if kind in PLURALS:
            return _read_resource(kind, obj)
        if kind in _OWN_KINDS:
            raise Wrong("kind", "a kind of Calico's", kind)
        return custom.read_address_record(_NOT_THEIRS.get(kind, kind), parse_object(obj.get("spec"), "spec"))
    except Wrong as e:
        raise CorruptRecord(f"cannot read {custom.object_name(obj)}: {e}") from e


def _read_resource(kind: str, obj: JSON) -> tuple[ResourceKey, dict[str, Any]]:
    metadata = parse_object(obj.get("metadata"), "metadata")
    out = {name: value for name, value in metadata.items() if name not in _LEFT_OUT and value is not None}
    name = parse_text(metadata.get("name"), "metadata.name")
    namespace = parse_text(metadata.get("namespace") or "", "metadata.namespace")
    for field in ("labels", "annotations"):
        if field in out:
            parse_text_map(out[field], f"metadata.{field}")
    rest = {name: obj[name] for name in obj if name not in ("apiVersion", "kind", "metadata")}
    return ResourceKey(kind, name, namespace), {"apiVersion": API_VERSION, "kind": kind, "metadata": out, **rest}


# -- writing ----------------------------------------------------------------------------------------------------------


def object_of(key: Key, document: JSON, old: JSON | None = None) -> dict[str, Any]:
    """The object for a document; with ``old``, the stored object, ready to replace it.

    Raises RecordRefused for a block whose owner no object of this group can name.
    """
    place = place_of(key)
    metadata: dict[str, Any] = {}
    if isinstance(key, ResourceKey):
        given = document.get("metadata") or {}
        left_out = (*_LEFT_OUT, *custom.SERVERS, "namespace")
        metadata = {name: value for name, value in given.items() if name not in left_out and value is not None}
        rest = {name: value for name, value in document.items() if name not in ("apiVersion", "kind", "metadata")}
        rest.setdefault("spec", {})
    else:
        if isinstance(key, AffinityKey):
            metadata["labels"] = custom.affinity_labels(key)
        rest = {"spec": _spec_of(key, document)}
    metadata["name"] = place.name
    if place.namespace:
        metadata["namespace"] = place.namespace
    stored = (old or {}).get("metadata") or {}
    kept = (*custom.SERVERS, *(name for name in _OTHERS if name not in metadata))
    metadata.update({name: stored[name] for name in kept if name in stored})
    return {"apiVersion": NATIVE_GROUP, "kind": place.kind, "metadata": metadata, **rest}


def _spec_of(key: Key, document: JSON) -> dict[str, Any]:
    spec = custom.spec_of(key, document)
    if isinstance(key, AffinityKey):
        return {**spec, "deleted": bool(document.get("deleted"))}
    owner = spec.get("affinity")
    if isinstance(key, BlockKey) and owner and not _OWNER_OF_BLOCK.fullmatch(owner):
        raise RecordRefused(
            f"cannot write block {key.cidr}: in {NATIVE_GROUP} no block can belong to {owner!r}",
            details="a node's name has letters, digits, '.', '-' and '_' there",
        )
    return spec
