"""Moving everything from one datastore to another with calicoctl: each of the three real ones to each other one.

Pods of a real API server run on the first; after the move the second knows every address, CHECK of the running pods
holds, their DELs give all of it back, and what was taken in the first cannot be given out twice.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_calico.model.access import API_GROUP, NATIVE_GROUP, DatastoreConfig, KubernetesAccess
from tests.conftest import ROOT
from tests.e2e.host import etcd_in
from tests.e2e.kubernetes.cluster import NATIVE_ROOT, Cluster, native_cluster
from tests.e2e.kubernetes.node import KubeNode, kube_node
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
HEAD = "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\nspec:\n"
PODS = {"web-0": "a0" * 32, "web-1": "a1" * 32, "api": "a2" * 32}
DUAL = {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}
TUNNEL = "10.65.99.1"
TUNNEL_HANDLE = "vxlan-tunnel-addr-node1"


class Stores:
    """The three datastores of one host namespace, and calicoctl on each of them."""

    def __init__(self, kube: Cluster, host: Namespace, root: Path) -> None:
        self.host = host
        self.root = root
        self.kube = kube
        self.environ: dict[str, str] = {}
        self.configs = {
            "local": DatastoreConfig("local", path=str(root / "datastore.db")),
            "etcd": DatastoreConfig("etcdv3", etcd_endpoints=("http://127.0.0.1:2379",)),
            "kubernetes": DatastoreConfig("kubernetes", kubernetes=KubernetesAccess(kubeconfig=kube.kubeconfig())),
        }

    def _settings(self, name: str) -> str:
        config = self.configs[name]
        if name == "local":
            return f"  datastoreType: local\n  datastorePath: {config.path}\n"
        if name == "etcd":
            return f"  datastoreType: etcdv3\n  etcdEndpoints: {config.etcd_endpoints[0]}\n"
        return f"  datastoreType: kubernetes\n  kubeconfig: {config.kubernetes.kubeconfig}\n"

    def calicoctl(self, name: str, *argv: str, fails: bool | None = False) -> str:
        """``fails`` None: either way."""
        path = self.root / f"{name}.cfg"
        path.write_text(HEAD + self._settings(name))
        command = [sys.executable, "-m", "cni_calico.ctl.main", "-c", str(path), *argv]
        done = subprocess.run(
            ["nsenter", f"--net={self.host.path}", *command],
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert fails is None or (done.returncode != 0) == fails, (done.stdout, done.stderr)
        return done.stderr if fails else done.stdout

    def migrate(self, name: str, *argv: str, fails: bool = False) -> str:
        return self.calicoctl(name, "datastore", "migrate", *argv, fails=fails)

    def problems(self, name: str) -> list[str]:
        lines = self.calicoctl(name, "ipam", "check", "--show-problem-ips", fails=None).splitlines()
        return [] if lines[-1] == "Check complete; found 0 problems." else lines

    def allocate_tunnel_address(self, name: str) -> None:
        """What the agent does for a node of a VXLAN pool."""
        config = self.configs[name]
        environ = {
            **os.environ,
            "DATASTORE_TYPE": {"etcd": "etcdv3"}.get(name, name),
            "ETCD_ENDPOINTS": ",".join(config.etcd_endpoints),
            "DATASTORE_PATH": config.path,
            "KUBECONFIG": self.kube.kubeconfig(),
            "NODENAME": "node1",
            "CALICO_STATE_DIR": str(self.root / "state"),
            "CALICO_RUN_DIR": str(self.root / "run"),
            "CALICO_LOG_DIR": str(self.root / "log"),
            "CALICO_NODENAME_FILE": str(self.root / "nodename"),
        }
        command = [sys.executable, "-m", "cni_calico.nodeagent.main", "-allocate-tunnel-addrs-run-once"]
        done = subprocess.run(
            ["nsenter", f"--net={self.host.path}", *command], env=environ, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def stores(request: pytest.FixtureRequest, host_ns: Namespace, tmp_path: Path) -> Iterator[Stores]:
    """With the API server that the test's parameter ``group`` names."""
    group = getattr(request.node, "callspec", None) and request.node.callspec.params.get("group")
    kube = native_cluster() if group == NATIVE_GROUP else request.getfixturevalue("kube")
    if group == NATIVE_GROUP:
        kube.empty(NATIVE_ROOT)
    with etcd_in(host_ns, tmp_path):
        yield Stores(kube, host_ns, tmp_path)


@pytest.fixture
def first(request: pytest.FixtureRequest, stores: Stores) -> Iterator[KubeNode]:
    """A node on the datastore to move from, with what a cluster has beside pods."""
    name = request.node.callspec.params["source"]
    with kube_node(stores.kube, stores.host, stores.root, stores.configs[name]) as made:
        made.overrides["ipam"] = DUAL
        if name != "kubernetes":
            made.apply("Node", "node1", {"bgp": {"ipv4Address": "10.0.0.1/24"}})
        made.apply("IPPool", "pool4", {"cidr": "10.65.0.0/16", "blockSize": 26, "vxlanMode": "Always"})
        made.apply("IPReservation", "kept", {"reservedCIDRs": ["10.65.0.0/30"]})
        made.apply("BGPConfiguration", "default", {"asNumber": 64999})
        stores.calicoctl(name, "ipam", "configure", "--max-blocks-per-host=7")
        stores.calicoctl(name, "apply", "-f", _pool_file(stores.root))
        yield made


def _pool_file(root: Path) -> str:
    """Any write of calicoctl's makes the cluster's information, which is what is locked."""
    path = root / "set.yaml"
    path.write_text(
        "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\nmetadata: {name: s}\nspec: {nets: [10.9.0.0/24]}\n"
    )
    return str(path)


def start_pods(node: KubeNode, make: MakeNamespace) -> dict[str, Any]:
    replies = {}
    for pod, container in PODS.items():
        node.kube.create_pod(node.namespace, pod, node.nodename)
        space = make()
        reply = node.pod_call("ADD", pod, container, space.path)
        assert reply.ok, reply.document
        replies[pod] = (space, reply.document)
    return replies


PAIRS = [
    pytest.param("etcd", "kubernetes", API_GROUP),
    pytest.param("kubernetes", "etcd", API_GROUP),
    pytest.param("etcd", "kubernetes", NATIVE_GROUP, marks=pytest.mark.slow),
    pytest.param("kubernetes", "etcd", NATIVE_GROUP, marks=pytest.mark.slow),
    pytest.param("local", "kubernetes", API_GROUP, marks=pytest.mark.slow),
    pytest.param("kubernetes", "local", API_GROUP, marks=pytest.mark.slow),
    pytest.param("local", "kubernetes", NATIVE_GROUP, marks=pytest.mark.slow),
    pytest.param("kubernetes", "local", NATIVE_GROUP, marks=pytest.mark.slow),
    pytest.param("local", "etcd", API_GROUP, marks=pytest.mark.slow),
    pytest.param("etcd", "local", API_GROUP, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("source", "target", "group"), PAIRS)
def test_everything_moves(
    source: str, target: str, group: str, first: KubeNode, stores: Stores, make_pod_ns: MakeNamespace
) -> None:
    stores.allocate_tunnel_address(source)
    pods = start_pods(first, make_pod_ns)
    space, _ = pods.pop("api")
    assert first.pod_call("DEL", "api", PODS["api"], space.path).ok
    assert stores.problems(source) == []
    taken = first.taken()
    assert len(taken) == 5 and TUNNEL_HANDLE in taken.values()

    # locked, nothing is taken or given back; what has not been locked is not exported
    assert "not locked" in stores.migrate(source, "export", "-o", "all.json", fails=True)
    stores.migrate(source, "lock")
    for verb in ("ADD", "DEL"):
        refused = first.pod_call(verb, "web-0", PODS["web-0"], pods["web-0"][0].path)
        assert not refused.ok and "Calico is currently not ready to process requests" in refused.document["msg"]
    exported = str(stores.root / "all.json")
    stores.migrate(source, "export", "-o", exported)
    assert first.taken() == taken

    second = replace(first, datastore=stores.configs[target])
    imported = stores.migrate(target, "import", "-f", exported)
    assert "the datastore is locked" in imported and "keeps changing" not in imported
    assert second.taken() == taken and stores.problems(target) == []
    spec = second.dump()["/calico/resources/v3/projectcalico.org/bgpconfigurations/default"]["spec"]
    assert spec["asNumber"] == 64999
    assert re.search(r"MaxBlocksPerHost +\| 7 ", stores.calicoctl(target, "ipam", "show", "--show-configuration"))
    locked = second.pod_call("ADD", "api", PODS["api"], space.path)
    assert "not ready to process requests" in locked.document["msg"]
    stores.migrate(target, "unlock")

    # the pods that run go on, what is new takes other addresses, and everything comes back
    for pod, (where, result) in pods.items():
        checked = second.pod_call("CHECK", pod, PODS[pod], where.path, prevResult=result)
        assert checked.ok, checked.document
        again = second.pod_call("ADD", pod, PODS[pod], where.path)
        assert [ip["address"] for ip in again.document["ips"]] == [ip["address"] for ip in result["ips"]]
        assert target == "kubernetes" or again.document["interfaces"] == result["interfaces"]
        checked = second.pod_call("CHECK", pod, PODS[pod], where.path, prevResult=again.document)
        assert checked.ok, checked.document
    assert second.pod_call("ADD", "api", PODS["api"], space.path).ok
    assert len(second.taken()) == 7 and taken.items() <= second.taken().items()
    assert stores.problems(target) == []
    stores.allocate_tunnel_address(target)
    for pod, container in PODS.items():
        assert second.pod_call("DEL", pod, container).ok
    assert set(second.taken().values()) == {TUNNEL_HANDLE} and stores.problems(target) == []


@pytest.mark.parametrize("source", ["kubernetes"])
@pytest.mark.parametrize(
    ("target", "prefix"),
    [("local", "nic"), ("etcd", ""), pytest.param("etcd", "nic,cali", marks=pytest.mark.slow)],
)
def test_what_ran_on_kubernetes_is_checked_and_ended_as_it_is(
    source: str, target: str, prefix: str, first: KubeNode, stores: Stores, make_pod_ns: MakeNamespace
) -> None:
    """Without a second ADD: a pod's record has neither a MAC nor the interface's name, which follows from its own."""
    first.environ["FELIX_INTERFACEPREFIX"] = stores.environ["FELIX_INTERFACEPREFIX"] = prefix
    pods = start_pods(first, make_pod_ns)
    veths = {result["interfaces"][0]["name"] for _, result in pods.values()}
    assert {name[:3] for name in veths} == {prefix[:3] or "cal"}
    stores.migrate(source, "lock")
    exported = str(stores.root / "all.json")
    stores.migrate(source, "export", "-o", exported)
    stores.migrate(target, "import", "-f", exported)
    stores.migrate(target, "unlock")
    second = replace(first, datastore=stores.configs[target])
    assert {endpoint["spec"].get("mac") for endpoint in second.endpoints()} == {None}
    for pod, (where, result) in pods.items():
        checked = second.pod_call("CHECK", pod, PODS[pod], where.path, prevResult=result)
        assert checked.ok, checked.document
    where, result = pods["web-0"]
    where.do("link", "set", "eth0", "address", "02:00:00:00:00:07")
    checked = second.pod_call("CHECK", "web-0", PODS["web-0"], where.path, prevResult=result)
    assert "found mac 02:00:00:00:00:07" in checked.document["msg"]
    for pod, (where, _) in pods.items():
        # as a runtime does it, once with and once without the namespace
        deleted = second.pod_call("DEL", pod, PODS[pod], "" if pod == "api" else where.path)
        assert deleted.ok and where.link("eth0") is None, deleted.document
    assert second.leftovers() == {} and stores.problems(target) == []
    assert veths.isdisjoint(link["ifname"] for link in stores.host.ip("link", "show"))


@pytest.mark.parametrize("source", ["etcd"])
def test_containers_that_are_no_pods_are_named(source: str, first: KubeNode, stores: Stores, pod_ns: Namespace) -> None:
    """Kubernetes has no place for their endpoints: their addresses are shown as what nobody uses, until released."""
    assert first.call("ADD", "b0" * 32, pod_ns.path, policy={}, kubernetes={}).ok
    stores.migrate(source, "lock")
    exported = str(stores.root / "all.json")
    stores.migrate(source, "export", "-o", exported)
    imported = stores.migrate("kubernetes", "import", "-f", exported)
    name = f"WorkloadEndpoint default/node1-cni-{'b0' * 32}-eth0"
    assert f"Skipped {name}: there is no such pod on its node" in imported
    assert f"Skipped Profile {first.conf()['name']}: Kubernetes derives its profiles" in imported
    report = str(stores.root / "report.json")
    found = stores.calicoctl("kubernetes", "ipam", "check", "-o", report, fails=None)
    assert "Found 2 IPs that are allocated in IPAM but not actually in use." in found
    stores.calicoctl("kubernetes", "ipam", "release", f"--from-report={report}")
    assert stores.problems("kubernetes") == []


@contextmanager
def nobody_with(kube: Cluster, name: str, *, without: str = "") -> Iterator[DatastoreConfig]:
    """The Kubernetes datastore as somebody who has a role of the documentation's (less one resource) and no other."""
    blocks = (ROOT / "docs" / "calicoctl.md").read_text().split("```yaml\n")[1:]
    documents = [yaml.safe_load(block.partition("```")[0]) for block in blocks]
    [role] = [d for d in documents if d["kind"] == "ClusterRole" and d["metadata"]["name"] == name]
    for rule in role["rules"]:
        rule["resources"] = [resource for resource in rule["resources"] if resource != without]
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "nobody"}],
    }
    kube.ensure(f"{RBAC}/clusterroles", role)
    kube.ensure(f"{RBAC}/clusterrolebindings", binding)
    try:
        yield nobody(kube)
    finally:
        kube.request("DELETE", f"{RBAC}/clusterrolebindings/{name}")
        kube.request("DELETE", f"{RBAC}/clusterroles/{name}")


def nobody(kube: Cluster) -> DatastoreConfig:
    return DatastoreConfig("kubernetes", kubernetes=KubernetesAccess(kubeconfig=kube.kubeconfig("nobody-token")))


def refused(kube: Cluster, since: int) -> list[str]:
    return [event["requestURI"] for event in kube.audited(since) if event["responseStatus"]["code"] == 403]


@pytest.mark.parametrize("source", ["kubernetes"])
def test_an_export_needs_the_right_to_read(
    source: str, first: KubeNode, stores: Stores, pod_ns: Namespace, tmp_path: Path
) -> None:
    kube = stores.kube
    kube.create_pod(first.namespace, "web-0", first.nodename)
    assert first.pod_call("ADD", "web-0", PODS["web-0"], pod_ns.path).ok
    stores.migrate("kubernetes", "lock")
    exported = str(tmp_path / "all.json")
    stores.migrate("kubernetes", "export", "-o", exported)
    stores.configs["kubernetes"] = nobody(kube)
    without = stores.migrate("kubernetes", "export", fails=True)
    assert 'User "nobody" cannot get resource "clusterinformations"' in without
    with nobody_with(kube, "calicoctl-reader"):
        since = len(kube.audited())
        mine = str(tmp_path / "mine.json")
        stores.migrate("kubernetes", "export", "-o", mine)
        records = [json.loads(Path(path).read_text())["records"] for path in (exported, mine)]
        assert records[0] == records[1] and len(records[0]) > 8
        assert stores.problems("kubernetes") == [] and not refused(kube, since)
        for argv in (("datastore", "migrate", "unlock"), ("apply", "-f", _pool_file(tmp_path))):
            assert "cannot update resource" in stores.calicoctl("kubernetes", *argv, fails=True)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["etcd"])
def test_an_import_needs_the_right_to_write(
    source: str, first: KubeNode, stores: Stores, pod_ns: Namespace, tmp_path: Path
) -> None:
    """It breaks off at the first right that is missing, and is repeated with it."""
    kube = stores.kube
    kube.create_pod(first.namespace, "web-0", first.nodename)
    assert first.pod_call("ADD", "web-0", PODS["web-0"], pod_ns.path).ok
    stores.migrate(source, "lock")
    exported = str(tmp_path / "all.json")
    stores.migrate(source, "export", "-o", exported)
    stores.configs["kubernetes"] = nobody(kube)
    with nobody_with(kube, "calicoctl-reader"):
        without = stores.migrate("kubernetes", "import", "-f", exported, fails=True)
        assert 'User "nobody" cannot create resource "clusterinformations"' in without
    with nobody_with(kube, "calicoctl-importer", without="pods/status"):
        without = stores.migrate("kubernetes", "import", "-f", exported, fails=True)
        assert 'User "nobody" cannot patch resource "pods/status"' in without
        assert "an import of it was not finished" in stores.migrate("kubernetes", "unlock", fails=True)
    with nobody_with(kube, "calicoctl-importer"):
        since = len(kube.audited())
        stores.migrate("kubernetes", "import", "-f", exported)
        stores.migrate("kubernetes", "unlock")
        assert not refused(kube, since)
    assert first.annotations("web-0")["containerID"] == PODS["web-0"]
    with nobody_with(kube, "calicoctl-reader"):
        assert stores.problems("kubernetes") == []
