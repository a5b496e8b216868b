"""Whether an identity for which addresses are kept may come again, as Kubernetes says now.

Rule: in doubt it may. Only what is answered counts: an object that is gone, or on its way.
"""

from __future__ import annotations

from cni_calico.datastore.kubernetes import kubevirt
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.deadline import Deadline
from cni_calico.model.lasting import Kind


def why_over(api: KubernetesAPI, kind: str, namespace: str, name: str, deadline: Deadline) -> str:
    """The reason; "" if it may come again. Raises DatastoreError: then that is unknown."""
    if kind == Kind.MACHINE:
        over = kubevirt.is_over(api, namespace, name, deadline)
        return f"virtual machine {namespace}/{name} is gone" if over else ""
    return ""
