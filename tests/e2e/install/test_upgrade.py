"""``calico-ipam -upgrade`` as the init container runs it: addresses that the real host-local gave, pods of a real API
server, the rights of the manifests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.model.documents.codec import encode, new_metadata
from cni_calico.model.keys import BlockList, ResourceKey
from cni_calico.model.resources import IPPool
from tests.conftest import LAB_CACHE
from tests.e2e.janitors import SPACE
from tests.e2e.kubernetes.cluster import NODE_USER, Cluster
from tests.e2e.kubernetes.roles import documents, used

HOST_LOCAL = LAB_CACHE / "cni" / "bin" / "host-local"

pytestmark = [pytest.mark.kubernetes, pytest.mark.cnitool]


class Host:
    """A node of a cluster whose pods got their addresses from host-local."""

    def __init__(self, kube: Cluster, root: Path) -> None:
        self.kube, self.root, self.store = kube, root, kube.store()
        self.networks = root / "var/lib/cni/networks"
        self.plugin = root / "host/opt/cni/bin/calico"
        self.networks.mkdir(parents=True)
        self.plugin.parent.mkdir(parents=True)
        self.plugin.write_text("the old one")

    def host_local(self, command: str, container: str) -> dict:
        """What calico has host-local do."""
        conf = {
            "cniVersion": "1.0.0",
            "name": "k8s-pod-network",
            "ipam": {
                "type": "host-local",
                "dataDir": str(self.networks),
                "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:244::100/120"}]],
            },
        }
        environ = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": "/proc/self/ns/net",
            "CNI_NETNS_OVERRIDE": "1",  # it only writes files
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(HOST_LOCAL.parent),
        }
        done = subprocess.run([HOST_LOCAL], input=json.dumps(conf), capture_output=True, text=True, env=environ)
        assert done.returncode == 0, done.stdout
        return json.loads(done.stdout) if done.stdout else {}

    def run_pod(self, name: str, container: str) -> list[str]:
        found = self.host_local("ADD", container)
        addresses = [ip["address"].partition("/")[0] for ip in found["ips"]]
        self.kube.create_pod(SPACE, name, "node1")
        status = {"phase": "Running", "podIP": addresses[0], "podIPs": [{"ip": a} for a in addresses]}
        path = f"/api/v1/namespaces/{SPACE}/pods/{name}/status"
        self.kube.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")
        return addresses

    def upgrade(self, **more: str) -> subprocess.CompletedProcess[str]:
        """With what the manifest gives the container, except where things are."""
        environ = {
            **os.environ,
            "KUBERNETES_NODE_NAME": "node1",
            "CALICO_NETWORKING_BACKEND": "bird",
            "KUBECONFIG": self.kube.kubeconfig("node-token"),
            "CALICO_INSTALL_ROOT": str(self.root),
            "CALICO_RUN_DIR": str(self.root / "run"),
            **more,
        }
        command = [sys.executable, "-m", "cni_calico.plugin.ipam.main", "-upgrade"]
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=90
        )

    def held(self) -> dict[str, tuple[str, str]]:
        """(handle, pod) by address."""
        found = {}
        for item in self.store.list(BlockList(), Deadline.after(20)).items:
            for ordinal, index in enumerate(item.value["allocations"]):
                if index is not None:
                    attribute = item.value["attributes"][index]
                    address = str(item.key.cidr[ordinal])
                    found[address] = (attribute["handle_id"], attribute["secondary"].get("pod", ""))
        return found


@pytest.fixture
def upgraded_host(agent_rights: Cluster, tmp_path: Path) -> Iterator[Host]:
    if not HOST_LOCAL.exists():
        pytest.skip("needs host-local: run tests/setup/build-go-tools.sh")
    agent_rights.create_node(
        "node1", spec={"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:244::100/120"]}
    )
    made = Host(agent_rights, tmp_path)
    _make_pools(made.store)
    yield made
    made.store.close()


def _make_pools(store: KubernetesStore) -> None:
    from ipaddress import ip_network

    for name, cidr, size in (("four", "10.244.0.0/16", 26), ("six", "fd00:244::/112", 122)):
        pool = IPPool(new_metadata(name, uid="u", now="2026-11-20T12:06:00Z"), ip_network(cidr), size)
        store.commit([Write.put(ResourceKey("IPPool", name), encode(pool))], Deadline.after(20))


def test_pods_keep_the_addresses_that_host_local_gave_them(upgraded_host: Host) -> None:
    given = {name: upgraded_host.run_pod(name, f"{name}0123") for name in ("a", "b")}
    upgraded_host.host_local("ADD", "forgotten")  # its pod is gone and its DEL never came
    since = len(upgraded_host.kube.audited())
    done = upgraded_host.upgrade()
    assert done.returncode == 0, done.stderr
    wanted = {address: (f"k8s-pod-network.{name}0123", name) for name, found in given.items() for address in found}
    assert upgraded_host.held() == {**wanted, "10.244.1.1": ("ipip-tunnel-addr-node1", "")}
    assert not (upgraded_host.networks / "k8s-pod-network").exists() and not upgraded_host.plugin.exists()
    assert not used(upgraded_host.kube, NODE_USER, since)[1], "something was refused"
    again = upgraded_host.upgrade()
    assert again.returncode == 0 and "nothing to migrate" in again.stderr


def test_a_cluster_that_stays_with_host_local_is_left_alone(upgraded_host: Host) -> None:
    upgraded_host.run_pod("a", "a0123")
    done = upgraded_host.upgrade(
        CNI_NETWORK_CONFIG='{"mtu": __CNI_MTU__, "ipam": {"type": "host-local", "subnet": "usePodCidr"}}'
    )
    assert done.returncode == 0 and "uses host-local: nothing is migrated" in done.stderr
    assert upgraded_host.plugin.exists() and not upgraded_host.held()


def test_a_dead_api_server_leaves_everything_as_it_is(upgraded_host: Host) -> None:
    upgraded_host.run_pod("a", "a0123")
    url = upgraded_host.kube.url
    upgraded_host.kube.url = "https://127.0.0.1:1"
    try:
        os.unlink(upgraded_host.kube.kubeconfig("node-token"))
        done = upgraded_host.upgrade()
    finally:
        upgraded_host.kube.url = url
    assert done.returncode == 1 and "127.0.0.1:1" in done.stderr
    assert upgraded_host.plugin.exists() and len(list((upgraded_host.networks / "k8s-pod-network").iterdir())) >= 3
    assert upgraded_host.upgrade().returncode == 0


def test_the_manifest_runs_it_before_the_installer() -> None:
    [daemon_set] = documents("calico.yaml", "DaemonSet")
    spec = daemon_set["spec"]["template"]["spec"]
    upgrade, install = spec["initContainers"]
    assert upgrade["command"] == ["/opt/cni/bin/calico-ipam", "-upgrade"] and install["name"] == "install-cni"
    names = {v["name"] for v in upgrade["env"]}
    assert names == {"KUBERNETES_NODE_NAME", "CALICO_NETWORKING_BACKEND", "CNI_NETWORK_CONFIG"}
    mounts = {m["mountPath"]: m["name"] for m in upgrade["volumeMounts"]}
    volumes = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
    assert {path: volumes[name] for path, name in mounts.items()} == {
        "/var/lib/cni/networks": "/var/lib/cni/networks",
        "/host/opt/cni/bin": "/opt/cni/bin",
    }
    [etcd] = documents("calico-etcd.yaml", "DaemonSet")
    assert [c["name"] for c in etcd["spec"]["template"]["spec"]["initContainers"]] == ["install-cni"]
