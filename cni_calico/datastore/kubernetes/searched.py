"""Kubernetes' objects for a role that may list pods and nodes but not get one, as upstream's role of v3.0 says.

Rule: what may be got is got; only after a refusal is the object looked for in a list of nothing but its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.layout import CORE_ROOT, namespace_path
from cni_calico.datastore.kubernetes.objects import KubernetesObjects
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied

Object = Mapping[str, Any]


class SearchedObjects(KubernetesObjects):
    """Of the janitor, which asks for pods and nodes only."""

    def pod(self, namespace: str, name: str, uid: str, deadline: Deadline) -> Object | None:
        path = f"{namespace_path(namespace)}/pods"
        return self._read(
            lambda: super(SearchedObjects, self).pod(namespace, name, uid, deadline), path, name, deadline
        )

    def node(self, name: str, deadline: Deadline) -> Object | None:
        path = f"{CORE_ROOT}/nodes"
        return self._read(lambda: super(SearchedObjects, self).node(name, deadline), path, name, deadline)

    def _read(self, get: Callable[[], Object | None], path: str, name: str, deadline: Deadline) -> Object | None:
        try:
            return get()
        except DatastoreDenied as refused:
            url = f"{path}?fieldSelector=metadata.name%3D{quote(name, safe='')}"
            try:
                reply = self.api.send(ApiRequest("GET", url, f"look for {name} in {path}"), deadline)
            except DatastoreDenied:
                raise refused from None  # it names the right that the manifests grant
            items: list[Object] = list(reply.document.get("items") or ())
            return items[0] if items else None
