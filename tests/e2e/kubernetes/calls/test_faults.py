"""A call on the Kubernetes datastore that fails or dies at one of its requests: repeating the DEL finishes everything.

There are no transactions: what is half written must be found again, by the handle that is always written first.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.e2e.forks import forks_in
from tests.e2e.host import Reply
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import KubeNode, kube_node
from tests.netns.namespaces import Killed, Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

WRITES = ("create", "update", "patch", "delete")
SHORT = [("kill", "after", point, 1) for point in WRITES]
ALL = list(product(("fail", "kill"), ("before", "after"), (*WRITES, "read"), (1, 2, 3)))
LONG = pytest.mark.parametrize("faults", [SHORT, pytest.param(ALL, marks=pytest.mark.slow)], ids=["short", "all"])
DUAL = {"type": "calico-ipam", "assign_ipv6": "true"}


@pytest.fixture
def forking_kube_node(kube: Cluster, host_ns: Namespace, tmp_path: Path) -> Iterator[KubeNode]:
    with kube_node(kube, host_ns, tmp_path) as made, forks_in(host_ns) as forks:
        made.forks = forks
        made.overrides["ipam"] = DUAL
        yield made


class Pods:
    """A new pod for each fault; they share a namespace for their network, one after the other."""

    def __init__(self, node: KubeNode, space: Namespace) -> None:
        self.node = node
        self.space = space
        self.count = 0

    def make(self) -> None:
        self.count += 1
        self.name, self.container = f"p{self.count}", f"{self.count:04x}" * 16
        made = self.node.kube.create_pod(self.node.namespace, self.name, self.node.nodename)
        self.uid = made["metadata"]["uid"]

    def call(self, verb: str, fault: tuple[str, str, str, int] | None = None) -> Reply | None:
        """None when it was killed."""
        text = ""
        if fault is not None:
            action, when, point, nth = fault
            text = f"kubernetes.{point}:{when}:{nth}:{action}"
        try:
            return self.node.pod_call(verb, self.name, self.container, self.space.path, uid=self.uid, fault=text)
        except Killed:
            return None

    def require_nothing_left(self, fault: object) -> None:
        """A DEL that succeeded may owe something: the next one that succeeds pays it."""
        deleted = self.call("DEL")
        assert deleted is not None and deleted.ok, (fault, deleted)
        again = self.call("DEL")
        assert again is not None and again.ok, (fault, again)
        left = self.node.leftovers()
        assert left == {}, (fault, left)
        assert self.space.link("eth0") is None


@LONG
def test_an_add_that_fails_or_dies(
    faults: list[tuple[str, str, str, int]], forking_kube_node: KubeNode, pod_ns: Namespace
) -> None:
    pods, hit = Pods(forking_kube_node, pod_ns), 0
    for fault in faults:
        pods.make()
        reply = pods.call("ADD", fault)
        hit += reply is None or not reply.ok
        if reply is not None and reply.ok:  # it was not reached, or overcome
            assert len(forking_kube_node.taken()) == 2, fault
        elif reply is not None:
            until(
                lambda: not forking_kube_node.taken() and not forking_kube_node.handles(),
                f"what an ADD that failed took: {fault}",
                10,
            )
        pods.require_nothing_left(fault)
    assert hit >= len(faults) / 4, "too few of them were reached"


@LONG
def test_an_add_after_one_that_died(
    faults: list[tuple[str, str, str, int]], forking_kube_node: KubeNode, pod_ns: Namespace
) -> None:
    """The runtime repeats it: the pod has one address of each family, whatever was half done."""
    pods = Pods(forking_kube_node, pod_ns)
    for fault in faults:
        pods.make()
        pods.call("ADD", fault)
        again = pods.call("ADD")
        assert again is not None and again.ok, (fault, again)
        given = {ip["address"].partition("/")[0] for ip in again.document["ips"]}
        assert set(forking_kube_node.taken()) == given and len(given) == 2, fault
        pods.require_nothing_left(fault)


@LONG
def test_a_del_that_fails_or_dies(
    faults: list[tuple[str, str, str, int]], forking_kube_node: KubeNode, pod_ns: Namespace
) -> None:
    pods = Pods(forking_kube_node, pod_ns)
    for fault in faults:
        pods.make()
        added = pods.call("ADD")
        assert added is not None and added.ok, (fault, added)
        pods.call("DEL", fault)
        pods.require_nothing_left(fault)
