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
import sys
from pathlib import Path
from typing import Any

import pytest

from cni_calico.model.access import CRD_ROOT
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import BIN, NATIVE_ROOT, Cluster, read, running_cluster
from tests.e2e.kubernetes.programs import kubernetes_controllers

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

PAGE = ROOT / "docs" / "from-operator.md"
PROTECTED = ("calico-node", "calico-cni-plugin")  # they have the operator's finalizer
ADMISSION = ("protect-builtin-tiers.projectcalico.org", "protect-builtin-tiers-binding.projectcalico.org")
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


def admission(owner: str) -> list[dict[str, Any]]:
    """What the operator makes besides, with projectcalico.org/v3: a webhook, and a policy with its binding."""
    version = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": ["projectcalico.org"], "apiVersions": ["v3"], "operations": ["*"], "resources": ["ippools"]}
    webhook = {
        "name": "tiered-rbac.projectcalico.org",
        "clientConfig": {"service": {"name": "calico-webhooks", "namespace": "calico-system", "path": "/rbac"}},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    validation = {"expression": "object.spec.cidr != ''"}
    policy = {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}
    binding = {"policyName": ADMISSION[0], "validationActions": ["Deny"]}
    made = [
        owned("ValidatingWebhookConfiguration", "api.projectcalico.org", owner, webhooks=[webhook]),
        owned("ValidatingAdmissionPolicy", ADMISSION[0], owner, spec=policy),
        owned("ValidatingAdmissionPolicyBinding", ADMISSION[1], owner, spec=binding),
    ]
    return [{**each, "apiVersion": version} for each in made]


def lay_down(cluster: Cluster, root: str) -> None:
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
        *([api_service] if root == CRD_ROOT else admission(owner)),
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


@pytest.mark.parametrize("root", [CRD_ROOT, NATIVE_ROOT])
def test_the_pages_commands(tmp_path: Path, root: str) -> None:
    (tmp_path / "manifests").symlink_to(ROOT / "manifests")
    calicoctl = tmp_path / "bin" / "calicoctl"
    calicoctl.parent.mkdir()
    calicoctl.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m cni_calico.ctl.main "$@"\n')
    calicoctl.chmod(0o755)
    before, *after = commands()
    # of the two ways to change over, the group's
    other = "calico-v3.yaml" if root == CRD_ROOT else "calico.yaml"
    after = [script for script in after if f"/{other}" not in script]
    group = root.removeprefix("/apis/").partition("/")[0]
    with running_cluster() as cluster, kubernetes_controllers(cluster, tmp_path / "controllers.log"):
        cluster.apply_definitions(root)
        pool = {"apiVersion": root.removeprefix("/apis/"), "kind": "IPPool", "metadata": {"name": "own"}}
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps({**pool, "spec": {"cidr": "10.65.0.0/16"}}))
        lay_down(cluster, root)
        environ = {
            **os.environ,
            "PATH": f"{calicoctl.parent}:{BIN}:{os.environ['PATH']}",
            "KUBECONFIG": cluster.kubeconfig(),
        }

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
        run("\n".join(before.splitlines()[1:]))
        assert "bgp: Enabled" in (tmp_path / "values.yaml").read_text()
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
        assert [each["metadata"]["name"] for each in read(cluster, f"ippools.{group}")["items"]] == ["own"]
        definitions = [each["metadata"]["name"] for each in read(cluster, "crd")["items"]]
        assert {name.partition(".")[2] for name in definitions if "projectcalico" in name} == {group}
        if root == NATIVE_ROOT:
            assert not read(cluster, "validatingwebhookconfiguration")["items"]
            for kind, name in zip(("policy", "policybinding"), ADMISSION, strict=True):
                assert "ownerReferences" not in read(cluster, f"validatingadmission{kind}", name)["metadata"]
