"""Which virtual machine of KubeVirt a pod runs, as Kubernetes says now.

Rule: a pod counts as a machine's if its controller is a VirtualMachineInstance. From then on whatever cannot be read,
or has another UID than is referred to, is an error: an address given to the wrong machine would be its address for as
long as that one lives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.datastore.kubernetes import kubevirt
from cni_calico.datastore.kubernetes.objects import KubernetesObjects
from cni_calico.errors import DatastoreDenied, DatastoreError, DatastoreUnsupported, FeatureDisabled, TryAgain
from cni_calico.model.keys import IPAMConfigKey
from cni_calico.model.lasting import MIGRATION_UID, VM_UID, VMI_NAME, VMI_UID, Identity, LastingKind
from cni_calico.plugin.attachment import Attachment
from cni_calico.plugin.call.task import Task

MIGRATION_JOB = "kubevirt.io/migrationJobUID"  # the label of the pod to which a machine is to come
PERSISTENCE = "kubeVirtVMAddressPersistence"


@dataclass(frozen=True, slots=True)
class Machine:
    """``is_target``: the machine runs in another pod, and is to come to this one."""

    identity: Identity
    is_target: bool = False


def read_machine(task: Task, attachment: Attachment) -> Machine | None:
    """The machine of a pod that is being added; None if it has none, or machines keep no addresses here. Raises
    TryAgain, FeatureDisabled, DatastoreError.
    """
    pod = _read_pod(task, attachment)
    if pod is None:
        raise TryAgain(
            f"cannot set up the network of pod {_shown(attachment)}: it does not exist in Kubernetes",
            details="it has been deleted; or the API server that is asked is another cluster's",
        )
    reference = _instance_of(pod)
    if reference is None:
        return None
    migration = ((pod.get("metadata") or {}).get("labels") or {}).get(MIGRATION_JOB)
    if not keeps_addresses(task):
        if migration:
            raise FeatureDisabled(
                "live migration target pod is not allowed when KubeVirtVMAddressPersistence is disabled",
                details=f"pod {_shown(attachment)} would get an address that its machine does not have; "
                "'calicoctl ipam configure --kubevirt-ip-persistence=Enabled' allows migrations",
            )
        return None
    attributes = _read_attributes(task, attachment, reference)
    if migration:
        attributes[MIGRATION_UID] = str(migration)
    name = attributes[VMI_NAME]
    return Machine(
        Identity(LastingKind.MACHINE, attachment.network, attachment.namespace, name, attributes), bool(migration)
    )


def find_identity(task: Task, attachment: Attachment) -> Identity | None:
    """The identity of a pod that is being removed, by the pod alone; None if it has none, or the pod is gone. Raises
    DatastoreError.
    """
    pod = _read_pod(task, attachment)
    reference = None if pod is None else _instance_of(pod)
    if reference is None or not keeps_addresses(task):
        return None
    return Identity(LastingKind.MACHINE, attachment.network, attachment.namespace, str(reference.get("name") or ""))


def keeps_addresses(task: Task) -> bool:
    """Whether machines keep their addresses, which is what an absent setting means too. Raises DatastoreError."""
    found = task.fresh_store.get(IPAMConfigKey(), task.deadline)
    return found is None or found.value.get(PERSISTENCE) != "Disabled"


def _read_pod(task: Task, attachment: Attachment) -> Mapping[str, Any] | None:
    """From the API server itself: what is remembered of a pod may lack its newest labels."""
    objects = KubernetesObjects(task.kubernetes.api)
    return objects.pod(attachment.namespace, attachment.workload, task.call.args.pod_uid, task.deadline)


def _instance_of(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    reference = kubevirt.owner_named(pod, "VirtualMachineInstance")
    return reference if reference is not None and reference.get("controller") is True else None


def _read_attributes(task: Task, attachment: Attachment, reference: Mapping[str, Any]) -> dict[str, str]:
    api, namespace, deadline = task.kubernetes.api, attachment.namespace, task.deadline
    try:
        name, uid = str(reference.get("name") or ""), str(reference.get("uid") or "")
        instance = kubevirt.read_instance(api, namespace, name, deadline)
        _require(attachment, instance, f"VirtualMachineInstance {namespace}/{name}", uid)
        attributes = {VMI_NAME: name, VMI_UID: uid}
        owner = None if instance is None else kubevirt.owner_named(instance, "VirtualMachine")
        if owner is not None:
            called, of = str(owner.get("name") or ""), str(owner.get("uid") or "")
            machine = kubevirt.read_machine(api, namespace, called, deadline)
            _require(attachment, machine, f"VirtualMachine {namespace}/{called}", of)
            attributes[VM_UID] = of
    except DatastoreError as e:
        details = e.details
        if isinstance(e, DatastoreDenied | DatastoreUnsupported):
            details = (
                "the role calico-cni-plugin must allow to get virtualmachines and virtualmachineinstances of the API "
                "group kubevirt.io, as the manifests have it"
            )
        text = f"cannot set up the network of pod {_shown(attachment)}, which runs a virtual machine: {e.message}"
        raise type(e)(text, details=details) from e
    return attributes


def _require(attachment: Attachment, found: Mapping[str, Any] | None, what: str, uid: str) -> None:
    about = f"cannot set up the network of pod {_shown(attachment)}, which runs a virtual machine"
    if found is None:
        raise TryAgain(
            f"{about}: there is no {what}", details="the pod's owner reference names it; it has been deleted"
        )
    there = (found.get("metadata") or {}).get("uid")
    if there != uid:
        raise TryAgain(
            f"{about}: {what} is another one now",
            details=f"the pod belongs to the one with UID {uid or '(none)'}, and this one has {there}",
        )


def _shown(attachment: Attachment) -> str:
    return f"{attachment.namespace}/{attachment.workload}"
