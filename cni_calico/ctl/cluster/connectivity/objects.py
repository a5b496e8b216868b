"""PURE: the objects that a check makes in a Kubernetes cluster, all in one namespace of its own.

Rule: the pods run the image of the node's own calico-node, which is there already, and may do nothing but send packets;
those that look at a host's wires, which are made where encryption is enabled, nothing but that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.ctl.cluster.connectivity.findings import CLOSED_PORT, OPEN_PORT

LABEL = "cni-calico.io/check"
SERVER, CLIENT = "server", "client"
LONGEST_S = 600  # if a check is killed, the kubelets end its pods after this time
_NOBODY = 65534


def namespace(name: str, *, of_hosts: bool = False) -> dict[str, Any]:
    """``of_hosts``: there will be pods in their hosts' network."""
    labels = {LABEL: "true", "pod-security.kubernetes.io/enforce": "privileged" if of_hosts else "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def pod(role: str, node: str, image: str, task: str) -> dict[str, Any]:
    """``task`` is what ``inside.act`` takes."""
    container: dict[str, Any] = {
        "name": "check",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["calicoctl", "cluster", "check", "--as-pod", task],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
        },
    }
    if role == SERVER:
        ready = {"tcpSocket": {"port": OPEN_PORT}, "periodSeconds": 1, "timeoutSeconds": 2}
        container |= {"ports": [{"containerPort": OPEN_PORT}, {"containerPort": CLOSED_PORT}], "readinessProbe": ready}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": role, "labels": {LABEL: role}},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LONGEST_S,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }


def wire_pod(role: str, node: str, image: str, task: str) -> dict[str, Any]:
    """In its host's network, with the right to open raw sockets and no other; ``role``: of the pod beside it."""
    made = pod(f"wire-{role}", node, image, task)
    context = made["spec"]["containers"][0]["securityContext"]
    context |= {"capabilities": {"drop": ["ALL"], "add": ["NET_RAW"]}, "runAsNonRoot": False, "runAsUser": 0}
    made["spec"] |= {"hostNetwork": True, "dnsPolicy": "Default"}
    return made


def service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVER},
        "spec": {
            "ipFamilyPolicy": "PreferDualStack",
            "selector": {LABEL: SERVER},
            "ports": [{"port": OPEN_PORT, "targetPort": OPEN_PORT}],
        },
    }


def policy() -> dict[str, Any]:
    """A policy that allows only OPEN_PORT."""
    ports = [{"port": OPEN_PORT, "protocol": protocol} for protocol in ("TCP", "UDP")]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": SERVER},
        "spec": {
            "podSelector": {"matchLabels": {LABEL: SERVER}},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": ports}],
        },
    }


def calico_policy(selector: str) -> dict[str, Any]:
    """The same as the spec of Calico's own policy."""
    rules = [
        {"action": "Allow", "protocol": protocol, "destination": {"ports": [OPEN_PORT]}} for protocol in ("TCP", "UDP")
    ]
    return {"tier": "default", "order": 0, "selector": selector, "types": ["Ingress"], "ingress": rules}


def why_not_running(pod: Mapping[str, Any]) -> str:
    """What a pod waits for, as its kubelet says it; "" if it says nothing."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        for word in ("waiting", "terminated"):
            found = state.get(word)
            if found and found.get("reason") not in ("ContainerCreating", "Completed"):
                return f"{found.get('reason')}: {found.get('message') or 'no message'}"
    return str(status.get("message") or "")
