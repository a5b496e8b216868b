"""PURE: what an allocation says of the identity for which it is kept while its pods come and go."""

from __future__ import annotations

from sys import intern
from typing import Any

from cni_calico.ipam.lost.bare import outlives_its_pod
from cni_calico.model.lasting import CONTAINER, STICKY, owners_of, parse_kept
from cni_calico.model.resources import Attribute


def read_kept(attribute: Attribute) -> dict[str, Any] | None:
    """The fields of leaks.KeptHolding that its attributes say; None for what is not kept, or does not say for whom."""
    if not outlives_its_pod(attribute.handle_id or ""):
        return None
    owners = owners_of(attribute)
    kept = parse_kept(attribute.handle_id or "", owners.said)
    if kept is None or not (kept.namespace and kept.name):
        return None
    if owners.said.get(STICKY) == "keep" or owners.said.get(CONTAINER):
        return None  # for ever; or a container's, of which Kubernetes knows nothing
    active, other = owners.active, owners.alternate
    return {
        "node": intern(active.get("node", "")),
        "namespace": intern(kept.namespace),
        "pod": active.get("pod", ""),
        "kind": kept.kind.value,
        "name": kept.name,
        "other_node": other.get("node", ""),
        "other_pod": other.get("pod", ""),
    }
