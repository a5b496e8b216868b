"""A pod's calls and what they are compared with: helpers of the tests of CNI calls."""

from __future__ import annotations

import json
from typing import Any

from tests.deadlines import until
from tests.e2e.host import Reply
from tests.e2e.kubernetes.cluster import CNI_USER
from tests.e2e.kubernetes.node import POD_PREFIX, KubeNode
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

C1, C2 = "c1" * 32, "c2" * 32
DUAL = {"type": "calico-ipam", "assign_ipv6": "true"}


def pod(node: KubeNode, name: str = "web-0", **metadata: Any) -> None:
    annotations = {
        POD_PREFIX + k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.pop("ask", {}).items()
    }
    if annotations:
        metadata["annotations"] = annotations
    node.kube.create_pod(node.namespace, name, node.nodename, **metadata)


def ips(reply: Any) -> list[str]:
    assert reply.ok, reply.document
    return [ip["address"] for ip in reply.document["ips"]]


def endpoint(node: KubeNode) -> dict[str, Any]:
    [found] = node.endpoints()
    return found


def add(node: KubeNode, pod_ns: Namespace) -> Reply:
    return node.pod_call("ADD", "web-0", C1, pod_ns.path)


def known_pods(node: KubeNode) -> float:
    return sum(value for name, value in node.metrics().items() if name.startswith("calico_kubernetes_pods"))


def make_pods(node: KubeNode, *names: str) -> None:
    """Pods that the server has heard of (once it has been called at all)."""
    before = known_pods(node)
    for name in names:
        node.kube.create_pod(node.namespace, name, node.nodename)
    if before:
        until(lambda: known_pods(node) >= before + len(names), "the server knows the pods", 10)


def asked(node: KubeNode, since: int) -> list[tuple[str, str]]:
    """(verb, resource) of the plugin's requests but its watches."""
    return [
        (event["verb"], event["objectRef"]["resource"])
        for event in node.kube.audited(since)
        if event["user"]["username"] == CNI_USER and event["verb"] != "watch"
    ]


def warm_up(node: KubeNode, make: MakeNamespace, **more: Any) -> None:
    """The first call opens everything, claims blocks and spare ones."""
    make_pods(node, "first", "second")
    assert node.pod_call("ADD", "first", "f" * 64, make().path, **more).ok
    until(lambda: known_pods(node) >= 2, "the server knows the pods", 10)
    assert node.pod_call("ADD", "second", "e" * 64, make().path, **more).ok


def repeat_del(node: KubeNode, netns: str) -> None:
    """Asks for nothing."""
    since = len(node.kube.audited())
    assert node.pod_call("DEL", "p", "1" * 64, netns, uid="").ok
    assert not asked(node, since)
