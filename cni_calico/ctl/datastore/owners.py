"""PURE: owner references of resources that go into another datastore, where their owners have other UIDs.

Rule: an owner is written before what it owns, which then refers to the new UID. A reference to a resource of Calico's
that is not among those that go is left out: Kubernetes would take the resource for an orphan, and delete it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any

from cni_calico.datastore.interface import Document
from cni_calico.model.access import API_GROUP
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import NAMESPACED_KINDS, Key, ResourceKey

_OURS = (API_VERSION, API_GROUP)


def owners_of(key: Key, document: Document) -> list[ResourceKey]:
    """The resources of Calico's that a document names as its owners."""
    return [_owner(key, each) for each in _references(document) if each.get("apiVersion") in _OURS]


def in_order_of_owners(records: Mapping[Key, Document]) -> Iterator[dict[Key, Document]]:
    """The records in portions, each after those that have its owners; those that own one another come last."""
    sorter = TopologicalSorter({key: records.keys() & owners_of(key, document) for key, document in records.items()})
    with suppress(CycleError):  # it goes on as far as those that own one another
        sorter.prepare()
    left, place = dict(records), {key: i for i, key in enumerate(records)}
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=place.__getitem__)
        yield {key: left.pop(key) for key in ready}
        sorter.done(*ready)
    if left:
        yield left


def with_owners(key: Key, document: Document, uids: Mapping[ResourceKey, str]) -> tuple[Document, list[ResourceKey]]:
    """The document with its owners' present UIDs, and the owners that it lost because they have none."""
    references, lost = [], []
    for reference in _references(document):
        owner = _owner(key, reference) if reference.get("apiVersion") in _OURS else None
        if owner is None:
            references.append(reference)
        elif uids.get(owner):
            references.append({**reference, "uid": uids[owner]})
        else:
            lost.append(owner)
    if references == _references(document):
        return document, lost
    metadata = {name: value for name, value in document["metadata"].items() if name != "ownerReferences"}
    kept = {"ownerReferences": references} if references else {}
    return {**document, "metadata": {**metadata, **kept}}, lost


def _references(document: Document) -> list[Mapping[str, Any]]:
    metadata = document.get("metadata")
    found = metadata.get("ownerReferences") if isinstance(metadata, Mapping) else None
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _owner(key: Key, reference: Mapping[str, Any]) -> ResourceKey:
    kind = str(reference.get("kind"))
    namespace = key.namespace if isinstance(key, ResourceKey) and kind in NAMESPACED_KINDS else ""
    return ResourceKey(kind, str(reference.get("name")), namespace)
