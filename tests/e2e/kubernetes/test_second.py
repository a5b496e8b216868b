"""A second interface of a pod, from the same network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kube import Cluster
from tests.e2e.kube_node import KubeNode
from tests.e2e.kubernetes.test_cni import C1, KINDS, node_on, pod
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]


@pytest.fixture(params=KINDS)
def node(request: pytest.FixtureRequest, kube: Cluster, host_ns: Namespace, tmp_path: Path) -> Iterator[KubeNode]:
    with node_on(request.param, kube, host_ns, tmp_path) as made:
        yield made


def test_a_second_interface_of_a_pod_is_refused(node: KubeNode, pod_ns: Namespace) -> None:
    """Upstream renames the pod's first interface without a word."""
    pod(node)
    first = node.pod_call("ADD", "web-0", C1, pod_ns.path)
    assert first.ok, first
    for _ in range(2):
        second = node.pod_call("ADD", "web-0", C1, pod_ns.path, ifname="net1")
        assert not second.ok and "it exists through eth0" in second.document["msg"], second
        assert "calico gives a pod one interface" in second.document["details"]
        assert "macvlan" in second.document["details"]
        assert pod_ns.link("net1") is None and len(node.taken()) == 1
        assert node.pod_call("DEL", "web-0", C1, pod_ns.path, ifname="net1").ok
    assert node.pod_call("CHECK", "web-0", C1, pod_ns.path, prevResult=first.document).ok
    assert node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    assert not node.leftovers()
