"""Whether an identity for which addresses are kept may come again, as Kubernetes says now.

Rule: in doubt it may. Only what is answered counts: an object that is gone, or on its way.
"""

from __future__ import annotations

from cni_calico.datastore.kubernetes import kubevirt
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.layout import namespace_path, quote
from cni_calico.deadline import Deadline
from cni_calico.model.lasting import LastingKind


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
    if not text.isdecimal() or first <= int(text) < first + count:
        return ""
    return f"StatefulSet {namespace}/{called} has no pod {text} any more"
