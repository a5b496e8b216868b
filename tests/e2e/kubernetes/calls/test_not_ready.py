"""A Kubernetes datastore without ClusterInformation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import not_ready
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import KubeNode, node_on
from tests.e2e.kubernetes.pods import C1, pod
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]


@pytest.fixture(params=["kubernetes", "kubernetes served"])
def unready_node(
    request: pytest.FixtureRequest, kube: Cluster, host_ns: Namespace, tmp_path: Path
) -> Iterator[KubeNode]:
    with node_on(request.param, kube, host_ns, tmp_path) as made:
        yield made


def test_a_cluster_without_cluster_information(unready_node: KubeNode, pod_ns: Namespace) -> None:
    """A pod's calls, with the record gone and with one that says no; then all goes on."""
    pod(unready_node)
    assert unready_node.pod_call("ADD", "web-0", C1, pod_ns.path).ok
    assert not_ready.try_datastore(unready_node).ok
    before = unready_node.dump()
    for document, text in (
        (None, "while Calico is being installed"),
        ({"datastoreReady": False}, "datastoreReady: false"),
    ):
        if document is None:
            unready_node.put({not_ready.CLUSTER: None})
        else:
            unready_node.apply("ClusterInformation", "default", document)
        replies = {
            command: unready_node.pod_call(command, "web-0", C1, pod_ns.path, **not_ready.GC)
            for command in not_ready.CODES
        }
        replies["-t"] = not_ready.try_datastore(unready_node)
        for command, reply in replies.items():
            assert reply.rc == 1 and reply.document["msg"].startswith(not_ready.TEXT), (command, reply)
            assert reply.document["code"] == not_ready.CODES.get(command, 11), (command, reply)
            assert text in reply.document["details"], (command, reply)
        assert pod_ns.link("eth0") is not None and unready_node.annotations("web-0")["podIP"]
        assert {k: v for k, v in unready_node.dump().items() if k != not_ready.CLUSTER} == {
            k: v for k, v in before.items() if k != not_ready.CLUSTER
        }
    unready_node.apply_cluster()
    assert unready_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok and not unready_node.leftovers()


def test_calico_ipam_by_itself(unready_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """It asks only whether the record says no."""
    unready_node.put({not_ready.CLUSTER: None})
    assert unready_node.call("STATUS", "", "", plugin="calico-ipam").ok
    assert unready_node.call("ADD", "c2", make_pod_ns().path, plugin="calico-ipam").ok
    assert unready_node.call("DEL", "c2", "", plugin="calico-ipam").ok
    unready_node.apply("ClusterInformation", "default", {"datastoreReady": False})
    not_ready.refusals(unready_node, "/proc/self/ns/net", "calico-ipam")
    assert not unready_node.taken()
