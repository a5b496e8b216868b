"""PURE: changes of records that are stored in Kubernetes' own objects: a Pod's WorkloadEndpoint, a Node. Rule: Calico
can store only a few fields of them. Any other change is refused with an error that names the command for it, because
the datastore would accept the change and store nothing. The datastore itself refuses changes of profiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cni_calico.ctl.session import shown_key
from cni_calico.datastore.interface import Document
from cni_calico.errors import InvalidConfig
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes import nodes as crd_nodes

Path = tuple[str, ...]
_LABELS, _ANNOTATIONS = ("metadata", "labels"), ("metadata", "annotations")
_STORED: Mapping[str, tuple[Path, ...]] = {
    "WorkloadEndpoint": (("spec", "containerID"), ("spec", "ipNetworks")),
    "Node": (*crd_nodes.STORED, _LABELS, _ANNOTATIONS),
}


def plan_stored(key: ResourceKey, wanted: Document, current: Document, *, complete: bool) -> Document:
    """``wanted`` as it can be stored over ``current``, which was read from the Kubernetes object.

    ``complete``: fields that ``wanted`` lacks are to be removed; otherwise they are left alone. Raises InvalidConfig.
    """
    stored = _STORED.get(key.kind)
    if stored is None:
        return wanted
    inherited = crd_nodes.inherited_labels(current) if key.kind == "Node" else {}
    if key.kind == "Node":
        wanted = _with_inherited(wanted, current)
    new, old = dict(_leaves(wanted)), dict(_leaves(current))
    changed = [path for path, value in new.items() if path not in old or old[path] != value]
    changed += [path for path in old if complete and path not in new]
    for path in changed:
        if not any(path[: len(place)] == place for place in stored) or (path[:2] == _LABELS and path[2] in inherited):
            raise _refusal(key, path, current)
    return wanted


def _leaves(document: Document) -> Iterator[tuple[Path, Any]]:
    metadata = document.get("metadata") or {}
    for place in (_LABELS, _ANNOTATIONS):
        yield from _walk(place, metadata.get(place[1]) or {})
    for part in ("spec", "status"):
        yield from _walk((part,), document.get(part))


def _walk(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yields the leaves. A list counts as one value, an empty field as absent."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _walk((*path, name), inner)
    elif value not in (None, "", []) or path[:2] == _LABELS:
        yield path, value


def _with_inherited(wanted: Document, current: Document) -> Document:
    """Keep the annotation that lists the Kubernetes node's own labels: users can neither change nor remove it."""
    metadata = wanted.get("metadata") or {}
    own = (current.get("metadata") or {}).get("annotations") or {}
    annotations = {**(metadata.get("annotations") or {})}
    annotations.pop(crd_nodes.KUBE_LABELS, None)
    if crd_nodes.KUBE_LABELS in own:
        annotations[crd_nodes.KUBE_LABELS] = own[crd_nodes.KUBE_LABELS]
    return {**wanted, "metadata": {**metadata, "annotations": annotations}}


def _refusal(key: ResourceKey, path: Path, current: Document) -> InvalidConfig:
    if key.kind == "Node":
        owner, target = f"Kubernetes node {key.name}", f"node {key.name}"
    else:
        pod = str((current.get("spec") or {}).get("pod"))
        owner, target = f"pod {key.namespace}/{pod}", f"pod {pod} -n {key.namespace}"
    if path[:2] == _LABELS:
        what, remedy = f"label {path[2]}", f"use kubectl label {target}"
    elif path[:2] == _ANNOTATIONS:
        what, remedy = f"annotation {path[2]}", f"use kubectl annotate {target}"
    else:
        what, remedy = ".".join(path), "in the Kubernetes datastore it cannot be set"
    return InvalidConfig(f"cannot change {what} of {shown_key(key)}: it belongs to {owner}", details=remedy)
