"""Pools that are there and must not be used, as the API server shows them: being deleted, or told not to allocate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cni_calico.model.kubernetes.custom import METADATA
from tests.deadlines import until
from tests.e2e.kubernetes.node import KubeNode
from tests.e2e.kubernetes.pods import C1, C2, ips
from tests.fixtures.namespaces import MakeNamespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

POOLS = "/apis/crd.projectcalico.org/v1/ippools"
MERGE = "application/merge-patch+json"


@pytest.fixture(params=["alone", "served"])
def two_pool_node(request: pytest.FixtureRequest, unserved_node: KubeNode) -> Iterator[KubeNode]:
    """With a second pool, which comes after pool4 in the order of names."""
    unserved_node.apply("IPPool", "pool4-next", {"cidr": "10.71.0.0/24", "blockSize": 28})
    for name in ("one", "two"):
        unserved_node.kube.create_pod(unserved_node.namespace, name, unserved_node.nodename)
    if request.param == "alone":
        yield unserved_node
        return
    with unserved_node.server():
        yield unserved_node


def turns_away(node: KubeNode, make_pod_ns: MakeNamespace) -> bool:
    """Whether a pod gets an address of the other pool now; the server hears of it a little later."""
    [address] = ips(node.pod_call("ADD", "two", C2, make_pod_ns().path))
    assert node.pod_call("DEL", "two", C2).ok
    return address.startswith("10.71.0.")


def test_a_pool_that_is_being_deleted(two_pool_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """Held by a finalizer. Who has an address of it keeps that, and can give it back."""
    [address] = ips(two_pool_node.pod_call("ADD", "one", C1, make_pod_ns().path))
    assert address.startswith("10.65.")
    path = f"{POOLS}/pool4"
    two_pool_node.kube.request("PATCH", path, {"metadata": {"finalizers": ["example.org/hold"]}}, content_type=MERGE)
    try:
        two_pool_node.kube.request("DELETE", path)
        assert two_pool_node.kube.request("GET", path)["metadata"]["deletionTimestamp"]
        until(lambda: turns_away(two_pool_node, make_pod_ns), "the pool is not used any more", 20)
        assert address.removesuffix("/32") in two_pool_node.taken()
        assert two_pool_node.pod_call("DEL", "one", C1).ok
        assert two_pool_node.taken() == {}
    finally:
        two_pool_node.kube.request("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)


def test_a_pool_whose_condition_says_no(two_pool_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    [address] = ips(two_pool_node.pod_call("ADD", "one", C1, make_pod_ns().path))
    assert address.startswith("10.65.")
    condition = {
        "type": "Allocatable",
        "status": "False",
        "reason": "PoolDisabled",
        "message": "",
        "lastTransitionTime": "2026-11-20T12:00:00Z",
    }
    two_pool_node.kube.request("PATCH", f"{POOLS}/pool4", {"status": {"conditions": [condition]}}, content_type=MERGE)
    assert two_pool_node.kube.request("GET", f"{POOLS}/pool4")["status"]["conditions"] == [condition]
    until(lambda: turns_away(two_pool_node, make_pod_ns), "the pool is not used any more", 20)
    assert two_pool_node.pod_call("DEL", "one", C1).ok


def test_a_pool_that_nobody_can_read(two_pool_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """kubectl gets any text into an annotation."""
    wrong = {"metadata": {"annotations": {METADATA: "{"}}}
    two_pool_node.kube.request("PATCH", f"{POOLS}/pool4", wrong, content_type=MERGE)
    until(lambda: turns_away(two_pool_node, make_pod_ns), "the other pool is used", 20)
