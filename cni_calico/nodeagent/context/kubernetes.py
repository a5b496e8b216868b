"""What start-up reads from Kubernetes besides the datastore, if there is a Kubernetes at all.

Rule: the node's own object and two ConfigMaps, nothing else. A ConfigMap is read once, because only start-up uses it,
while the node is read again and again; a ConfigMap that may not be read counts as absent, because not every
installation grants that right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import quote

from cni_calico.daemon.fresh import Fresh
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied, NodeNotSetUp
from cni_calico.model.resources import Address, Network

_CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps/"
_PATCH = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class KubernetesFacts:
    """``kubeadm`` is the ClusterConfiguration text of ConfigMap kube-system/kubeadm-config, None without one;
    ``rancher``: whether ConfigMap kube-system/full-cluster-state exists; ``internal_ips`` are in the node's own order.
    """

    internal_ips: tuple[Address, ...] = ()
    kubeadm: str | None = None
    rancher: bool = False
    pod_cidrs: tuple[Network, ...] = ()


class ApiNode:
    """The Kubernetes node this agent runs on, of the API server."""

    def __init__(self, api: KubernetesAPI, name: str) -> None:
        self.api = api
        self._name = name
        self._config_maps: dict[str, Mapping[str, Any] | None] = {}

    def read_facts(self, deadline: Deadline) -> KubernetesFacts:
        """Raises DatastoreError, NodeNotSetUp."""
        node = self.api.get(f"/api/v1/nodes/{quote(self._name)}", deadline, f"read Kubernetes node {self._name}")
        if node is None:
            raise NodeNotSetUp(
                f"cannot set up node {self._name}: Kubernetes has no node of that name",
                details="set NODENAME to the name that kubectl get nodes shows (spec.nodeName), or CALICO_K8S_NODE_REF",
            )
        kubeadm = self._config_map("kubeadm-config", deadline)
        data = (kubeadm or {}).get("data") or {}
        return KubernetesFacts(
            internal_ips=parse_internal_ips(node),
            kubeadm=None if kubeadm is None else str(data.get("ClusterConfiguration", "")),
            rancher=self._config_map("full-cluster-state", deadline) is not None,
            pod_cidrs=parse_pod_cidrs(node),
        )

    def _config_map(self, name: str, deadline: Deadline) -> Mapping[str, Any] | None:
        if name not in self._config_maps:
            try:
                found = self.api.get(_CONFIG_MAPS + name, deadline, f"read ConfigMap kube-system/{name}")
            except DatastoreDenied:
                found = None
            self._config_maps[name] = found
        return self._config_maps[name]

    def set_network_unavailable(self, unavailable: bool, deadline: Deadline) -> None:
        """Set the node's condition NetworkUnavailable (reason CalicoIsUp or CalicoIsDown). Raises DatastoreError."""
        now = Fresh().timestamp()
        condition = {
            "type": "NetworkUnavailable",
            "status": "True" if unavailable else "False",
            "reason": "CalicoIsDown" if unavailable else "CalicoIsUp",
            "message": f"Calico is {'shutting down' if unavailable else 'running'} on this node",
            "lastTransitionTime": now,
            "lastHeartbeatTime": now,
        }
        self.api.send(
            ApiRequest(
                "PATCH",
                f"/api/v1/nodes/{quote(self._name)}/status",
                f"set condition NetworkUnavailable of Kubernetes node {self._name}",
                body={"status": {"conditions": [condition]}},
                content_type=_PATCH,
            ),
            deadline,
        )


def parse_internal_ips(node: Mapping[str, Any]) -> tuple[Address, ...]:
    """PURE: the InternalIP addresses of a Kubernetes node; invalid ones are left out."""
    found = []
    for entry in (node.get("status") or {}).get("addresses") or ():
        if entry.get("type") == "InternalIP":
            try:
                found.append(ip_address(entry.get("address", "")))
            except ValueError:
                continue
    return tuple(found)


def parse_pod_cidrs(node: Mapping[str, Any]) -> tuple[Network, ...]:
    """PURE: the node's pod networks."""
    spec = node.get("spec") or {}
    found = []
    for text in spec.get("podCIDRs") or filter(None, [spec.get("podCIDR")]):
        try:
            found.append(ip_network(text, strict=False))
        except ValueError:
            continue
    return tuple(found)
