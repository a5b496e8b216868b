"""PURE: which parts of an object are relayed: the fields that the agents read, under the API server's names.

Rule: the agents decode the same records from the reduced object as from the whole one (for blocks and pods: as for
those of other nodes). An object that cannot be decoded is relayed whole, so that agents report the same error for it.
managedFields and kubectl's last applied configuration are never needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cni_calico.datastore.kubernetes.relayed.served import BLOCK_PATHS, PARTIAL
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import decode_block
from cni_calico.model.documents.fields import JSON
from cni_calico.model.keys import BlockKey
from cni_calico.model.kubernetes import custom, flannel, nodes, pods
from cni_calico.model.kubernetes.pods import FINISHED
from cni_calico.model.lasting import ALTERNATE
from cni_calico.model.resources import Block

Reduce = Callable[[JSON], dict[str, Any] | None]

_NOT_NEEDED = ("kubectl.kubernetes.io/last-applied-configuration",)


def reduce_whole(obj: JSON) -> dict[str, Any] | None:
    """Everything except Kubernetes' own bookkeeping."""
    metadata = {name: value for name, value in obj["metadata"].items() if name not in ("managedFields", "selfLink")}
    annotations = metadata.get("annotations")
    if isinstance(annotations, Mapping):
        metadata["annotations"] = {name: text for name, text in annotations.items() if name not in _NOT_NEEDED}
        if not metadata["annotations"]:
            del metadata["annotations"]
    return {**{name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}, "metadata": metadata}


def _identity(metadata: JSON, *more: str) -> dict[str, Any]:
    fields = ("name", "namespace", "uid", "resourceVersion", *more)
    return {name: metadata[name] for name in fields if metadata.get(name)}


def reduce_node(obj: JSON) -> dict[str, Any] | None:
    """Labels, Calico's annotations, pod CIDRs and addresses."""
    try:
        nodes.read_node(obj)
    except CorruptRecord:
        return reduce_whole(obj)
    metadata = _identity(obj["metadata"], "labels", "creationTimestamp", "deletionTimestamp")
    annotations = obj["metadata"].get("annotations") or {}
    kept = ("projectcalico.org/", *flannel.ANNOTATIONS)
    own = {name: text for name, text in annotations.items() if name.startswith(kept)}
    if own:
        metadata["annotations"] = own
    reduced: dict[str, Any] = {"metadata": metadata}
    spec = {name: obj["spec"][name] for name in ("podCIDR", "podCIDRs") if (obj.get("spec") or {}).get(name)}
    if spec:
        reduced["spec"] = spec
    addresses = (obj.get("status") or {}).get("addresses")
    if addresses:
        reduced["status"] = {"addresses": addresses}
    return reduced


def reduce_pod(obj: JSON) -> dict[str, Any] | None:
    """The part of a pod that other nodes need: node, labels, account, addresses, named ports. None for a pod that has
    no endpoint: it is in its host's network, or not on a node yet.
    """
    try:
        if pods.read_pod(obj) is None:
            return None
    except CorruptRecord:
        return reduce_whole(obj)
    metadata = _identity(obj["metadata"], "labels")
    status = obj.get("status") or {}
    spec = {name: obj["spec"][name] for name in ("nodeName", "serviceAccountName") if obj["spec"].get(name)}
    containers = [{"ports": ports} for ports in map(_named_ports, _containers(obj["spec"])) if ports]
    if containers:
        spec["containers"] = containers
    reduced: dict[str, Any] = {"metadata": metadata, "spec": spec}
    told: dict[str, Any] = {"phase": status["phase"]} if status.get("phase") in FINISHED else {}
    for field in ("podIPs", "podIP"):
        if status.get(field):
            told[field] = status[field]
            break
    annotations = _address_annotations(
        obj["metadata"].get("annotations") or {}, in_status=len(told) > ("phase" in told)
    )
    if annotations:
        metadata["annotations"] = annotations
    if annotations.get(pods.POD_IP) == "" and obj["metadata"].get("deletionTimestamp"):
        metadata["deletionTimestamp"] = obj["metadata"]["deletionTimestamp"]
    if told:
        reduced["status"] = told
    return reduced


def _address_annotations(annotations: JSON, *, in_status: bool) -> dict[str, str]:
    """Addresses found only in annotations, and a mark if the pod's DEL is done."""
    if annotations.get(pods.POD_IP) == "":
        return {pods.POD_IP: ""} | ({} if in_status else _given(annotations, pods.POD_IPS))
    return {} if in_status else _given(annotations, pods.POD_IP, pods.POD_IPS)


def _given(annotations: JSON, *names: str) -> dict[str, str]:
    return {name: annotations[name] for name in names if annotations.get(name)}


def _containers(spec: JSON) -> list[JSON]:
    return [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]


def _named_ports(container: JSON) -> list[dict[str, Any]]:
    fields = ("name", "protocol", "containerPort")
    return [
        {name: port[name] for name in fields if port.get(name)}
        for port in container.get("ports") or ()
        if port.get("name")
    ]


def reduce_block(obj: JSON) -> dict[str, Any] | None:
    """The owner, and the addresses that other nodes borrowed."""
    found = _read_block(obj)
    if found is None:
        return reduce_whole(obj)
    owner, spec = found.node, obj["spec"]
    allocations: list[int | None] = []
    attributes: list[dict[str, Any]] = []
    for index in found.allocations:
        owners = dict(_owners_at(found, index))
        if any(said.get("node", owner) not in ("", owner) for said in owners.values()):
            allocations.append(len(attributes))
            attributes.append({place: _named(said) for place, said in owners.items()})
        else:
            allocations.append(None)
    kept = {name: spec[name] for name in ("cidr", "affinity", "hostAffinity", "deleted") if spec.get(name)}
    # our readers, like upstream's, want one entry for each address
    kept |= {"allocations": allocations, "attributes": attributes}
    return {"metadata": _identity(obj["metadata"]), "spec": {**kept, PARTIAL: True}}


def reduce_own_block(obj: JSON) -> dict[str, Any] | None:
    """The part of a block that its owner needs: which pods have its addresses. What only IPAM needs is left out."""
    found = _read_block(obj)
    if found is None:
        return reduce_whole(obj)
    spec = obj["spec"]
    names = ("cidr", "affinity", "hostAffinity", "allocations", "unallocated", "deleted")
    attributes = [
        {place: _named(said) for place, said in _owners_at(found, index)} for index in range(len(found.attributes))
    ]
    kept = {name: spec[name] for name in names if spec.get(name)}
    return {"metadata": _identity(obj["metadata"]), "spec": {**kept, "attributes": attributes}}


def reduce_held_block(obj: JSON) -> dict[str, Any] | None:
    """Which pods have a block's addresses: agents compare that with what pods' annotations say."""
    found = _read_block(obj)
    if found is None:
        return reduce_whole(obj)
    spec = obj["spec"]
    allocations: list[int | None] = []
    attributes: list[dict[str, Any]] = []
    for index in found.allocations:
        each = {
            place: {"namespace": said["namespace"], "pod": said["pod"]}
            for place, said in _owners_at(found, index)
            if said.get("pod") and said.get("namespace")
        }
        allocations.append(len(attributes) if each else None)
        if each:
            attributes.append(each)
    kept = {name: spec[name] for name in ("cidr", "deleted") if spec.get(name)}
    return {
        "metadata": _identity(obj["metadata"]),
        "spec": {**kept, "allocations": allocations, "attributes": attributes},
    }


def _named(said: Mapping[str, str]) -> dict[str, str]:
    return {name: said[name] for name in ("node", "namespace", "pod") if said.get(name)}


def _owners_at(block: Block, index: int | None) -> Iterator[tuple[str, Mapping[str, str]]]:
    """By their place in the entry: who has an address; while a virtual machine moves, the other pod, too."""
    if index is None or index >= len(block.attributes):
        return
    attribute = block.attributes[index]
    yield "secondary", attribute.secondary
    if attribute.extra and isinstance(other := attribute.extra.get(ALTERNATE), Mapping):
        yield ALTERNATE, other


def _read_block(obj: JSON) -> Block | None:
    """None for one that cannot be read."""
    try:
        key, document = custom.read_object({"kind": "IPAMBlock", **obj})
        return decode_block(key, document) if isinstance(key, BlockKey) else None
    except CorruptRecord:
        return None


def affinity_of(obj: JSON) -> str:
    """The owner by which a block is selected; "" for nobody."""
    spec = obj.get("spec")
    if not isinstance(spec, Mapping):
        return ""
    affinity = spec.get("affinity")
    if affinity is None and spec.get("hostAffinity"):
        return f"host:{spec['hostAffinity']}"
    return str(affinity or "")


def reduce_account(obj: JSON) -> dict[str, Any] | None:
    """The name and labels of a Namespace or ServiceAccount."""
    return {"metadata": _identity(obj["metadata"], "labels", "creationTimestamp")}


REDUCTIONS: Mapping[str, Reduce] = {
    "/api/v1/nodes": reduce_node,
    "/api/v1/pods": reduce_pod,
    "/api/v1/namespaces": reduce_account,
    "/api/v1/serviceaccounts": reduce_account,
    **dict.fromkeys(BLOCK_PATHS, reduce_block),
}


def reduction_of(path: str) -> Reduce:
    return REDUCTIONS.get(path, reduce_whole)
