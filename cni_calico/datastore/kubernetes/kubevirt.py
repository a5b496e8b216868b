"""KubeVirt's objects, as far as a virtual machine's addresses depend on them. They are read, never written.

Rule: one GET each. An API server that does not know the kind says nothing about the machine (it may be starting up):
that is an error, so that nothing is released for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.deadline import Deadline

ROOT = "/apis/kubevirt.io/v1"
MACHINES, INSTANCES, MIGRATIONS = "virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations"
KubevirtObject = Mapping[str, Any]


def object_path(plural: str, namespace: str, name: str) -> str:
    return f"{ROOT}/namespaces/{quote(namespace, safe='')}/{plural}/{quote(name, safe='')}"


def read_machine(api: KubernetesAPI, namespace: str, name: str, deadline: Deadline) -> KubevirtObject | None:
    """A VirtualMachine; None if it does not exist. Raises DatastoreError, DeadlineExceeded."""
    return api.get(object_path(MACHINES, namespace, name), deadline, f"read VirtualMachine {namespace}/{name}")


def read_instance(api: KubernetesAPI, namespace: str, name: str, deadline: Deadline) -> KubevirtObject | None:
    """A VirtualMachineInstance; None if it does not exist. Raises DatastoreError, DeadlineExceeded."""
    what = f"read VirtualMachineInstance {namespace}/{name}"
    return api.get(object_path(INSTANCES, namespace, name), deadline, what)


def owner_named(obj: KubevirtObject, kind: str, *, group: str = "kubevirt.io/v1") -> Mapping[str, Any] | None:
    """The reference to an object's owner of this kind; None if it has no such owner."""
    listed = (obj.get("metadata") or {}).get("ownerReferences") or ()
    for reference in listed if isinstance(listed, (list, tuple)) else ():
        if isinstance(reference, Mapping) and reference.get("kind") == kind and reference.get("apiVersion") == group:
            return reference
    return None


def is_leaving(obj: KubevirtObject | None) -> bool:
    """Whether an object is gone, or on its way."""
    return obj is None or bool((obj.get("metadata") or {}).get("deletionTimestamp"))


def is_machine_over(instance: KubevirtObject | None, machine: KubevirtObject | None) -> bool:
    """Whether a virtual machine will never run again: ``machine`` is the VirtualMachine that owns its instance, or has
    its name; one that is alone decides for itself.
    """
    if instance is not None and owner_named(instance, "VirtualMachine") is None:
        return is_leaving(instance)
    if machine is None:
        return is_leaving(instance)
    return is_leaving(machine)


def is_over(api: KubernetesAPI, namespace: str, name: str, deadline: Deadline) -> bool:
    """Whether nothing of a virtual machine exists any more that would run again. Raises DatastoreError."""
    instance = read_instance(api, namespace, name, deadline)
    owner = None if instance is None else owner_named(instance, "VirtualMachine")
    if instance is not None and owner is None:
        return is_leaving(instance)
    called = name if owner is None else str(owner.get("name") or name)
    return is_machine_over(instance, read_machine(api, namespace, called, deadline))
