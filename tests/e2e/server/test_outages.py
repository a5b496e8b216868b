"""What others change while the resident server cannot see it counts as soon as the datastore answers again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.e2e.host import EtcdNode, Node
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import kube_node
from tests.e2e.served import call
from tests.e2e.wire import Wire, wire_in
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.netns, pytest.mark.etcd]
PORT, TARGET = 23790, 2379


@pytest.fixture
def wired(etcd_node: EtcdNode) -> Iterator[tuple[EtcdNode, Wire]]:
    """A node whose CNI calls reach etcd over a wire; the test itself does not."""
    with wire_in(etcd_node.host, PORT, TARGET) as wire:
        etcd_node.overrides["etcd_endpoints"] = f"http://127.0.0.1:{PORT}"
        yield etcd_node, wire


def address(reply) -> str:
    assert reply.ok, reply
    return str(reply.document["ips"][0]["address"])


def disable(node: Node) -> None:
    node.apply("IPPool", "pool4", {"cidr": "10.65.0.0/16", "blockSize": 26, "nodeSelector": "all()", "disabled": True})


@pytest.mark.parametrize("how", ["cut", "freeze"])
def test_a_pool_that_is_disabled_during_an_outage_is_not_used_after_it(wired, make_pod_ns, how: str):
    node, wire = wired
    pods = [make_pod_ns().path for _ in range(3)]
    with node.server():
        assert address(call(node, "ADD", "c1", pods[0])).startswith("10.65.")
        getattr(wire, how)()
        failed = call(node, "ADD", "c2", pods[1])
        assert not failed.ok and "etcd" in failed.document["msg"], failed
        disable(node)
        wire.mend()
        refused = call(node, "ADD", "c3", pods[2])  # what c2 had asked for may have been on the wire all the time
        assert not refused.ok and "no IPv4 pool exists that is enabled" in refused.document["msg"], refused
        assert all(call(node, "DEL", f"c{i + 1}", pod).ok for i, pod in enumerate(pods))
        node.apply("IPPool", "pool5", {"cidr": "10.66.0.0/16", "blockSize": 26, "nodeSelector": "all()"})
        assert address(call(node, "ADD", "c4", pods[0])).startswith("10.66.")
        assert call(node, "DEL", "c4", pods[0]).ok
    assert not node.leftovers()


def test_the_cluster_is_closed_during_an_outage(wired, make_pod_ns):
    node, wire = wired
    pod, other = make_pod_ns(), make_pod_ns()
    with node.server():
        assert call(node, "ADD", "c1", pod.path).ok
        wire.cut()
        assert not call(node, "ADD", "c2", other.path).ok
        node.apply("ClusterInformation", "default", {"clusterGUID": "0" * 32, "datastoreReady": False})
        wire.mend()
        refused = call(node, "ADD", "c2", other.path)
        assert not refused.ok and "Calico is currently not ready" in refused.document["msg"], refused
        node.apply("ClusterInformation", "default", {"clusterGUID": "0" * 32, "datastoreReady": True})
        assert call(node, "DEL", "c1", pod.path).ok
    assert not node.leftovers()


@pytest.mark.kubernetes
def test_the_watches_of_kubernetes_end(kube: Cluster, host_ns: Namespace, make_pod_ns, tmp_path: Path):
    """The API server is out of this node's reach; others change the pool and a namespace meanwhile."""
    with kube_node(kube, host_ns, tmp_path) as node, node.server():
        for name in ("first", "second"):
            kube.create_pod(node.namespace, name, node.nodename)
        pods = [make_pod_ns() for _ in range(2)]
        assert address(node.pod_call("ADD", "first", "a" * 64, pods[0].path)).startswith("10.65.")
        node.relay.close()
        assert not node.pod_call("ADD", "second", "b" * 64, pods[1].path).ok
        disable(node)
        node.relay.open()
        refused = node.pod_call("ADD", "second", "b" * 64, pods[1].path)
        assert not refused.ok and "no IPv4 pool exists that is enabled" in refused.document["msg"], refused
        until(lambda: healthy(node), "everything is watched again", 30)
        assert node.pod_call("DEL", "first", "a" * 64, pods[0].path).ok
        assert not node.leftovers()


def healthy(node: Node) -> bool:
    return all(value == 1 for name, value in node.metrics().items() if name.startswith("calico_cni_caches_healthy"))
