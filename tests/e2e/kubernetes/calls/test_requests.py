"""Pods with two families on a real API server: what they ask for is counted, what they store is upstream's.

Requests are taken from the API server's audit log: none that the plugin forgot to count. Objects are read raw and laid
beside those that upstream stored for a node and pools of the same names.
"""

from __future__ import annotations

import json
import re
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.e2e.kubernetes.node import KubeNode
from tests.e2e.kubernetes.pods import DUAL, asked, make_pods, repeat_del, warm_up
from tests.fixtures.namespaces import MakeNamespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

UPSTREAM = Path(__file__).parents[3] / "golden" / "vectors" / "k8s-02-pods.json"
IPAM = ("ipamblocks", "blockaffinities", "ipamhandles", "ipamconfigs")
CRD = "/apis/crd.projectcalico.org/v1"


def test_dual_stack_del(served_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """One write more than with one family: a block of each."""
    netns = make_pod_ns().path
    warm_up(served_node, make_pod_ns, ipam=DUAL)
    make_pods(served_node, "p")
    assert served_node.pod_call("ADD", "p", "1" * 64, netns, ipam=DUAL).ok
    since = len(served_node.kube.audited())
    assert served_node.pod_call("DEL", "p", "1" * 64, netns, ipam=DUAL).ok
    blocks = [("update", "ipamblocks")] * 2
    wanted = [("patch", "pods"), *blocks, ("update", "ipamhandles"), ("delete", "ipamhandles")]
    until(lambda: asked(served_node, since) == wanted, "the requests of a DEL", 10)
    repeat_del(served_node, netns)


def test_dual_stack_without_the_server(unserved_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """A second family costs its affinities and its block, read and written: three requests beyond the twelve."""
    for name in ("first", "p"):
        unserved_node.kube.create_pod(unserved_node.namespace, name, unserved_node.nodename)
    assert unserved_node.pod_call("ADD", "first", "f" * 64, make_pod_ns().path, ipam=DUAL).ok
    netns = make_pod_ns().path
    since = len(unserved_node.kube.audited())
    assert unserved_node.pod_call("ADD", "p", "1" * 64, netns, ipam=DUAL).ok
    requests = asked(unserved_node, since)
    assert len(requests) <= 15 and len([verb for verb, _ in requests if verb not in ("get", "list")]) == 4
    assert ("list", "pods") not in requests and ("list", "ipamblocks") not in requests
    since = len(unserved_node.kube.audited())
    assert unserved_node.pod_call("DEL", "p", "1" * 64, netns, ipam=DUAL).ok
    requests = asked(unserved_node, since)
    assert len(requests) <= 10 and not [verb for verb, _ in requests if verb == "list"]


def raw(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Objects without what the API server adds."""
    kept = ("name", "labels", "annotations")
    return [
        {"metadata": {k: v for k, v in obj["metadata"].items() if k in kept}, "spec": obj["spec"]} for obj in objects
    ]


def shape(value: Any) -> Any:
    """The same with other numbers, times and containers is the same."""
    if isinstance(value, dict):
        return {re.sub(r"^\d+$", "N", key): shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        found = [shape(item) for item in value]
        return [item for i, item in enumerate(found) if item not in found[:i]]
    if isinstance(value, int) and not isinstance(value, bool):
        return 0
    if isinstance(value, str):
        text = re.sub(r"\.\d{1,9}(?= \+0000 UTC$)", ".N", value)
        text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d", "TIME", text)
        return re.sub(r"[0-9a-f]{64}", "CONTAINER", text)
    return value


def test_records_are_as_upstream_stores_them(unserved_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """Down to names, labels and annotations; upstream selects by some of them."""
    theirs = {plural: raw(objects) for plural, objects in json.loads(UPSTREAM.read_text()).items() if plural in IPAM}
    unserved_node.kube.create_pod(unserved_node.namespace, "p", unserved_node.nodename)
    reply = unserved_node.pod_call("ADD", "p", "1" * 64, make_pod_ns().path, ipam=DUAL, name="k8s-pod-network")
    assert reply.ok, reply.document
    ours = {plural: raw(unserved_node.kube.request("GET", f"{CRD}/{plural}")["items"]) for plural in IPAM}

    assert [len(ours[plural]) for plural in IPAM] == [2, 2, 1, 1]
    assert ours["ipamconfigs"] == theirs["ipamconfigs"]
    both = next(obj for obj in theirs["ipamhandles"] if len(obj["spec"]["block"]) == 2)
    [handle] = ours["ipamhandles"]
    assert handle["metadata"]["name"] == handle["spec"]["handleID"] == "k8s-pod-network." + "1" * 64
    assert list(handle["spec"]["block"].values()) == [1, 1]
    assert {**shape(handle)["spec"], "block": {}} == {**shape(both)["spec"], "block": {}}
    assert shape(handle)["metadata"] == shape(both)["metadata"]
    assert {blocks_of(obj) for obj in ours["ipamblocks"]} == {blocks_of(obj) for obj in ours["blockaffinities"]}
    blocks = ours["ipamblocks"]
    # the one key that upstream does not write
    interfaces = [entry["secondary"].pop("interface") for obj in blocks for entry in obj["spec"]["attributes"]]
    assert interfaces == ["eth0", "eth0"]
    for family in (4, 6):
        for plural in ("blockaffinities", "ipamblocks"):
            [mine] = [anywhere(obj) for obj in ours[plural] if family_of(obj) == family]
            upstreams = [anywhere(obj) for obj in theirs[plural] if family_of(obj) == family and "node1" in str(obj)]
            assert mine in upstreams, (mine, upstreams)


def blocks_of(obj: dict[str, Any]) -> str:
    return str(obj["spec"]["cidr"])


def family_of(obj: dict[str, Any]) -> int:
    return ip_network(blocks_of(obj)).version


def anywhere(obj: dict[str, Any]) -> Any:
    """A block or affinity as it would be for another block and other pods; its name still follows from the block."""
    cidr = blocks_of(obj)
    text = json.dumps(obj).replace(re.sub(r"[.:/]", "-", cidr), "NAME").replace(cidr, "CIDR")
    found = json.loads(text)
    for attribute in found["spec"].get("attributes", ()):
        attribute["secondary"].update(namespace="", pod="")
    if "allocations" in found["spec"]:
        found["spec"]["allocations"] = len(found["spec"]["allocations"])
        found["spec"]["unallocated"] = []
    return shape(found)
