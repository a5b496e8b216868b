"""A kubeconfig and the files it names lie where the caller is: a server with mounts of its own reads them there."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_calico.model.access import DatastoreConfig
from tests.deadlines import until
from tests.e2e.host import Reply
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import KubeNode, kube_node
from tests.e2e.served import call
from tests.e2e.server.test_mounts import hidden
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

C1 = "c1" * 32
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


@pytest.fixture
def certified(kube: Cluster) -> Iterator[Cluster]:
    """The API server, where the user of the client certificate may do everything."""
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "cert-user"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "cert-user"}],
    }
    kube.ensure(BINDINGS, binding)
    yield kube
    kube.request("DELETE", f"{BINDINGS}/cert-user")


@pytest.fixture(params=["kubernetes", "local"])
def certified_node(
    request: pytest.FixtureRequest, certified: Cluster, host_ns: Namespace, tmp_path: Path
) -> Iterator[KubeNode]:
    """The Kubernetes datastore, and another one with pods of Kubernetes."""
    local = DatastoreConfig("local", path=str(tmp_path / "datastore.db"))
    with kube_node(certified, host_ns, tmp_path, local if request.param == "local" else None) as made:
        certified.create_pod(made.namespace, "web-0", made.nodename, annotations=HARDWARE)
        yield made


HARDWARE = {"cni.projectcalico.org/hwAddr": "02:00:00:00:00:07"}


def write_kubeconfig(node: KubeNode, directory: Path, user: dict[str, Any]) -> None:
    """A kubeconfig in a directory of its own, whose other files it names relative to itself."""
    directory.mkdir(exist_ok=True)
    for name in ("ca.crt", "cert.crt", "cert.key"):
        shutil.copy2(node.kube.directory / name, directory)
    document = {
        "clusters": [{"name": "c", "cluster": {"server": node.kube.url, "certificate-authority": "ca.crt"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (directory / "kubeconfig").write_text(json.dumps(document))
    node.overrides["kubernetes"] = {"kubeconfig": str(directory / "kubeconfig")}


def served(node: KubeNode) -> bool:
    return node.metrics()["calico_cni_declined_total"] == 0


@pytest.mark.parametrize("how", ["token", "certificate"])
def test_the_callers_kubeconfig_and_its_files(
    how: str, certified_node: KubeNode, pod_ns: Namespace, tmp_path: Path
) -> None:
    directory = tmp_path / "net.d"
    user = (
        {"tokenFile": str(directory / "token")}
        if how == "token"
        else {"client-certificate": "cert.crt", "client-key": "cert.key"}
    )
    write_kubeconfig(certified_node, directory, user)
    (directory / "token").write_text("admin-token\n")
    with certified_node.server(wrap=hidden(certified_node, directory)):
        added = certified_node.pod_call("ADD", "web-0", C1, pod_ns.path)
        assert added.ok, added.document
        assert pod_ns.link("eth0")["address"] == "02:00:00:00:00:07"
        assert certified_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
        assert served(certified_node)
    assert certified_node.leftovers() == {}


def test_a_token_is_read_again_where_the_caller_is(certified_node: KubeNode, pod_ns: Namespace, tmp_path: Path) -> None:
    directory = tmp_path / "net.d"
    write_kubeconfig(certified_node, directory, {"tokenFile": "token"})
    (directory / "token").write_text("expired-token\n")
    with certified_node.server(wrap=hidden(certified_node, directory)):
        failed = certified_node.pod_call("ADD", "web-0", C1, pod_ns.path)
        assert failed.document["code"] == 102 and "Unauthorized" in failed.document["msg"]
        (directory / "token").write_text("admin-token\n")
        assert certified_node.pod_call("ADD", "web-0", C1, pod_ns.path).ok
        assert certified_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
        (directory / "ca.crt").unlink()
        (directory / "kubeconfig").rename(directory / "other")
        certified_node.overrides["kubernetes"] = {"kubeconfig": str(directory / "other")}
        missing = certified_node.pod_call("ADD", "web-0", C1, pod_ns.path)
        assert f"cannot read certificate-authority {directory}/ca.crt: no such file" in missing.document["msg"]
        assert served(certified_node)


def call_as_kubelet(node: KubeNode, verb: str, pod_ns: Namespace) -> Reply:
    """Through the executable's own start, which goes on by itself when the server leaves the call to it."""
    uid = node.kube.read_pod(node.namespace, "web-0")["metadata"]["uid"]
    args = f"K8S_POD_NAMESPACE={node.namespace};K8S_POD_NAME=web-0;K8S_POD_UID={uid}"
    return call(node, verb, C1, pod_ns.path, args=args)


def test_a_program_that_gives_credentials(certified_node: KubeNode, pod_ns: Namespace, tmp_path: Path) -> None:
    """It belongs to the caller's root: a server that is elsewhere leaves such calls to the plugin itself."""
    version = "client.authentication.k8s.io/v1"
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": {"token": "admin-token"}})
    program = {
        "apiVersion": version,
        "command": sys.executable,
        "args": ["-c", f"print({answer!r})"],
        "interactiveMode": "Never",
    }
    directory = tmp_path / "net.d"
    write_kubeconfig(certified_node, directory, {"exec": program})
    with certified_node.server(wrap=hidden(certified_node, directory)):
        added = call_as_kubelet(certified_node, "ADD", pod_ns)
        assert added.ok, added.document
        assert pod_ns.link("eth0")["address"] == "02:00:00:00:00:07"
        until(lambda: certified_node.metrics()["calico_cni_declined_total"] == 1, "it was left to the caller")
        assert call_as_kubelet(certified_node, "DEL", pod_ns).ok
    assert certified_node.leftovers() == {}
    with certified_node.server():  # in the caller's own root it may run there
        assert call_as_kubelet(certified_node, "ADD", pod_ns).ok
        assert call_as_kubelet(certified_node, "DEL", pod_ns).ok
        assert served(certified_node)
    assert certified_node.leftovers() == {}
