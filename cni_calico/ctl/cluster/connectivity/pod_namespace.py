"""The namespace of a check in a Kubernetes cluster, and its pods.

Rule: what is there already counts as made; whoever waits for a pod gets its kubelet's words if it does not come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from cni_calico.ctl.cluster.connectivity import objects
from cni_calico.ctl.session import CommandFailed
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.deadline import Deadline

NAMESPACES = "/api/v1/namespaces"
LOOK_S = 0.5
_START_S = 60.0  # until a pod runs
_FORBIDDEN, _EXISTS = 403, 409


@dataclass(frozen=True, slots=True)
class PodPlace:
    node: str
    image: str


class CheckNamespace:
    """``name``: of the namespace."""

    def __init__(self, api: KubernetesAPI, deadline: Deadline, name: str) -> None:
        self.api = api
        self.deadline = deadline
        self.name = name

    def path(self, what: str, name: str = "", *, group: str = "/api/v1") -> str:
        return f"{group}/namespaces/{self.name}/{what}" + (f"/{name}" if name else "")

    def get(self, path: str) -> Mapping[str, Any]:
        return self.api.send(ApiRequest("GET", path, f"read {path}"), self.deadline).document

    def list_items(self, path: str) -> list[Mapping[str, Any]]:
        return list(self.get(path).get("items") or ())

    def create(self, path: str, document: Mapping[str, Any]) -> None:
        what = f"create {document['kind']} {document['metadata']['name']}"
        self.api.send(ApiRequest("POST", path, what, body=document, expect=(_EXISTS,)), self.deadline)

    def create_pod(self, document: Mapping[str, Any]) -> None:
        """Create the pod, again if need be: a new namespace gets its service account only after a moment, and until
        then pods are refused.
        """
        path, what = self.path("pods"), f"create Pod {document['metadata']['name']}"
        end = Deadline.after(_START_S)
        while True:
            expected = (_EXISTS,) if end.expired() else (_EXISTS, _FORBIDDEN)
            if (
                self.api.send(ApiRequest("POST", path, what, body=document, expect=expected), self.deadline).status
                != _FORBIDDEN
            ):
                return
            self.pause(what)

    def await_pod(self, name: str, is_far_enough: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        """Raises CommandFailed with what its kubelet says."""
        end = Deadline.after(_START_S)
        while True:
            pod = self.get(self.path("pods", name))
            if is_far_enough(pod):
                return pod
            why = objects.why_not_running(pod)
            if end.expired() or pod["status"].get("phase") == "Failed":
                why = why or self._last_event(name) or "its kubelet says nothing about it"
                raise CommandFailed(f"the network does not work: pod {name} on {pod['spec']['nodeName']}: {why}")
            self.pause(f"start pod {name}")

    def log(self, pod: str) -> str:
        return self.api.text(self.path("pods", f"{pod}/log"), self.deadline, "read the log of a pod")

    def pause(self, doing: str) -> None:
        time.sleep(min(LOOK_S, self.deadline.require(doing)))

    def _last_event(self, pod: str) -> str:
        path = self.path("events") + f"?fieldSelector={quote(f'involvedObject.name={pod},type=Warning')}"
        events = self.list_items(path)
        return f"{events[-1].get('reason')}: {events[-1].get('message')}" if events else ""
