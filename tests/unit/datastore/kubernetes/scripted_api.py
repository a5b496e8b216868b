"""The door to an API server that misbehaves as told, and what it answers."""

from __future__ import annotations

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.deadline import Deadline
from cni_calico.model.access import KubernetesAccess
from cni_calico.model.keys import HandleKey
from tests.fakes.scripted_http import Scripted

ENOUGH_S = 5.0


NOW = {"retry-after": "0"}


HANDLE = HandleKey("net.one")
FORBIDDEN = 'pods "x" is forbidden: User "u" cannot get resource "pods" in API group ""'


def handle(version: str, count: int = 1, **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "IPAMHandle",
        "metadata": {"name": "net.one", "uid": "u-1", "resourceVersion": version},
        "spec": {"handleID": "net.one", "block": {"10.65.0.0/26": count}, "deleted": False, **spec},
    }


def status(reason: str, code: int, **details: str) -> tuple[int, dict[str, object]]:
    return code, {"kind": "Status", "reason": reason, "message": f"{reason} told", "details": details}


def api_of(server: Scripted, **access: object) -> KubernetesAPI:
    return KubernetesAPI(KubernetesAccess(api_root=server.url, token="t", **access))


def get(server: Scripted, seconds: float = ENOUGH_S) -> object:
    return api_of(server).get("/x", Deadline.after(seconds), "read x")


def post(server: Scripted, seconds: float = ENOUGH_S) -> object:
    return api_of(server).send(ApiRequest("POST", "/x", "make x", body={"a": 1}), Deadline.after(seconds)).document
