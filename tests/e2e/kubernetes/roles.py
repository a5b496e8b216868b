"""The roles in the manifests at a real API server, and what the audit log says about their users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from cni_calico.model.access import DatastoreConfig
from tests.conftest import ROOT
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import KubeNode, kube_node
from tests.netns.namespaces import Namespace

MANIFESTS = ROOT / "manifests"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
# an affinity is read by name when somebody else was faster, a handle is updated when it holds something already;
# test_rare_rights.py brings both about, and the next
RARE = {("get", "blockaffinities"), ("update", "ipamhandles")}
# of pods that keep their addresses: calls/test_machines.py, calls/test_sticky.py and agents/test_live_migration.py have
# KubeVirt's resources
MACHINES = {("get", "virtualmachines"), ("get", "virtualmachineinstances")}
LASTING = {(verb, "virtualmachineinstancemigrations") for verb in ("list", "watch")}
# a claim is taken back when another node was faster
TAKEN_BACK = {("delete", "blockaffinities"), ("delete", "ipamblocks")}


def documents(name: str, *kinds: str) -> list[dict[str, Any]]:
    found = [d for d in yaml.safe_load_all((MANIFESTS / name).read_text()) if d]
    return [d for d in found if not kinds or d["kind"] in kinds]


def plugin_role(manifest: str) -> dict[str, Any]:
    [role] = [d for d in documents(manifest, "ClusterRole") if d["metadata"]["name"] == "calico-cni-plugin"]
    return role


@contextmanager
def node_with_role(
    manifest: str, kube: Cluster, host: Namespace, root: Path, datastore: DatastoreConfig | None = None
) -> Iterator[KubeNode]:
    """A node whose plugin has the role of a manifest and no other."""
    with with_plugin_role(kube, manifest), kube_node(kube, host, root, datastore) as made:
        made.token = "cni-token"
        yield made


@contextmanager
def with_plugin_role(kube: Cluster, manifest: str) -> Iterator[None]:
    [binding] = [d for d in documents(manifest, "ClusterRoleBinding") if d["metadata"]["name"] == "calico-cni-plugin"]
    kube.ensure(f"{RBAC}/clusterroles", plugin_role(manifest))
    kube.ensure(f"{RBAC}/clusterrolebindings", binding)
    try:
        yield
    finally:
        kube.request("DELETE", f"{RBAC}/clusterrolebindings/calico-cni-plugin")
        kube.request("DELETE", f"{RBAC}/clusterroles/calico-cni-plugin")


@contextmanager
def with_agent_roles(kube: Cluster, manifest: str) -> Iterator[Cluster]:
    """The API server with the roles of calico-node."""
    with _roles_of("calico-node", kube, manifest):
        yield kube


@contextmanager
def rights(kube: Cluster, manifest: str) -> Iterator[None]:
    """The roles of calico-kube-controllers."""
    with _roles_of("calico-kube-controllers", kube, manifest):
        yield


@contextmanager
def _roles_of(account: str, kube: Cluster, manifest: str) -> Iterator[None]:
    made = []
    for document in documents(manifest, "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
        metadata, kind = document["metadata"], document["kind"].lower() + "s"
        if metadata["name"] == account:
            path = f"{RBAC}/namespaces/{metadata['namespace']}/{kind}" if "namespace" in metadata else f"{RBAC}/{kind}"
            kube.ensure(path, document)
            made.append(f"{path}/{account}")
    try:
        yield
    finally:
        for path in reversed(made):
            kube.request("DELETE", path)


@contextmanager
def every_right(kube: Cluster) -> Iterator[None]:
    """The plugin's user may do everything: it has a user of its own only to be known in the audit log."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "everything"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "calico-cni-plugin", "namespace": "kube-system"}],
    }
    kube.ensure(f"{RBAC}/clusterrolebindings", binding)
    try:
        yield
    finally:
        kube.request("DELETE", f"{RBAC}/clusterrolebindings/everything")


def used(kube: Cluster, user: str, since: int) -> tuple[set[tuple[str, str]], list[str]]:
    """(verb, resource/subresource) of a user's requests, and those that were refused."""
    requests, refused = set(), []
    for event in kube.audited(since):
        if event["user"]["username"] == user:
            reference = event.get("objectRef")
            if reference is None:  # which APIs there are: every user may ask
                continue
            resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
            requests.add((event["verb"], resource))
            if event.get("responseStatus", {}).get("code") == 403:
                refused.append(f"{event['verb']} {event['requestURI']}")
    return requests, refused
