"""Janitors in processes of their own, and the clusters that they clean up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from cni_calico.datastore.etcd.store import EtcdConfig, EtcdStore
from cni_calico.datastore.interface import Datastore, Write
from cni_calico.ipam.allocator import Allocator, AssignRequest
from cni_calico.model.documents.codec import encode, new_metadata
from cni_calico.model.keys import AffinityList, BlockList, HandleList, ResourceKey
from cni_calico.model.resources import IPPool, Resource
from tests.deadlines import soon, until
from tests.e2e.kubernetes.cluster import Cluster

NOW = "2026-11-20T12:06:00Z"
SPACE = "space"


class JanitorProcess:
    """A janitor. ``leads`` follows what it says."""

    def __init__(self, name: str, environ: dict[str, str], directory: Path) -> None:
        own = {f"CALICO_{n}_DIR": str(directory / name / n.lower()) for n in ("RUN", "STATE", "LOG")}
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.janitor_driver", name],
                env={**os.environ, **environ, **own, "NODENAME": name, "CALICO_DISABLE_FILE_LOGGING": "true"},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.leads = False
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.leads = line.strip() == "leader"
        self.leads = False

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        self.process.wait(10)
        self.leads = False


class Field(ABC):
    """A cluster as an administrator, the kubelets and the CNI plugins change it."""

    store: Datastore
    environ: dict[str, str]

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[JanitorProcess] = []

    def start(self, name: str) -> JanitorProcess:
        self.processes.append(JanitorProcess(name, self.environ, self.directory))
        return self.processes[-1]

    def leader(self) -> JanitorProcess:
        found: list[JanitorProcess] = until(
            lambda: [p for p in self.processes if p.leads], f"a leader: {self.logs()}", 40
        )
        assert len(found) == 1
        return found[0]

    def logs(self) -> str:
        return "".join(p.log.read_text()[-1500:] for p in self.processes)

    def pool(self) -> None:
        pool = IPPool(new_metadata("p", uid="u", now=NOW), ip_network("10.65.0.0/16"), 26)
        self.store.commit([Write.put(ResourceKey("IPPool", "p"), encode(pool))], soon())

    def allocate(self, handle: str, node: str, use: str = "Workload", **attributes: str) -> Any:
        request = AssignRequest(node=node, handle_id=handle, attributes={"node": node, **attributes}, num4=1, use=use)
        return Allocator(self.store).assign(request, soon())[0].address

    def allocate_bare(self, handle: str, node: str) -> Any:
        """As the oldest releases: under a handle, without attributes."""
        request = AssignRequest(node=node, handle_id=handle, attributes={}, num4=1)
        return Allocator(self.store).assign(request, soon())[0].address

    def held(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for item in self.store.list(BlockList(), soon()).items:
            for index in item.value["allocations"]:
                if index is not None:
                    handle = item.value["attributes"][index]["handle_id"]
                    found[handle] = found.get(handle, 0) + 1
        return found

    def handles(self) -> set[str]:
        return {item.key.handle_id for item in self.store.list(HandleList(), soon()).items}

    def owners(self) -> set[str]:
        return {item.key.node for item in self.store.list(AffinityList(), soon()).items}

    @abstractmethod
    def create_node(self, name: str) -> None: ...

    @abstractmethod
    def delete_node(self, name: str) -> None: ...

    def populate(self) -> None:
        """Two nodes, one of which goes, with tunnels; containers that are no pods."""
        self.pool()
        for name in ("stays", "goes"):
            self.create_node(name)
            self.allocate(f"vxlan-tunnel-addr-{name}", name, "Tunnel", type="vxlanTunnelAddress")
        self.allocate("net.podman", "stays")
        self.allocate("net.bare", "elsewhere")

    def close(self) -> None:
        for process in self.processes:
            if process.process.poll() is None:
                process.kill()
        self.store.close()


class EtcdField(Field):
    def __init__(self, url: str, directory: Path) -> None:
        super().__init__(directory)
        self.store = EtcdStore(EtcdConfig(endpoints=(url,)))
        self.environ = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": url}

    def create_node(self, name: str) -> None:
        node = Resource("Node", new_metadata(name, uid="u", now=NOW))
        self.store.commit([Write.put(ResourceKey("Node", name), encode(node))], soon())

    def delete_node(self, name: str) -> None:
        self.store.commit([Write.remove(ResourceKey("Node", name))], soon())


class KubeField(Field):
    """With the role of calico-node and no other."""

    def __init__(self, kube: Cluster, directory: Path, datastore: dict[str, str] | None = None) -> None:
        super().__init__(directory)
        self.kube = kube
        self.environ = {
            "DATASTORE_TYPE": "kubernetes",
            "KUBECONFIG": kube.kubeconfig("node-token"),
            **(datastore or {}),
        }
        self.store = kube.store()

    def create_node(self, name: str) -> None:
        self.kube.create_node(name)

    def delete_node(self, name: str) -> None:
        self.kube.request("DELETE", f"/api/v1/nodes/{name}")

    def add(self, pod: str, node: str, container: str) -> Any:
        """As the CNI plugin does it: an address, then the pod's annotations."""
        address = self.allocate(f"k8s-pod-network.{container}", node, namespace=SPACE, pod=pod)
        annotations = {"podIP": f"{address}/32", "podIPs": f"{address}/32", "containerID": container}
        metadata = {"annotations": {f"cni.projectcalico.org/{k}": v for k, v in annotations.items()}}
        path = f"/api/v1/namespaces/{SPACE}/pods/{pod}/status"
        content = "application/merge-patch+json"
        self.kube.request("PATCH", path, {"metadata": metadata}, content_type=content)
        return address

    def run_pod(self, name: str, node: str, container: str) -> Any:
        self.kube.create_pod(SPACE, name, node)
        return self.add(name, node, container)

    def delete_pod(self, name: str) -> None:
        self.kube.delete_pod(self.kube.read_pod(SPACE, name))
