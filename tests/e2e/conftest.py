"""Fixtures of the end-to-end tests: a node per datastore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cni_calico.model.access import DatastoreConfig
from tests.e2e.forks import forks_in
from tests.e2e.host import EtcdNode, Node, etcd_in
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import KubeNode, kube_node
from tests.e2e.kubernetes.roles import with_agent_roles
from tests.e2e.served import ForkedServer
from tests.netns.namespaces import Namespace

ELSEWHERE = pytest.param("served elsewhere", marks=pytest.mark.slow)


def mounts_of_its_own(node: Node) -> list[str]:
    """Words before a server's command line, after which it does not see its callers' state and log."""
    state, log = node.root / "state", node.root / "cni.log"
    state.mkdir(exist_ok=True)
    log.touch()
    script = f'mount -t tmpfs none {state} && mount --bind /dev/null {log} && exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, "sh"]


@pytest.fixture(params=["one-shot", "served", ELSEWHERE])
def node(request: pytest.FixtureRequest, plain_node: Node) -> Iterator[Node]:
    """The same node, without and with a resident server; also with one in a mount namespace of its own."""
    if request.param == "one-shot":
        yield plain_node
        return
    if request.param == "served elsewhere":
        with plain_node.server(wrap=mounts_of_its_own(plain_node)):
            yield plain_node
        return
    with ForkedServer(plain_node):
        yield plain_node


@pytest.fixture(
    params=[
        "one-shot",
        "served",
        pytest.param("one-shot on etcd", marks=[pytest.mark.etcd, pytest.mark.slow]),
        pytest.param("served on etcd", marks=[pytest.mark.etcd, pytest.mark.slow]),
        pytest.param("served, frozen", marks=[pytest.mark.bundle, pytest.mark.slow]),
    ]
)
def any_node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """The same node without and with a resident server, on both datastores; also with the frozen executables."""
    made: Node = request.getfixturevalue("etcd_node" if "etcd" in request.param else "plain_node")
    with ExitStack() as stack:
        if "frozen" in request.param:
            made.bin_dir = request.getfixturevalue("bundle")
        if "etcd" in request.param:
            made.forks = stack.enter_context(forks_in(made.host))
        if "served" in request.param:
            stack.enter_context(made.server())
        yield made


@pytest.fixture
def etcd_node(host_ns: Namespace, tmp_path: Path) -> Iterator[EtcdNode]:
    """A node with a real etcd of its own, in the same namespace."""
    with etcd_in(host_ns, tmp_path) as etcd:
        made = EtcdNode(host_ns, tmp_path, DatastoreConfig("etcdv3", etcd_endpoints=(etcd.client_url,)), etcd=etcd)
        (tmp_path / "run").mkdir()
        made.apply_pools()
        yield made


@pytest.fixture(params=["one-shot", "served", ELSEWHERE])
def on_etcd(request: pytest.FixtureRequest, etcd_node: EtcdNode) -> Iterator[EtcdNode]:
    """The same node, without and with a resident server; also with one in a mount namespace of its own."""
    with ExitStack() as stack:
        etcd_node.forks = stack.enter_context(forks_in(etcd_node.host))
        if request.param != "one-shot":
            wrap = mounts_of_its_own(etcd_node) if request.param == ELSEWHERE.values[0] else ()
            stack.enter_context(etcd_node.server(wrap=wrap))
        yield etcd_node


@pytest.fixture(params=["local", pytest.param("etcd", marks=pytest.mark.etcd)])
def forking_node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node whose calls fork from a process that has everything imported."""
    made: Node = request.getfixturevalue("plain_node" if request.param == "local" else "etcd_node")
    with forks_in(made.host) as made.forks:
        yield made
    made.forks = None


@pytest.fixture
def pods_node(kube: Cluster, host_ns: Namespace, tmp_path: Path) -> Iterator[KubeNode]:
    """On the Kubernetes datastore, without a server; every call is of the same pod."""
    with kube_node(kube, host_ns, tmp_path) as made, forks_in(host_ns) as made.forks:
        kube.create_pod(made.namespace, "web-0", made.nodename)
        made.timeout_s = 120
        made.environ["CNI_ARGS"] = f"IgnoreUnknown=1;K8S_POD_NAMESPACE={made.namespace};K8S_POD_NAME=web-0"
        yield made


@pytest.fixture
def agent_rights(kube: Cluster) -> Iterator[Cluster]:
    with with_agent_roles(kube, "calico.yaml") as made:
        yield made
