"""What tests put into a cluster's datastore, and how they look at it."""

from __future__ import annotations

from typing import Any

from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.store import EtcdStore
from cni_calico.datastore.interface import Datastore, Write
from cni_calico.ipam.virtual import AFFINITY
from cni_calico.model.keys import BlockList, ResourceKey
from tests.deadlines import soon
from tests.e2e.kubernetes.cluster import Cluster

SETTINGS = ResourceKey("KubeControllersConfiguration", "default")

POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "web"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "web"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": 80}]}],
    },
}


def wipe(store: EtcdStore) -> None:
    """Calico's records only: an API server whose compaction key is gone dies (1.34) when it compacts next."""
    request = pb.TxnRequest()
    operation = pb.DeleteRangeRequest(key=b"/calico/", range_end=b"/calico0")
    request.success.append(pb.RequestOp(request_delete_range=operation))
    store.cluster.write("Txn", request, "empty etcd", soon())


def prepare(store: EtcdStore, port: int) -> None:
    document = {"kind": SETTINGS.kind, "metadata": {"name": "default"}, "spec": {"prometheusMetricsPort": port}}
    store.commit([Write.create(SETTINGS, document)], soon())


def profile(store: EtcdStore, name: str) -> Any:
    found = store.get(ResourceKey("Profile", name), soon())
    return None if found is None else found.value


def of_node(node: str) -> dict[ResourceKey, dict[str, Any]]:
    """What names this node and no other."""
    return {
        ResourceKey("BGPPeer", f"tor-of-{node}"): {"node": node, "peerIP": "10.0.0.1", "asNumber": 64512},
        ResourceKey("HostEndpoint", f"eth0-of-{node}"): {"node": node, "interfaceName": "eth0"},
        ResourceKey("FelixConfiguration", f"node.{node}"): {"reportingInterval": "0s"},
        ResourceKey("BGPConfiguration", f"node.{node}"): {"logSeverityScreen": "Info"},
    }


def put(store: Datastore, documents: dict[ResourceKey, dict[str, Any]]) -> set[ResourceKey]:
    for key, spec in documents.items():
        document = {
            "apiVersion": "projectcalico.org/v3",
            "kind": key.kind,
            "metadata": {"name": key.name},
            "spec": spec,
        }
        store.commit([Write.create(key, document)], soon())
    return set(documents)


def left(store: Datastore, keys: set[ResourceKey]) -> set[ResourceKey]:
    return {key for key in keys if store.get(key, soon()) is not None}


SERVICES = "/api/v1/namespaces/space/services"


class LoadBalancers:
    """The datastore, the Services, and what an administrator does."""

    def __init__(self, kube: Cluster, store: Datastore, environ: dict[str, str], manifest: str) -> None:
        self.kube, self.store, self.environ, self.manifest = kube, store, environ, manifest

    def pool(self, name: str, cidr: str, **spec: Any) -> None:
        document = {
            "kind": "IPPool",
            "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": name},
            "spec": {"cidr": cidr, "allowedUses": ["LoadBalancer"], "nodeSelector": "all()", "blockSize": 30, **spec},
        }
        if ":" in cidr:
            document["spec"]["blockSize"] = 126
        self.store.commit([Write.put(ResourceKey("IPPool", name), document)], soon())

    def service(self, name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> Any:
        body = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], **spec},
        }
        return self.kube.request("POST", SERVICES, body)

    def annotate(self, name: str, text: str) -> None:
        self.kube.kubectl("annotate", "--overwrite", "-n", "space", "service", name, text)

    def ingress(self, name: str) -> list[str]:
        found = self.kube.request("GET", f"{SERVICES}/{name}")
        return [entry["ip"] for entry in found["status"].get("loadBalancer", {}).get("ingress") or ()]

    def events(self, name: str) -> list[str]:
        found = self.kube.request("GET", "/api/v1/namespaces/space/events")["items"]
        return [event["message"] for event in found if event["involvedObject"].get("name") == name]

    def held(self) -> dict[str, str]:
        """The service of every address that IPAM has."""
        found = {}
        for item in self.store.list(BlockList(), soon()).items:
            block = item.value
            assert block["affinity"] == AFFINITY
            for ordinal, index in enumerate(block["allocations"]):
                if index is not None:
                    said = block["attributes"][index]["secondary"]
                    assert said["namespace"] == "space" and said["type"] == "LoadBalancer" and said["timestamp"]
                    found[str(item.key.cidr[ordinal])] = said["service"]
        return found

    def clean(self) -> None:
        for obj in self.kube.request("GET", SERVICES)["items"]:
            self.kube.request("DELETE", f"{SERVICES}/{obj['metadata']['name']}")
        self.kube.request("DELETE", "/api/v1/namespaces/space/events")
