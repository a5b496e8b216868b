"""PURE: what is known of a pod that may have addresses.

Rule: what a pod does not say is unknown, and counts for its having an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from cni_calico.model.kubernetes.pods import CONTAINER_ID, POD_IP, pod_networks
from cni_calico.model.resources import Address


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that exists, and the sandbox it runs in; ``container_id`` is "" if that is unknown."""

    container_id: str = ""
    addresses: frozenset[Address] = frozenset()
    has_let_go: bool = False

    def has_others(self, address: Address) -> bool:
        """Whether it has been given addresses, and not this one."""
        return bool(self.container_id and self.addresses) and address not in self.addresses


def has_let_go(obj: Mapping[str, Any]) -> bool:
    """Whether a pod will never use its addresses again: it was evicted, or has run to its end and its DEL is done."""
    status, annotations = obj.get("status") or {}, (obj.get("metadata") or {}).get("annotations") or {}
    if status.get("phase") == "Failed" and status.get("reason") == "Evicted":
        return True
    return status.get("phase") in ("Failed", "Succeeded") and annotations.get(POD_IP) == ""


def parse_pod(obj: Mapping[str, Any], node: str | None) -> Pod | None:
    """What a pod object in Kubernetes says.

    None if the pod is on a node other than the one that Kubernetes calls ``node`` (None: that name is unknown). A pod
    that is on no node yet, or whose annotations are missing or cannot be read, says nothing.
    """
    bound = (obj.get("spec") or {}).get("nodeName") or ""
    if bound and node is not None and bound != node:
        return None
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    if has_let_go(obj):
        return Pod(has_let_go=True)
    try:
        addresses = frozenset(ip_network(text).network_address for text in pod_networks(obj))
    except ValueError:
        return Pod()
    return Pod(str(annotations.get(CONTAINER_ID) or "") if bound else "", addresses)
