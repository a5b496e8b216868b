"""Whether an identity for which addresses are kept may come again, as Kubernetes says now.

Rule: in doubt it may. Only what is answered counts: an object that is gone, or on its way, or a pod that is there and
does not ask for it any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.datastore.kubernetes import kubevirt
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.layout import namespace_path, pod_path, quote
from cni_calico.deadline import Deadline
from cni_calico.model.lasting import LastingKind
from cni_calico.model.names import IDENTITY, STICKY


def why_over(api: KubernetesAPI, kind: str, namespace: str, name: str, deadline: Deadline) -> str:
    """The reason; "" if it may come again. Raises DatastoreError: then that is unknown."""
    if kind == LastingKind.MACHINE:
        over = kubevirt.is_over(api, namespace, name, deadline)
        return f"virtual machine {namespace}/{name} is gone" if over else ""
    if kind == LastingKind.STATEFUL:
        return _why_stateful_over(api, namespace, name, deadline)
    if api.get(namespace_path(namespace), deadline, f"read namespace {namespace}") is None:
        return f"namespace {namespace} is gone"
    return ""


def _why_stateful_over(api: KubernetesAPI, namespace: str, name: str, deadline: Deadline) -> str:
    """``name``: "<StatefulSet>.<ordinal>"."""
    called, _, text = name.rpartition(".")
    path = f"/apis/apps/v1/namespaces/{quote(namespace)}/statefulsets/{quote(called)}"
    found = api.get(path, deadline, f"read StatefulSet {namespace}/{called}")
    if found is None:
        return f"StatefulSet {namespace}/{called} is gone"
    spec = found.get("spec") or {}
    first = (spec.get("ordinals") or {}).get("start") or 0
    replicas = spec.get("replicas")
    count = 1 if replicas is None else replicas
    if not text.isdecimal():
        return ""
    if first <= int(text) < first + count:
        return _why_unwanted(api, namespace, called, text, deadline)
    return f"StatefulSet {namespace}/{called} has no pod {text} any more"


def _why_unwanted(api: KubernetesAPI, namespace: str, called: str, ordinal: str, deadline: Deadline) -> str:
    """Of a StatefulSet's pod: its wish is read as plugin.annotations does. One that is to come may have another."""
    name = f"{called}-{ordinal}"
    pod = api.get(pod_path(namespace, name), deadline, f"read pod {namespace}/{name}")
    owner = None if pod is None else kubevirt.owner_named(pod, "StatefulSet", group="apps/v1")
    if pod is None or owner is None or owner.get("name") != called:
        return ""
    own = _annotations(pod)
    wish = own.get(STICKY) or ("named" if own.get(IDENTITY) else "")
    if not wish:
        above = api.get(namespace_path(namespace), deadline, f"read namespace {namespace}")
        wish = _annotations(above or {}).get(STICKY) or "false"
    elif own.get(IDENTITY):
        wish = "false"  # it has the addresses of that name
    return f"pod {namespace}/{name} does not ask for it any more" if wish == "false" else ""


def _annotations(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return (document.get("metadata") or {}).get("annotations") or {}
