"""What somebody who may patch pods can do to a node's routes: nothing.

A real API server, a real agent; told by ``ip``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.e2e.host import addresses
from tests.e2e.kubernetes.agent import agent
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import POD_PREFIX, KubeNode, kube_node
from tests.netns.namespaces import Namespace
from tests.netns.startups import add_card

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

MERGE = "application/merge-patch+json"
SERVICE = "10.96.0.1"


def routes(host: Namespace) -> list[tuple[str, str, str]]:
    """(destination, via, device) of both families, except what the kernel itself makes."""
    found = [route for version in (4, 6) for route in host.routes(version) if route.get("protocol") != "kernel"]
    return sorted((route["dst"], route.get("gateway", ""), route.get("dev", "")) for route in found)


def metrics(host: Namespace, address: str) -> list[int]:
    return [route.get("metric", 0) for route in host.routes(4) if route["dst"] == address]


def claim(node: KubeNode, pod: str, text: str) -> None:
    body = {"metadata": {"annotations": {f"{POD_PREFIX}podIPs": text, f"{POD_PREFIX}podIP": text.partition(",")[0]}}}
    node.kube.request("PATCH", f"/api/v1/namespaces/{node.namespace}/pods/{pod}", body, content_type=MERGE)


@pytest.mark.takes(15)
@pytest.mark.parametrize("served", [False, True], ids=["one-shot", "served"])
def test_an_annotation_takes_no_route(
    kube: Cluster, host_ns: Namespace, pod_ns: Namespace, tmp_path: Path, served: bool
) -> None:
    add_card(host_ns, "eth0", "10.0.0.5/24")
    host_ns.do("route", "add", f"{SERVICE}/32", "via", "192.0.2.1")
    with kube_node(kube, host_ns, tmp_path) as node:
        pod = kube.create_pod(node.namespace, "web-0", node.nodename)
        added = _call(node, served, "ADD", pod, pod_ns.path)
        [own, *_] = [address.partition("/")[0] for address in addresses(added)]
        with agent(node):
            until(lambda: metrics(host_ns, own) == [1024], "the pod's route is the agent's")
            before = routes(host_ns)
            assert {dst for dst, _, _ in before} >= {"default", SERVICE, own}
            claim(node, "web-0", f"0.0.0.0/0,{SERVICE}/32,::/0,{own}/32")
            log = node.root / "agent.log"
            until(
                lambda: "which neither IPAM nor a podCIDR confirms: not routed" in log.read_text(),
                "the agent has seen the claim",
                30,
            )
            assert routes(host_ns) == before
            claim(node, "web-0", f"{own}/32")
            pod_route = next(route for route in before if route[0] == own)
            host_ns.do("route", "del", own)  # a later pass, which repairs this, has left the others alone, too
            until(lambda: pod_route in routes(host_ns), "the pod's route is repaired", 60)
            assert routes(host_ns) == before
        assert _call(node, served, "DEL", pod, pod_ns.path).ok
        assert routes(host_ns) == [route for route in before if route[2] != pod_route[2]]


def _call(node: KubeNode, served: bool, verb: str, pod: dict[str, Any], path: str) -> Any:
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    if not served:
        return node.pod_call(verb, name, "c1", path, uid=uid)
    with node.server():
        return node.pod_call(verb, name, "c1", path, uid=uid)
