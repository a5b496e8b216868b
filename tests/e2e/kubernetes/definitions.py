"""APIs that a cluster may serve besides Kubernetes' own and Calico's records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cni_calico.errors import DatastoreError
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import Cluster

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
ADMIN_POLICIES = "policy.networking.k8s.io"
ADMIN_KINDS = ("AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy")


@contextmanager
def cluster_wide_policies(kube: Cluster, served: str = "v1alpha1") -> Iterator[None]:
    """The API of cluster-wide policies, each kind with one object of any content, in one version."""
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": served, "served": True, "storage": True, "schema": anything}
    plurals = {kind: kind.lower().removesuffix("y") + "ies" for kind in ADMIN_KINDS}
    try:
        for kind, plural in plurals.items():
            names = {"plural": plural, "singular": kind.lower(), "kind": kind}
            metadata = {
                "name": f"{plural}.{ADMIN_POLICIES}",
                "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
            }
            spec = {"group": ADMIN_POLICIES, "scope": "Cluster", "names": names, "versions": [version]}
            document = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
            kube.ensure(DEFINITIONS, {**document, "metadata": metadata, "spec": spec})
        for kind, plural in plurals.items():
            api = f"/apis/{ADMIN_POLICIES}/{served}"
            made = {"apiVersion": f"{ADMIN_POLICIES}/{served}", "kind": kind, "metadata": {"name": "default"}}
            until(lambda plural=plural, api=api: is_served(kube, api, plural), f"{plural} are served", 30)
            kube.ensure(f"{api}/{plural}", made)
        yield
    finally:
        for plural in plurals.values():
            kube.request("DELETE", f"{DEFINITIONS}/{plural}.{ADMIN_POLICIES}")


def is_served(kube: Cluster, api: str, plural: str) -> bool:
    try:
        listed = kube.request("GET", api)
        kube.request("GET", f"{api}/{plural}")
    except DatastoreError:
        return False
    return plural in {resource["name"] for resource in listed["resources"]}


@contextmanager
def defined(kube: Cluster, group: str, version: str, kind: str) -> Iterator[str]:
    """The path of a type of custom resources, once the API server has it."""
    plural = kind.lower() + "s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    versions = [{"name": version, "served": True, "storage": True, "schema": schema}]
    spec = {"group": group, "scope": "Cluster", "names": names, "versions": versions}
    metadata = {"name": f"{plural}.{group}"}
    document = {"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1", "metadata": metadata}
    kube.request("POST", DEFINITIONS, {**document, "spec": spec})
    path = f"/apis/{group}/{version}/{plural}"

    def is_there() -> bool:
        try:
            return "items" in kube.request("GET", path)
        except DatastoreError:
            return False

    try:
        until(is_there, f"the type {kind}", 30)
        yield path
    finally:
        where = f"{DEFINITIONS}/{plural}.{group}"
        kube.request("DELETE", where)
        until(lambda: is_gone(kube, where), f"no type {kind}", 30)  # its resources are deleted first


def is_gone(kube: Cluster, path: str) -> bool:
    try:
        kube.request("GET", path)
    except DatastoreError:
        return True
    return False


@contextmanager
def served_by_calicos_api_server(kube: Cluster) -> Iterator[None]:
    """The group projectcalico.org, as Calico's API server registers it; nobody answers."""
    service = {"name": "calico-api", "namespace": "calico-apiserver"}
    spec = {"group": "projectcalico.org", "version": "v3", "groupPriorityMinimum": 1500, "versionPriority": 200}
    document = {
        "kind": "APIService",
        "apiVersion": "apiregistration.k8s.io/v1",
        "metadata": {"name": "v3.projectcalico.org"},
        "spec": {**spec, "service": service, "insecureSkipTLSVerify": True},
    }
    kube.request("POST", API_SERVICES, document)
    try:
        groups = {group["name"] for group in kube.request("GET", "/apis")["groups"]}
        assert "projectcalico.org" in groups
        yield
    finally:
        kube.request("DELETE", f"{API_SERVICES}/v3.projectcalico.org")
