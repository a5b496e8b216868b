"""Networks with different datastores in one server, at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cni_calico.model.access import DatastoreConfig
from tests.contract.etcd_process import Member
from tests.e2e.forks import forks_in
from tests.e2e.host import EtcdNode, Node, etcd_in
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import kube_node
from tests.e2e.served import call
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.netns, pytest.mark.etcd]
PER_NETWORK = 6


def second_etcd(host: Namespace, directory: Path, undo: ExitStack) -> Member:
    peer = "http://127.0.0.1:12380"
    member = Member("two", "http://127.0.0.1:12379", peer, directory, prefix=("nsenter", f"--net={host.path}"))
    member.start(f"two={peer}")
    undo.callback(member.stop)
    member.wait_serving()
    return member


@pytest.fixture
def networks(host_ns: Namespace, tmp_path: Path) -> Iterator[dict[str, Node]]:
    """One node, three networks: each with a datastore and a pool of its own."""
    with ExitStack() as undo:
        first = undo.enter_context(etcd_in(host_ns, tmp_path))
        second = second_etcd(host_ns, tmp_path, undo)
        forks = [undo.enter_context(forks_in(host_ns)) for _ in range(2)]  # each has one call at a time
        (tmp_path / "run").mkdir()
        made: dict[str, Node] = {
            "net-local": Node(host_ns, tmp_path, DatastoreConfig("local", path=str(tmp_path / "datastore.db"))),
            "net-one": EtcdNode(host_ns, tmp_path, etcd_of(first), etcd=first, forks=forks[0]),
            "net-two": EtcdNode(host_ns, tmp_path, etcd_of(second), etcd=second, forks=forks[1]),
        }
        for i, (name, node) in enumerate(made.items()):
            node.overrides["name"] = name
            node.apply_cluster()
            node.apply("IPPool", "pool", {"cidr": f"10.{70 + i}.0.0/16", "blockSize": 26, "nodeSelector": "all()"})
        yield made


def etcd_of(member: Member) -> DatastoreConfig:
    return DatastoreConfig("etcdv3", etcd_endpoints=(member.client_url,))


def test_each_network_keeps_to_its_own_datastore(networks: dict[str, Node], make_pod_ns: Any):
    nodes = list(networks.values())
    work = [(node, f"c{i}-{n}", make_pod_ns().path) for i in range(PER_NETWORK) for n, node in enumerate(nodes)]
    with nodes[0].server(), ThreadPoolExecutor(6) as pool:
        for _ in range(2):
            added = list(pool.map(lambda one: (one[0], call(one[0], "ADD", one[1], one[2])), work))
            for i, node in enumerate(nodes):
                replies = [reply for of, reply in added if of is node]
                assert all(reply.ok for reply in replies), replies
                given = {reply.document["ips"][0]["address"].partition("/")[0] for reply in replies}
                assert len(given) == PER_NETWORK and set(node.taken()) == given
                assert all(address.startswith(f"10.{70 + i}.") for address in given)
                assert len(node.endpoints()) == PER_NETWORK
            assert all(pool.map(lambda one: call(one[0], "DEL", one[1], one[2]).ok, work))
        metrics = nodes[0].metrics()
        assert metrics["calico_cni_backends"] == 3 and metrics["calico_cni_declined_total"] == 0
    assert not any(node.leftovers() for node in nodes)


def test_one_datastore_that_is_down_is_its_own_networks_trouble(networks: dict[str, Node], make_pod_ns: Any):
    local, one, _ = networks.values()
    pods = {node.overrides["name"]: make_pod_ns().path for node in networks.values()}
    assert isinstance(one, EtcdNode)
    with local.server():
        for name, node in networks.items():
            assert call(node, "ADD", f"c1-{name}", pods[name]).ok
        one.stop_etcd()
        for name, node in networks.items():
            again = call(node, "DEL", f"c1-{name}", pods[name])
            assert again.ok, again
            assert call(node, "ADD", f"c2-{name}", pods[name]).ok == (node is not one)
        assert len(one.intents()) == 1
        one.start_etcd()
        assert call(one, "ADD", "c3", pods["net-one"]).ok
        assert not one.intents(), "what was owed is paid by the next call that succeeds"
        assert call(one, "DEL", "c3", pods["net-one"]).ok
        for name in ("net-local", "net-two"):
            assert call(networks[name], "DEL", f"c2-{name}", pods[name]).ok
    assert not any(node.leftovers() for node in networks.values())


@pytest.mark.kubernetes
def test_kubernetes_beside_the_embedded_store(kube: Cluster, host_ns: Namespace, make_pod_ns: Any, tmp_path: Path):
    own = Node(host_ns, tmp_path, DatastoreConfig("local", path=str(tmp_path / "datastore.db")))
    own.overrides["name"] = "net-local"
    own.apply("IPPool", "pool", {"cidr": "10.70.0.0/16", "blockSize": 26, "nodeSelector": "all()"})
    with kube_node(kube, host_ns, tmp_path) as node, node.server():
        kube.create_pod(node.namespace, "pod", node.nodename)
        pods = [make_pod_ns().path for _ in range(2)]
        first = node.pod_call("ADD", "pod", "a" * 64, pods[0])
        second = call(own, "ADD", "c1", pods[1])
        assert first.ok and second.ok, (first, second)
        assert set(own.taken()) == {second.document["ips"][0]["address"].partition("/")[0]}
        assert set(node.taken()) == {first.document["ips"][0]["address"].partition("/")[0]}
        assert node.pod_call("DEL", "pod", "a" * 64, pods[0]).ok and call(own, "DEL", "c1", pods[1]).ok
        assert node.metrics()["calico_cni_backends"] == 2
        assert not own.leftovers() and not node.leftovers()
