"""docs/from-operator.md: its commands, one after the other, at a real API server with what upstream's operator leaves.

Rule: the operator's objects have what stands in the way of a takeover: it owns the cluster-wide ones, and finalizers
that only it removes are on the accounts of its namespace. Kubernetes' own controllers run, so what cannot be deleted
stays.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import BIN, Cluster, read, running_cluster
from tests.e2e.kubernetes.programs import kubernetes_controllers

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

PAGE = ROOT / "docs" / "from-operator.md"
PROTECTED = ("calico-node", "calico-cni-plugin")  # they have the operator's finalizer
ROLES = (*PROTECTED, "calico-kube-controllers")
ENDPOINT = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def commands() -> list[str]:
    """The page's blocks."""
    return re.findall(r"(?s)```sh\n(.*?)```", PAGE.read_text())


def owned(kind: str, name: str, owner: str, **fields: Any) -> dict[str, Any]:
    reference = {
        "apiVersion": "operator.tigera.io/v1",
        "kind": "Installation",
        "name": "default",
        "uid": owner,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata: dict[str, Any] = {"name": name, "ownerReferences": [reference]}
    if name in PROTECTED and kind != "DaemonSet":
        metadata["finalizers"] = ["tigera.io/cni-protector"]
    if kind in ("ServiceAccount", "DaemonSet", "Deployment"):
        metadata["namespace"] = "calico-system"
    version = {"DaemonSet": "apps/v1", "Deployment": "apps/v1", "ServiceAccount": "v1"}
    return {
        "apiVersion": version.get(kind, "rbac.authorization.k8s.io/v1"),
        "kind": kind,
        "metadata": metadata,
        **fields,
    }


def program(kind: str, name: str, namespace: str, owner: str = "") -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"k8s-app": name}},
        "spec": {"containers": [{"name": name, "image": "example/none"}]},
    }
    spec = {"selector": {"matchLabels": {"k8s-app": name}}, "template": template}
    if owner:
        return owned(kind, name, owner, spec=spec)
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


def lay_down(cluster: Cluster) -> None:
    """What is there while the operator runs."""
    apply = cluster.kubectl
    names = {"plural": "installations", "singular": "installation", "kind": "Installation"}
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": anything}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "installations.operator.tigera.io"},
        "spec": {"group": "operator.tigera.io", "scope": "Cluster", "names": names, "versions": [version]},
    }
    apply("apply", "-f", "-", stdin=json.dumps(definition))
    apply("wait", "--for=condition=Established", "crd/installations.operator.tigera.io", "--timeout=60s")
    installation = {
        "apiVersion": "operator.tigera.io/v1",
        "kind": "Installation",
        "metadata": {"name": "default", "finalizers": ["tigera.io/operator-cleanup"]},
        "spec": {"calicoNetwork": {"bgp": "Enabled", "ipPools": [{"cidr": "10.65.0.0/16"}]}},
    }
    apply("create", "-f", "-", stdin=json.dumps(installation))
    owner = json.loads(apply("get", "installation", "default", "-o", "json"))["metadata"]["uid"]
    api_service = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v3.projectcalico.org"},
        "spec": {
            "group": "projectcalico.org",
            "version": "v3",
            "groupPriorityMinimum": 1500,
            "versionPriority": 200,
            "insecureSkipTLSVerify": True,
            "service": {"name": "calico-api", "namespace": "calico-apiserver"},
        },
    }
    spaces = ("tigera-operator", "calico-system", "calico-apiserver")
    documents: list[dict[str, Any]] = [
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in spaces),
        program("Deployment", "tigera-operator", "tigera-operator"),
        program("DaemonSet", "calico-node", "calico-system", owner),
        program("Deployment", "calico-typha", "calico-system", owner),
        program("Deployment", "calico-kube-controllers", "calico-system", owner),
        program("Deployment", "calico-apiserver", "calico-apiserver"),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "kubernetes-services-endpoint", "namespace": "tigera-operator"},
            "data": ENDPOINT,
        },
        api_service,
    ]
    for name in ROLES:
        subject = {"kind": "ServiceAccount", "name": name, "namespace": "calico-system"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
        documents += [
            owned("ServiceAccount", name, owner),
            owned("ClusterRole", name, owner, rules=rules),
            owned("ClusterRoleBinding", name, owner, roleRef=role, subjects=[subject]),
        ]
    apply("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))


def test_the_pages_commands(tmp_path: Path) -> None:
    (tmp_path / "manifests").symlink_to(ROOT / "manifests")
    before, *after = commands()
    with running_cluster() as cluster, kubernetes_controllers(cluster, tmp_path / "controllers.log"):
        cluster.apply_definitions()
        lay_down(cluster)
        pool = {"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": {"name": "own"}}
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps({**pool, "spec": {"cidr": "10.65.0.0/16"}}))
        environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "KUBECONFIG": cluster.kubeconfig()}

        def run(script: str, *, check: bool = True) -> None:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                timeout=240,
            )
            assert done.returncode == 0 or not check, f"{script}\n{done.stdout}{done.stderr}"

        run(before, check=False)  # its API server is named and does not run here
        run(before.splitlines()[-1])
        assert "bgp: Enabled" in (tmp_path / "installation.yaml").read_text()
        for script in after:
            run(script)
        left = {space["metadata"]["name"] for space in read(cluster, "namespace")["items"]}
        assert not left & {"tigera-operator", "calico-system", "calico-apiserver"}
        # the owner goes, too, and what would have gone with it is there
        finalizers = '{"metadata":{"finalizers":null}}'
        cluster.kubectl("patch", "installation", "default", "--type=merge", "-p", finalizers)
        cluster.kubectl("delete", "installation", "default", "--cascade=foreground")
        until(lambda: not read(cluster, "installation")["items"], "the Installation is gone", 60)
        for name in ROLES:
            for kind in ("clusterrole", "clusterrolebinding"):
                metadata = read(cluster, kind, name)["metadata"]
                assert not metadata.keys() & {"finalizers", "ownerReferences", "deletionTimestamp"}, metadata
            [subject] = read(cluster, "clusterrolebinding", name)["subjects"]
            assert subject["namespace"] == "kube-system"
        assert len(read(cluster, "clusterrole", "calico-node")["rules"]) > 5
        endpoint = read(cluster, "configmap", "-n", "kube-system", "kubernetes-services-endpoint")
        assert endpoint["data"] == ENDPOINT
        assert read(cluster, "daemonset", "-n", "kube-system", "calico-node")["metadata"]["name"] == "calico-node"
        assert [each["metadata"]["name"] for each in read(cluster, "ippools.crd.projectcalico.org")["items"]] == ["own"]
