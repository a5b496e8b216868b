"""KubeVirt as far as the network sees it: three types at a real API server, machines and their pods, no hypervisor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cni_calico.datastore.kubernetes.kubevirt import INSTANCES, MACHINES, MIGRATIONS, ROOT
from cni_calico.errors import DatastoreError
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.definitions import DEFINITIONS

KINDS = {
    MACHINES: "VirtualMachine",
    INSTANCES: "VirtualMachineInstance",
    MIGRATIONS: "VirtualMachineInstanceMigration",
}


@contextmanager
def kubevirt(kube: Cluster) -> Iterator[None]:
    """The types, with a status of their own as KubeVirt's have it."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    try:
        for plural, kind in KINDS.items():
            names = {"plural": plural, "singular": kind.lower(), "kind": kind}
            spec = {"group": "kubevirt.io", "scope": "Namespaced", "names": names, "versions": [version]}
            document = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
            kube.ensure(DEFINITIONS, {**document, "metadata": {"name": f"{plural}.kubevirt.io"}, "spec": spec})
        for plural in KINDS:
            until(lambda plural=plural: _is_served(kube, plural), f"{plural} are served", 30)
        yield
    finally:
        for plural in KINDS:
            kube.request("DELETE", f"{DEFINITIONS}/{plural}.kubevirt.io")


def _is_served(kube: Cluster, plural: str) -> bool:
    try:
        return "items" in kube.request("GET", f"{ROOT}/{plural}")
    except DatastoreError:
        return False


class Machines:
    """Machines of one namespace."""

    def __init__(self, kube: Cluster, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    def path(self, plural: str, name: str = "") -> str:
        return f"{ROOT}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def make(self, plural: str, name: str, owner: Any = None, **body: Any) -> Any:
        metadata: dict[str, Any] = {"name": name}
        if owner is not None:
            metadata["ownerReferences"] = [reference(owner)]
        document = {"apiVersion": "kubevirt.io/v1", "kind": KINDS[plural], "metadata": metadata, **body}
        return self.kube.request("POST", self.path(plural), document)

    def run(self, name: str, *, alone: bool = False) -> Any:
        """A machine's instance, owned by a VirtualMachine unless it is ``alone``."""
        owner = None if alone else self.make(MACHINES, name)
        return self.make(INSTANCES, name, owner)

    def create_pod(self, instance: Any, suffix: str, node: str, *, migration: str = "", **changes: Any) -> str:
        """The name of a pod in which the machine runs, or to which it is to come."""
        called = instance["metadata"]["name"]
        name = f"virt-launcher-{called}-{suffix}"
        labels = {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": called}
        if migration:
            labels["kubevirt.io/migrationJobUID"] = migration
        owners = [{**reference(instance), **changes}]
        self.kube.create_pod(self.namespace, name, node, labels=labels, ownerReferences=owners)
        return name

    def delete(self, plural: str, name: str, *, held: bool = False) -> None:
        """``held``: a finalizer keeps it, as KubeVirt's own does while a machine shuts down."""
        if held:
            found = self.kube.request("GET", self.path(plural, name))
            found["metadata"]["finalizers"] = ["kubevirt.io/test"]
            self.kube.request("PUT", self.path(plural, name), found)
        self.kube.request("DELETE", self.path(plural, name))

    def let_go(self, plural: str, name: str) -> None:
        found = self.kube.request("GET", self.path(plural, name))
        found["metadata"]["finalizers"] = []
        self.kube.request("PUT", self.path(plural, name), found)

    def migrate(self, name: str, job: str, phase: str, **state: Any) -> None:
        """A migration's phase, made or changed."""
        if not phase:
            self.kube.request("DELETE", self.path(MIGRATIONS, job))
            return
        try:
            self.kube.request("GET", self.path(MIGRATIONS, job))
        except DatastoreError:
            self.make(MIGRATIONS, job, spec={"vmiName": name})
        found = self.kube.request("GET", self.path(MIGRATIONS, job))
        found["status"] = {"phase": phase, "migrationState": state}
        self.kube.request("PUT", self.path(MIGRATIONS, job) + "/status", found)


def reference(owner: Any) -> dict[str, Any]:
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
