"""What start-up asks of Kubernetes beside the datastore, when there is a Kubernetes at all.

Rule: an interface and its values, no client; who runs under Kubernetes passes an implementation in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cni_calico.deadline import Deadline
from cni_calico.model.host import Address


@dataclass(frozen=True, slots=True)
class KubernetesFacts:
    """``kubeadm`` is the ClusterConfiguration text of ConfigMap kube-system/kubeadm-config, None without one;
    ``rancher`` whether ConfigMap kube-system/full-cluster-state exists; ``internal_ips`` in the node's own order.
    """

    internal_ips: tuple[Address, ...] = ()
    kubeadm: str | None = None
    rancher: bool = False


class KubernetesNode(Protocol):
    """The Kubernetes node this agent runs on."""

    def read_facts(self, deadline: Deadline) -> KubernetesFacts:
        """Raises DatastoreError. ConfigMaps that may not be read count as absent."""

    def set_network_unavailable(self, unavailable: bool, deadline: Deadline) -> None:
        """Set the node's condition NetworkUnavailable (reason CalicoIsUp or CalicoIsDown). Raises DatastoreError."""
