"""PURE: what runs in the lab, as documents for the API server."""

from __future__ import annotations

import json
from collections.abc import Iterable
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


def pods(numbers: Iterable[int], node: Node) -> str:
    """Pods p0, p1, ... as kubectl takes them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [_pod(number, node) for number in numbers]})


def _pod(number: int, node: Node) -> dict[str, Any]:
    """Bound to its node by its creator: no scheduler, no controller between."""
    container = {
        "name": "c",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sleep", "100000"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p{number}", "namespace": "default"},
        "spec": {
            "nodeName": node.name,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [container],
        },
    }
