"""Pods of a real API server, served by the resident server; the audit log counts what it asks of the API server."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from tests.deadlines import until
from tests.e2e.kubernetes.node import KubeNode
from tests.e2e.kubernetes.pods import DUAL, asked, known_pods, make_pods, repeat_del, warm_up
from tests.fixtures.namespaces import MakeNamespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

IPAM_WRITES = [("create", "ipamhandles"), ("update", "ipamblocks")]
RECORDED = [("patch", "pods")]


def test_a_steady_state_add_reads_nothing_and_writes_three_times(
    served_node: KubeNode, make_pod_ns: MakeNamespace
) -> None:
    warm_up(served_node, make_pod_ns)
    for i in range(4):
        make_pods(served_node, f"p{i}")
        since = len(served_node.kube.audited())
        assert served_node.pod_call("ADD", f"p{i}", f"{i}" * 64, make_pod_ns().path).ok
        assert asked(served_node, since) == IPAM_WRITES + RECORDED


def test_dual_stack_writes_four_times(served_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    warm_up(served_node, make_pod_ns, ipam=DUAL)
    make_pods(served_node, "p")
    since = len(served_node.kube.audited())
    reply = served_node.pod_call("ADD", "p", "1" * 64, make_pod_ns().path, ipam=DUAL)
    assert len(reply.document["ips"]) == 2
    assert sorted(asked(served_node, since)) == sorted([*IPAM_WRITES, ("update", "ipamblocks"), *RECORDED])


def test_the_requests_of_a_burst(served_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """Together they share the writes of the block: fewer than three for a pod."""
    warm_up(served_node, make_pod_ns)
    names = [f"p{i}" for i in range(12)]
    make_pods(served_node, *names)
    spaces = [make_pod_ns() for _ in names]
    since = len(served_node.kube.audited())
    replies: dict[str, Any] = {}

    def add(name: str, netns: str, container: str) -> None:
        replies[name] = served_node.pod_call("ADD", name, container, netns)

    threads = [
        threading.Thread(target=add, args=(name, space.path, f"{i:02x}" * 32))
        for i, (name, space) in enumerate(zip(names, spaces, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(reply.ok for reply in replies.values()), [r.document for r in replies.values() if not r.ok]
    assert len({reply.document["ips"][0]["address"] for reply in replies.values()}) == len(names)
    counts = Counter(asked(served_node, since))
    assert counts[("create", "ipamhandles")] == counts[("patch", "pods")] == len(names)
    assert counts[("update", "ipamblocks")] <= len(names) and counts.total() <= 3 * len(names)


def test_the_requests_of_a_del(served_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    netns = make_pod_ns().path
    warm_up(served_node, make_pod_ns)
    make_pods(served_node, "p")
    assert served_node.pod_call("ADD", "p", "1" * 64, netns).ok
    since = len(served_node.kube.audited())
    assert served_node.pod_call("DEL", "p", "1" * 64, netns).ok
    writes = [("patch", "pods"), ("update", "ipamblocks"), ("update", "ipamhandles"), ("delete", "ipamhandles")]
    # the last one, which only takes away what counts as gone already, comes after the answer
    until(lambda: asked(served_node, since) == writes, "the requests of a DEL", 10)
    repeat_del(served_node, netns)
    before = known_pods(served_node)
    served_node.kube.delete_pod(served_node.kube.read_pod(served_node.namespace, "p"))
    until(lambda: known_pods(served_node) < before, "the server knows that the pod is gone", 10)
    repeat_del(served_node, netns)


def test_a_pod_that_the_watch_has_not_brought_yet(served_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """A pod of the same name made again a moment ago: the remembered one is not taken for it."""
    warm_up(served_node, make_pod_ns)
    make_pods(served_node, "p")
    assert served_node.pod_call("ADD", "p", "1" * 64, make_pod_ns().path).ok
    served_node.kube.delete_pod(served_node.kube.read_pod(served_node.namespace, "p"))
    made = served_node.kube.create_pod(
        served_node.namespace,
        "p",
        served_node.nodename,
        annotations={"cni.projectcalico.org/hwAddr": "02:00:00:00:00:01"},
    )
    netns = make_pod_ns()
    assert served_node.pod_call("ADD", "p", "2" * 64, netns.path, uid=made["metadata"]["uid"]).ok
    assert netns.link("eth0")["address"] == "02:00:00:00:00:01"
    assert served_node.annotations("p")["containerID"] == "2" * 64


def test_without_the_server_an_add_is_twelve_requests_at_most(
    unserved_node: KubeNode, make_pod_ns: MakeNamespace
) -> None:
    for name in ("first", "p"):
        unserved_node.kube.create_pod(unserved_node.namespace, name, unserved_node.nodename)
    assert unserved_node.pod_call("ADD", "first", "f" * 64, make_pod_ns().path).ok
    since = len(unserved_node.kube.audited())
    assert unserved_node.pod_call("ADD", "p", "1" * 64, make_pod_ns().path).ok
    requests = asked(unserved_node, since)
    assert len(requests) <= 12
    assert ("list", "pods") not in requests and ("list", "ipamblocks") not in requests
