"""A node whose datastore, or whose Kubernetes, is a real API server outside its namespace.

Rule: the namespace that plays the host has no way out; a relay on its own 127.0.0.1 leads to the API server's port, and
can be cut as if the server were gone.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.kernel import netns
from cni_calico.model.access import DatastoreConfig, KubernetesAccess
from cni_calico.model.keys import EverythingList, ResourceKey, etcd_path, parse_path
from tests.e2e.forks import forks_in
from tests.e2e.host import Node, Reply, datastore_keys, etcd_in
from tests.e2e.kubernetes.cluster import Cluster
from tests.fakes.tcp import Forwarder, on_loopback
from tests.netns.namespaces import Namespace

POD_PREFIX = "cni.projectcalico.org/"
ETCD = DatastoreConfig("etcdv3", etcd_endpoints=("http://127.0.0.1:2379",))


class Relay(Forwarder):
    """TCP from a port on a namespace's loopback to the same port on ours."""

    def __init__(self, namespace: Namespace, port: int) -> None:
        super().__init__(("127.0.0.1", port), partial(_listen, namespace, port))


def _listen(namespace: Namespace, port: int) -> socket.socket:
    def listen() -> None:
        with open(namespace.path) as handle:
            netns.enter(handle.fileno())
        made.append(on_loopback(port))

    made: list[socket.socket] = []
    thread = threading.Thread(target=listen)  # it dies in the other namespace
    thread.start()
    thread.join()
    return made[0]


@dataclass
class KubeNode(Node):
    """``token`` is who the plugin is; ``namespace`` where its pods are."""

    kube: Cluster = field(default=None)
    relay: Relay = field(default=None)
    namespace: str = "space"
    token: str = "admin-token"

    def conf(self, **changes: Any) -> dict[str, Any]:
        own: dict[str, Any] = {
            "policy": {"type": "k8s"},
            "kubernetes": {"kubeconfig": self.kube.kubeconfig(self.token)},
        }
        if self.datastore.type == "kubernetes":
            own["datastore_type"] = "kubernetes"
        else:
            own.update(datastore_keys(self.datastore))
        conf = super().conf()
        for name in ("etcd_endpoints", "etcd_key_file", "etcd_cert_file", "etcd_ca_cert_file"):
            if self.datastore.type != "etcdv3":
                conf.pop(name, None)
        return {k: v for k, v in {**conf, **own, **self.overrides, **changes}.items() if v is not None}

    def pod_call(self, command: str, pod: str, container: str, netns_path: str = "", **more: Any) -> Reply:
        """A call as the kubelet's runtime makes it for a pod."""
        uid = more.pop("uid", None)
        if uid is None:
            uid = self._uid(pod)
        args = (
            f"IgnoreUnknown=1;K8S_POD_NAMESPACE={self.namespace};K8S_POD_NAME={pod};"
            f"K8S_POD_INFRA_CONTAINER_ID={container}" + (f";K8S_POD_UID={uid}" if uid else "")
        )
        return self.call(command, container, netns_path, args=args, **more)

    def _uid(self, pod: str) -> str:
        for obj in self.kube.request("GET", f"/api/v1/namespaces/{self.namespace}/pods")["items"]:
            if obj["metadata"]["name"] == pod:
                return str(obj["metadata"]["uid"])
        return ""

    def annotations(self, pod: str) -> dict[str, str]:
        """Calico's annotations of a pod."""
        found = self.kube.read_pod(self.namespace, pod)["metadata"].get("annotations") or {}
        return {k[len(POD_PREFIX) :]: v for k, v in found.items() if k.startswith(POD_PREFIX)}

    def dump(self) -> dict[str, Any]:
        if self.datastore.type != "kubernetes":
            return super().dump()
        store = self.kube.store()
        try:
            items = store.list(EverythingList(), Deadline.after(120)).items
        finally:
            store.close()
        # a pod without container is a pod without endpoint
        return {
            etcd_path(v.key): v.value
            for v in items
            if not (isinstance(v.key, ResourceKey) and v.key.kind == "WorkloadEndpoint")
            or v.value["spec"].get("containerID")
        }

    def put(self, documents: Mapping[str, Any]) -> None:
        if self.datastore.type != "kubernetes":
            super().put(documents)
            return
        store = self.kube.store()
        try:
            for path, document in documents.items():
                key = parse_path(path)
                assert key is not None
                store.commit([Write.remove(key) if document is None else Write.put(key, document)], Deadline.after(20))
        finally:
            store.close()


@contextmanager
def kube_node(
    kube: Cluster, host: Namespace, root: Path, datastore: DatastoreConfig | None = None
) -> Iterator[KubeNode]:
    """A node with its Node object, its namespace of pods, and one pool of each family."""
    relay = Relay(host, kube.port)
    try:
        kube.ensure_namespace("space")
        kube.create_node("node1", spec={"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd44:1::/64"]})
        config = datastore or DatastoreConfig("kubernetes", kubernetes=KubernetesAccess(kubeconfig=kube.kubeconfig()))
        made = KubeNode(host, root, config, kube=kube, relay=relay)
        (root / "run").mkdir(exist_ok=True)
        made.apply_pools()
        yield made
    finally:
        relay.close()


@contextmanager
def node_on(kind: str, kube: Cluster, host: Namespace, root: Path) -> Iterator[KubeNode]:
    """Pods of Kubernetes; the records are there too, or in another datastore beside it; with a server or without."""
    store, _, served = kind.partition(" ")
    with ExitStack() as undo:
        config = {"local": DatastoreConfig("local", path=str(root / "datastore.db")), "etcd": ETCD}.get(store)
        if store == "etcd":
            undo.enter_context(etcd_in(host, root))
        made = undo.enter_context(kube_node(kube, host, root, config))
        made.forks = undo.enter_context(forks_in(host)) if store != "local" else None
        if served:
            undo.enter_context(made.server())
        yield made


def show(reply: Reply) -> str:
    return json.dumps(reply.document)
