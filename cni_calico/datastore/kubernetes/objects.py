"""Kubernetes' own objects that a CNI call looks at: the pod, its namespace, its node. They are read, never written.

Rule: one GET each; a class that keeps some of them in memory (the resident server's) has the same methods. Other kinds
are only counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.layout import namespace_path, node_path, pod_path
from cni_calico.deadline import Deadline

MIRROR = "kubernetes.io/config.mirror"


class KubernetesObjects:
    """Raises DatastoreError, DeadlineExceeded; for an object that does not exist the result is None."""

    def __init__(self, api: KubernetesAPI) -> None:
        self.api = api

    def pod(self, namespace: str, name: str, uid: str, deadline: Deadline) -> Mapping[str, Any] | None:
        """The pod of that name; ``uid`` ("": any) tells a remembered pod from its successor."""
        return self.api.get(pod_path(namespace, name), deadline, f"read pod {namespace}/{name}")

    def namespace(self, name: str, deadline: Deadline) -> Mapping[str, Any] | None:
        return self.api.get(namespace_path(name), deadline, f"read namespace {name}")

    def node(self, name: str, deadline: Deadline) -> Mapping[str, Any] | None:
        return self.api.get(node_path(name), deadline, f"read node {name}")

    def why_over(self, kind: str, namespace: str, name: str, deadline: Deadline) -> str:
        """Why an identity that keeps addresses (model.lasting) will not come again; "" if it may."""
        from cni_calico.datastore.kubernetes.identities import why_over

        return why_over(self.api, kind, namespace, name, deadline)


def count_objects(api: KubernetesAPI, path: str, deadline: Deadline, doing: str) -> int:
    """The number of objects in a collection, counted by fetching only one of them. Raises DatastoreError,
    DeadlineExceeded.
    """
    reply = api.send(ApiRequest("GET", f"{path}?limit=1", doing), deadline)
    metadata = reply.document.get("metadata") or {}
    return len(reply.document.get("items") or ()) + int(metadata.get("remainingItemCount") or 0)


def is_pod(obj: Mapping[str, Any], uid: str) -> bool:
    """Whether a pod is the one for which the runtime passes ``uid``.

    A static pod has a different UID at the API server, where an annotation of its mirror pod has the runtime's.
    """
    metadata = obj.get("metadata") or {}
    return uid in ("", metadata.get("uid"), (metadata.get("annotations") or {}).get(MIRROR))
