"""PURE: what runs in the lab, as documents for the API server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.lab.images import BUSYBOX
from tests.lab.node import Node


@dataclass(frozen=True)
class Wanted:
    """A Deployment of busybox pods."""

    name: str
    replicas: int
    node: str = ""
    host_port: int = 0


def deployment(wanted: Wanted) -> dict[str, Any]:
    """Pods that serve their own name by HTTP."""
    serve = "hostname > /www/index.html; exec httpd -f -p 8080 -h /www"
    port = {"containerPort": 8080, **({"hostPort": wanted.host_port} if wanted.host_port else {})}
    labels = {"app": wanted.name}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [
            {
                "name": "c",
                "image": BUSYBOX,
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", serve],
                "ports": [port],
            }
        ],
    }
    if wanted.node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": wanted.node}
    else:
        spec["topologySpreadConstraints"] = [{**spread, "labelSelector": {"matchLabels": labels}}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": wanted.name, "namespace": "default"},
        "spec": {
            "replicas": wanted.replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def pod(
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    node: str,
    command: Sequence[str] = ("sleep", "100000"),
    *,
    ports: Mapping[str, int] | None = None,
    account: str = "default",
) -> dict[str, Any]:
    """On a node that its creator names. ``ports``: TCP ports by name; ``account``: its service account."""
    container = {
        "name": "c",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": list(command),
        "ports": [{"name": port, "containerPort": number} for port, number in (ports or {}).items()],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "serviceAccountName": account,
            "enableServiceLinks": False,
            "containers": [container],
        },
    }


def pods(numbers: Iterable[int], node: Node) -> str:
    """Pods p0, p1, ... as kubectl takes them, bound to their node: no scheduler between."""
    items = [pod(f"p{number}", "default", {}, node.name) for number in numbers]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
