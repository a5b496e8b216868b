"""Upstream's plugin and ours in turn, on one node and in one cluster, where the datastore is Kubernetes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cni_calico.model.access import API_GROUP, NATIVE_GROUP
from tests.e2e import mixed, served
from tests.e2e.host import Reply
from tests.e2e.kubernetes.node import KubeNode
from tests.e2e.mixed import Turns
from tests.fakes.upstream import Container, KubeRecords, Upstream
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

VECTORS = Path(__file__).parents[3] / "golden" / "vectors"
POOLS = [("10.65.0.0/16", 26), ("fd00:65::/112", 122)]


DUAL = {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}


@pytest.fixture
def kube_turns(either_kube_node: KubeNode) -> Turns:
    return turns_on(either_kube_node, API_GROUP)


@pytest.fixture
def native_turns(native_node: KubeNode) -> Turns:
    """Nobody is told the group: everybody finds it."""
    return turns_on(native_node, NATIVE_GROUP)


def turns_on(node: KubeNode, group: str) -> Turns:
    """Pods get an address of each family."""
    kube = node.kube
    node.overrides["ipam"] = DUAL

    def make(number: int, on: str = "node1") -> Container:
        """With its pod."""
        container_id = hashlib.sha256(str(number).encode()).hexdigest()
        container = Container(container_id, on, "calnet", node.namespace, f"web-{number}")
        kube.create_pod(node.namespace, container.pod, on, labels={"app": "web"})
        return container

    def ours(command: str, container: Container, pod: Namespace | None) -> Reply:
        args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE={container.namespace};K8S_POD_NAME={container.pod}"
        args += f";K8S_POD_INFRA_CONTAINER_ID={container.id}"
        return served.call(node, command, container.id, "" if pod is None else pod.path, args=args)

    def check() -> None:
        command = [sys.executable, "-m", "cni_calico.ctl.main", "ipam", "check"]
        environ = {**os.environ, "DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig()}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "found 0 problems" in done.stdout, done

    return Turns(node, Upstream(KubeRecords(kube, group), node.host, POOLS), ours, check, make)


def test_the_fake_writes_records_as_upstream_does(kube_turns: Turns, pod_ns: Namespace) -> None:
    """The same fields, labels and annotations as in what was recorded, for a pod of both families."""
    container = kube_turns.make(0)
    kube_turns.add("upstream", container, pod_ns)
    recorded = json.loads((VECTORS / "k8s-02-pods.json").read_text())
    records = kube_turns.upstream.records
    assert isinstance(records, KubeRecords)
    for plural in ("ipamblocks", "blockaffinities", "ipamhandles"):
        for found in records._list(plural):
            version6 = ":" in str(found["spec"])
            like = next(
                item for item in recorded[plural] if plural == "ipamhandles" or (":" in str(item["spec"])) is version6
            )
            assert set(found["spec"]) == set(like["spec"])
            assert set(found["metadata"]["annotations"]) == set(like["metadata"]["annotations"])
            assert set(found["metadata"].get("labels", {})) == set(like["metadata"].get("labels", {}))
    [theirs] = [p for p in recorded["pods"] if p["metadata"]["name"] == "dual"]
    ours = kube_turns.upstream.records.kube.read_pod(container.namespace, container.pod)["metadata"]["annotations"]
    assert set(ours) == {name for name in theirs["metadata"]["annotations"] if name.startswith("cni.projectcalico")}
    kube_turns.delete("ours", container)
    kube_turns.check()


@pytest.mark.takes(120)
@pytest.mark.slow_on("served")
def test_a_mixed_node(kube_turns: Turns, make_pod_ns: MakeNamespace) -> None:
    mixed.take_turns(kube_turns, make_pod_ns, seed=14)


def test_a_mixed_node_and_calls_that_are_repeated(kube_turns: Turns, make_pod_ns: MakeNamespace) -> None:
    mixed.repeated_calls_meet(kube_turns, make_pod_ns)


@pytest.mark.slow_on("served")
def test_a_mixed_cluster_that_borrows(kube_turns: Turns, make_pod_ns: MakeNamespace) -> None:
    kube_turns.upstream.records.kube.create_node("node2")
    mixed.borrow_from_each_other(kube_turns, make_pod_ns)


@pytest.mark.slow
def test_a_mixed_node_on_the_newer_group(native_turns: Turns, make_pod_ns: MakeNamespace) -> None:
    mixed.take_turns(native_turns, make_pod_ns, seed=15)


@pytest.mark.slow_on("one-shot")
def test_repeated_calls_on_the_newer_group(native_turns: Turns, make_pod_ns: MakeNamespace) -> None:
    mixed.repeated_calls_meet(native_turns, make_pod_ns)


@pytest.mark.slow
def test_a_mixed_cluster_that_borrows_on_the_newer_group(native_turns: Turns, make_pod_ns: MakeNamespace) -> None:
    native_turns.upstream.records.kube.create_node("node2")
    mixed.borrow_from_each_other(native_turns, make_pod_ns)
