"""Nodes whose pods are those of a real API server: with every right, with those of the manifests, behind a front."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.e2e.forks import forks_in
from tests.e2e.kubernetes.cluster import NATIVE_ROOT, Cluster, native_cluster
from tests.e2e.kubernetes.node import KubeNode, Relay, kube_node, node_on
from tests.e2e.kubernetes.roles import every_right, node_with_role
from tests.fakes.http_front import Front, front_of
from tests.netns.namespaces import Namespace

KINDS = [
    "kubernetes",
    "local",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("kubernetes served", "etcd", "etcd served")),
]


@pytest.fixture(params=KINDS)
def any_kube_node(
    request: pytest.FixtureRequest, kube: Cluster, host_ns: Namespace, tmp_path: Path
) -> Iterator[KubeNode]:
    """Without and with a resident server, on each datastore."""
    with node_on(request.param, kube, host_ns, tmp_path) as made:
        yield made


@pytest.fixture(params=["one-shot", "served"])
def either_kube_node(
    request: pytest.FixtureRequest, kube: Cluster, host_ns: Namespace, tmp_path: Path
) -> Iterator[KubeNode]:
    """Without and with a resident server, on the Kubernetes datastore."""
    with _forked_node(kube, host_ns, tmp_path, served=request.param == "served") as made:
        yield made


@pytest.fixture(params=["one-shot", "served"])
def native_node(request: pytest.FixtureRequest, host_ns: Namespace, tmp_path: Path) -> Iterator[KubeNode]:
    """The same in a cluster of projectcalico.org/v3."""
    kube = native_cluster()
    kube.empty(NATIVE_ROOT)
    with _forked_node(kube, host_ns, tmp_path, served=request.param == "served") as made:
        yield made


@contextmanager
def _forked_node(kube: Cluster, host: Namespace, root: Path, *, served: bool) -> Iterator[KubeNode]:
    with ExitStack() as stack:
        made = stack.enter_context(kube_node(kube, host, root))
        made.forks = stack.enter_context(forks_in(host))
        if served:
            stack.enter_context(made.server())
        yield made


@pytest.fixture
def unserved_node(kube: Cluster, host_ns: Namespace, tmp_path: Path) -> Iterator[KubeNode]:
    """A node without server; its plugin has a user of its own, by which its requests are known in the audit log."""
    with every_right(kube), kube_node(kube, host_ns, tmp_path) as made:
        made.token = "cni-token"
        yield made


@pytest.fixture
def served_node(unserved_node: KubeNode) -> Iterator[KubeNode]:
    """The same, with the resident server."""
    with unserved_node.server():
        yield unserved_node


@pytest.fixture
def restricted(kube: Cluster, host_ns: Namespace, tmp_path: Path) -> Iterator[KubeNode]:
    with node_with_role("calico.yaml", kube, host_ns, tmp_path) as made:
        yield made


@pytest.fixture
def api_front(kube: Cluster) -> Iterator[Front]:
    with front_of("127.0.0.1", kube.port, kube.ca) as made:
        yield made


@pytest.fixture
def fronted_node(kube: Cluster, host_ns: Namespace, tmp_path: Path, api_front: Front) -> Iterator[KubeNode]:
    """A node without server whose plugin sees the front; what the tests look at they read past it."""
    with kube_node(kube, host_ns, tmp_path) as made, forks_in(host_ns) as forks:
        relay = Relay(host_ns, api_front.port)
        try:
            path = tmp_path / "kubeconfig"
            document = json.loads(Path(kube.kubeconfig()).read_text())
            document["clusters"][0]["cluster"] = {"server": api_front.url}
            path.write_text(json.dumps(document))
            made.overrides["kubernetes"] = {"kubeconfig": str(path)}
            made.forks = forks
            kube.create_pod(made.namespace, "web-0", made.nodename)
            yield made
        finally:
            relay.close()


@pytest.fixture(params=["one-shot", "served"])
def troubled_node(request: pytest.FixtureRequest, fronted_node: KubeNode) -> Iterator[KubeNode]:
    if request.param == "one-shot":
        yield fronted_node
        return
    with fronted_node.server():
        yield fronted_node
