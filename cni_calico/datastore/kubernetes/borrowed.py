"""Records stored in Kubernetes' own objects: a Pod's endpoint, a Node; and Profiles, which are read-only.

Rule: only Calico's annotations are written, with one patch of the ``status`` subresource, and compare-and-swap looks at
them alone: the rest of a pod or node changes all the time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cni_calico.datastore.interface import Document, Revision, Versioned
from cni_calico.datastore.kubernetes.answers import ApiReply
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.custom import conflict
from cni_calico.datastore.kubernetes.layout import (
    namespace_path,
    node_path,
    object_path_of_kind,
    pod_of,
    pod_path,
    read_pod,
    service_account_path,
)
from cni_calico.datastore.kubernetes.revision import node_state, pod_state, render_revision, state_of
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreError, DatastoreUnsupported, OutcomeUnknown, RecordRefused, TryAgain
from cni_calico.model.documents.codec import describe
from cni_calico.model.documents.fields import JSON
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes import nodes as crd_nodes
from cni_calico.model.kubernetes import pods as crd_pods

_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
_ATTEMPTS = 5


def _uid(obj: JSON) -> str:
    return str((obj.get("metadata") or {}).get("uid") or "")


# -- pods -------------------------------------------------------------------------------------------------------------


def plan_pod_patch(uid: str, state: str, annotations: Mapping[str, str]) -> list[dict[str, Any]]:
    """A JSON patch that sets annotations if the pod is the intended one and its endpoint is in that state."""
    patch: list[dict[str, Any]] = []
    if uid:
        patch.append({"op": "test", "path": "/metadata/uid", "value": uid})
    known = json.loads(state) if state else None
    if known is None:
        patch.append({"op": "test", "path": "/metadata/annotations", "value": None})
        patch.append({"op": "add", "path": "/metadata/annotations", "value": dict(annotations)})
        return patch
    for name, value in zip((crd_pods.CONTAINER_ID, crd_pods.POD_IPS), known, strict=True):
        patch.append({"op": "test", "path": _annotation(name), "value": value})
    patch += [{"op": "add", "path": _annotation(name), "value": value} for name, value in annotations.items()]
    return patch


def _annotation(name: str) -> str:
    return "/metadata/annotations/" + name.replace("~", "~0").replace("/", "~1")


class PodRecords:
    """WorkloadEndpoints. ``prefix`` is the prefix of host interfaces' names."""

    def __init__(self, api: KubernetesAPI, prefix: str) -> None:
        self._api = api
        self._prefix = prefix

    def read(self, key: ResourceKey, deadline: Deadline) -> Versioned | None:
        try:
            _, pod = pod_of(key)
        except DatastoreUnsupported:
            return None
        obj = self._api.get(pod_path(key.namespace, pod), deadline, f"read {describe(key)}")
        return None if obj is None else self._versioned(key, obj)

    def create(self, key: ResourceKey, value: Document, deadline: Deadline) -> Versioned:
        """Raises CommitConflict if the pod's endpoint already belongs to a container, DatastoreError
        without the pod.
        """
        current = self._require(key, deadline)
        if current.value["spec"].get("containerID"):
            raise conflict(key, current)
        return self.update(key, value, current.revision, current.uid, deadline)

    def update(
        self, key: ResourceKey, value: Document, revision: Revision | None, uid: str, deadline: Deadline
    ) -> Versioned:
        """Raises CommitConflict, DatastoreError."""
        annotations = crd_pods.endpoint_annotations(value)
        return self._patch(key, state_of(revision or ""), uid, annotations, deadline, f"write {describe(key)}")

    def delete(self, key: ResourceKey, revision: Revision | None, uid: str, deadline: Deadline) -> Versioned | None:
        """The pod afterwards; None if there was nothing to do. Raises CommitConflict, DatastoreError."""
        state = state_of(revision or "")
        known = json.loads(state) if state else None
        if not known or not (known[0] or known[1]):
            return None  # nothing is recorded
        cleared = crd_pods.cleared_annotations()
        return self._patch(key, state, uid, cleared, deadline, f"clear {describe(key)}")

    def _require(self, key: ResourceKey, deadline: Deadline) -> Versioned:
        _, pod = pod_of(key)
        current = self.read(key, deadline)
        if current is None:
            raise DatastoreError(
                f"cannot write {describe(key)}: pod {key.namespace}/{pod} does not exist, or is not on this node",
                details="in the Kubernetes datastore an endpoint is recorded on its pod",
            )
        return current

    def _versioned(self, key: ResourceKey, obj: JSON) -> Versioned | None:
        found = read_pod(obj, self._prefix)
        if found is None or found[0] != key:
            return None
        return Versioned(key, found[1], render_revision(obj, pod_state(obj)), _uid(obj))

    def _patch(
        self, key: ResourceKey, state: str, uid: str, annotations: Mapping[str, str], deadline: Deadline, doing: str
    ) -> Versioned:
        path = pod_path(key.namespace, pod_of(key)[1])
        body = plan_pod_patch(uid, state, annotations)
        reply = self._api.send(
            ApiRequest("PATCH", f"{path}/status", doing, body=body, content_type=_JSON_PATCH, expect=(404, 409, 422)),
            deadline,
        )
        if reply.status < 400:
            stored = self._versioned(key, reply.document)
            if stored is None:
                raise DatastoreError(f"cannot {doing}: pod {path} is not this node's")
            return stored
        raise self._contradiction(key, state, uid, reply, deadline, doing)

    def _contradiction(
        self, key: ResourceKey, state: str, uid: str, reply: ApiReply, deadline: Deadline, doing: str
    ) -> DatastoreError:
        current = self.read(key, deadline)
        if current is not None and state_of(current.revision) == state and current.uid == (uid or current.uid):
            return RecordRefused(f"cannot {doing}: {reply.message}")
        if reply.repeated:
            return OutcomeUnknown(f"cannot {doing}: an earlier attempt failed and may have been applied")
        return conflict(key, current)


# -- nodes ------------------------------------------------------------------------------------------------------------


class NodeRecords:
    """Nodes of Calico: annotations of the Kubernetes Node."""

    def __init__(self, api: KubernetesAPI) -> None:
        self._api = api

    def read(self, key: ResourceKey, deadline: Deadline) -> Versioned | None:
        obj = self._api.get(node_path(key.name), deadline, f"read {describe(key)}")
        return None if obj is None else self._versioned(key, obj)

    def create(self, key: ResourceKey, value: Document, deadline: Deadline) -> Versioned:
        current = self.read(key, deadline)
        if current is not None:
            raise conflict(key, current)
        raise DatastoreError(
            f"cannot create {describe(key)}: there is no Kubernetes node of that name",
            details="the kubelet registers it; nodename must be the name that 'kubectl get nodes' shows",
        )

    def update(
        self, key: ResourceKey, value: Document, revision: Revision | None, uid: str, deadline: Deadline
    ) -> Versioned:
        """Raises CommitConflict, DatastoreError."""
        doing = f"write {describe(key)}"
        for _ in range(_ATTEMPTS):
            obj = self._api.get(node_path(key.name), deadline, doing)
            if obj is None:
                raise conflict(key, None)
            if node_state(obj) != state_of(revision or "") or _uid(obj) != (uid or _uid(obj)):
                raise conflict(key, self._versioned(key, obj))
            reply = self._patch(key, value, obj, deadline, doing)
            if reply.status < 400:
                return self._versioned(key, reply.document)
            if reply.repeated:
                raise OutcomeUnknown(f"cannot {doing}: an earlier attempt failed and may have been applied")
        raise TryAgain(f"cannot {doing}: it keeps changing")

    def refuse(self, key: ResourceKey) -> DatastoreUnsupported:
        return DatastoreUnsupported(
            f"cannot delete {describe(key)}: it is the Kubernetes node itself", details="use kubectl delete node"
        )

    def _patch(self, key: ResourceKey, value: Document, obj: JSON, deadline: Deadline, doing: str) -> ApiReply:
        old = (obj.get("metadata") or {}).get("annotations") or {}
        new = crd_nodes.node_annotations(value, old)
        changes: dict[str, str | None] = {name: text for name, text in new.items() if old.get(name) != text}
        changes.update({name: None for name in old if name not in new})
        metadata = {"resourceVersion": obj["metadata"]["resourceVersion"], "annotations": changes}
        return self._api.send(
            ApiRequest(
                "PATCH",
                f"{node_path(key.name)}/status",
                doing,
                body={"metadata": metadata},
                content_type=_MERGE_PATCH,
                expect=(404, 409),
            ),
            deadline,
        )

    def _versioned(self, key: ResourceKey, obj: JSON) -> Versioned:
        return Versioned(key, crd_nodes.read_node(obj)[1], render_revision(obj, node_state(obj)), _uid(obj))


# -- profiles ---------------------------------------------------------------------------------------------------------


class ProfileRecords:
    """Profiles derived from Namespaces and ServiceAccounts."""

    def __init__(self, api: KubernetesAPI) -> None:
        self._api = api

    def read(self, key: ResourceKey, deadline: Deadline) -> Versioned | None:
        kind, _, rest = key.name.partition(".")
        namespace, _, account = rest.partition(".")
        doing = f"read {describe(key)}"
        if kind == "kns" and namespace:
            obj = self._api.get(namespace_path(rest), deadline, doing)
            read = crd_pods.read_namespace
        elif kind == "ksa" and account:
            obj = self._api.get(service_account_path(namespace, account), deadline, doing)
            read = crd_pods.read_service_account
        else:
            return None
        return None if obj is None else Versioned(key, read(obj)[1], render_revision(obj, ""), _uid(obj))

    def read_namespace(self, key: ResourceKey, deadline: Deadline) -> Versioned | None:
        """The Namespace itself as a document."""
        obj = self._api.get(namespace_path(key.name), deadline, f"read namespace {key.name}")
        return None if obj is None else Versioned(key, obj, render_revision(obj, ""), _uid(obj))

    def read_own(self, key: ResourceKey, deadline: Deadline) -> Versioned | None:
        """An object of Kubernetes in a namespace, as a document."""
        obj = self._api.get(object_path_of_kind(key), deadline, f"read {key.kind} {key.namespace}/{key.name}")
        return None if obj is None else Versioned(key, obj, render_revision(obj, ""), _uid(obj))

    def refuse(self, key: ResourceKey) -> DatastoreUnsupported:
        return DatastoreUnsupported(
            f"cannot write {describe(key)}: in the Kubernetes datastore profiles are derived",
            details="they follow from namespaces and service accounts; use a GlobalNetworkPolicy instead",
        )
