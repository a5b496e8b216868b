"""CoreDNS as the cluster's name service, with the names, labels and rights that kubeadm gives it.

Rule: it reaches the API server by its service's address, so it needs kube-proxy.
"""

from __future__ import annotations

from typing import Any

from tests.deadlines import until
from tests.lab.images import COREDNS
from tests.lab.lab import Lab
from tests.lab.node import DNS_DOMAIN, DNS_SERVICE

_NAME, _LABELS = "coredns", {"k8s-app": "kube-dns"}
_SPACE = {"namespace": "kube-system"}
_COREFILE = f""".:53 {{
    errors
    ready
    kubernetes {DNS_DOMAIN} in-addr.arpa ip6.arpa {{
        pods insecure
        ttl 30
    }}
    cache 30
}}
"""
_RIGHTS: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": _NAME, **_SPACE}},
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "lab:coredns"},
        "rules": [
            {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "lab:coredns"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lab:coredns"},
        "subjects": [{"kind": "ServiceAccount", "name": _NAME, **_SPACE}],
    },
]
_POD = {
    "serviceAccountName": _NAME,
    "dnsPolicy": "Default",
    "terminationGracePeriodSeconds": 1,
    "volumes": [{"name": "config", "configMap": {"name": _NAME}}],
    "containers": [
        {
            "name": _NAME,
            "image": COREDNS,
            "imagePullPolicy": "Never",
            "command": ["/coredns", "-conf", "/etc/coredns/Corefile"],
            "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        }
    ],
}
_SERVER: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _NAME, **_SPACE},
        "data": {"Corefile": _COREFILE},
    },
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": _NAME, **_SPACE, "labels": _LABELS},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": _LABELS},
            "template": {"metadata": {"labels": _LABELS}, "spec": _POD},
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", **_SPACE, "labels": _LABELS},
        "spec": {
            "selector": _LABELS,
            "clusterIP": DNS_SERVICE,
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
            ],
        },
    },
]


def install_coredns(lab: Lab) -> None:
    """The image has to be among the lab's. Returns when CoreDNS knows the cluster."""
    lab.apply(*_RIGHTS, *_SERVER)
    try:
        until(lambda: _ready(lab), "CoreDNS is ready", pause_s=0.3)
    except AssertionError as e:
        logs = lab.kubectl("logs", "-n", "kube-system", "-l", "k8s-app=kube-dns", check=False)
        raise AssertionError(f"{e}\n{logs}\n{lab.describe()}") from None


def _ready(lab: Lab) -> bool:
    return bool(lab.get("deployment", _NAME, "-n", "kube-system")["status"].get("readyReplicas"))
