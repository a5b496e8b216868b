"""Which networks kube-proxy takes for pods, by its configuration in the cluster.

Rule: what may not be read, or is not there, says nothing. A pod's flags count unless they name a file; the file is the
ConfigMap's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreForbidden
from cni_calico.policy.service_sources import ServiceSources, parse_flags, parse_settings

_KIND = "KubeProxyConfiguration"
_SPACE = "/api/v1/namespaces/kube-system"
_MAPS = ("kube-proxy", "kube-proxy-config")  # kubeadm's and most others'; EKS's
_LABELS = ("k8s-app=kube-proxy", "component=kube-proxy")  # kubeadm's and kops'; RKE2's


def read_configured(api: KubernetesAPI, deadline: Deadline) -> ServiceSources | None:
    """None if the cluster does not say it. Raises DatastoreError."""
    for label in _LABELS:
        pods = _get(api, f"{_SPACE}/pods?limit=1&labelSelector={quote(label)}", deadline).get("items") or ()
        for pod in pods:
            spec = pod.get("spec") or {}
            words = [
                word
                for one in spec.get("containers") or ()
                for key in ("command", "args")
                for word in one.get(key) or ()
            ]
            if flags := parse_flags(words):
                return parse_settings(flags, f"the flags of Pod kube-system/{pod['metadata']['name']}")
    for name in _MAPS:
        data = _get(api, f"{_SPACE}/configmaps/{name}", deadline).get("data") or {}
        for text in data.values():
            document = _parsed(text)
            if document.get("kind") == _KIND:
                return parse_settings(document, f"ConfigMap kube-system/{name}")
    return None


def _get(api: KubernetesAPI, path: str, deadline: Deadline) -> Mapping[str, Any]:
    try:
        return api.get(path, deadline, "read kube-proxy's configuration") or {}
    except DatastoreForbidden:
        return {}


def _parsed(text: object) -> Mapping[str, Any]:
    from cni_calico.ctl.input.yaml_documents import parse_stream

    try:
        documents = parse_stream(text, "kube-proxy's configuration") if isinstance(text, str) else []
    except (ValueError, RecursionError):
        return {}
    found = [document for document in documents if isinstance(document, dict)]
    return found[0] if found else {}
