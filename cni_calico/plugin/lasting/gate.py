"""Whether a call can be about an address that outlasts its pod. For all others nothing else here is imported.

Rule: nothing is read for the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni_calico.plugin.attachment import KUBERNETES, Attachment
from cni_calico.plugin.call.task import Task

if TYPE_CHECKING:
    from cni_calico.plugin.annotations import PodRequest

LAUNCHER = "virt-launcher-"  # how the names of the pods begin in which KubeVirt runs its machines


def may_last(attachment: Attachment, task: Task, wish: PodRequest | None = None) -> bool:
    """Whether the pod may be a virtual machine's, in a cluster that can be asked; or, with ``wish``, asks for addresses
    that outlast it, as a container does that has a name in a network of such.
    """
    if attachment.orchestrator != KUBERNETES:
        return wish is not None and task.conf.sticky_addresses and bool(attachment.name)
    if wish is not None and wish.sticky:
        return True
    return attachment.workload.startswith(LAUNCHER) and asks_kubernetes(task)


def asks_kubernetes(task: Task) -> bool:
    """Whether the network configuration says how Kubernetes is reached."""
    config = task.conf.datastore
    return config.type == "kubernetes" or bool(config.kubernetes.kubeconfig or config.kubernetes.api_root)
