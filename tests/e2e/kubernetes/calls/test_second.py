"""A second interface of a pod, from the same network."""

from __future__ import annotations

import pytest

from tests.e2e.kubernetes.node import KubeNode
from tests.e2e.kubernetes.pods import C1, pod
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]


def test_a_second_interface_of_a_pod_is_refused(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    """Upstream renames the pod's first interface without a word."""
    pod(any_kube_node)
    first = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path)
    assert first.ok, first
    for _ in range(2):
        second = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, ifname="net1")
        assert not second.ok and "it exists through eth0" in second.document["msg"], second
        assert "calico gives a pod one interface" in second.document["details"]
        assert "macvlan" in second.document["details"]
        assert pod_ns.link("net1") is None and len(any_kube_node.taken()) == 1
        assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path, ifname="net1").ok
    assert any_kube_node.pod_call("CHECK", "web-0", C1, pod_ns.path, prevResult=first.document).ok
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    assert not any_kube_node.leftovers()
