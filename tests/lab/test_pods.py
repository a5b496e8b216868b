"""Pods under real kubelets: both nodes, both families, host ports; and nothing is left when they are gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.lab.lab import Lab, as_upstreams, install_bundle, install_manifest, install_manifest_for_etcd, running_lab
from tests.lab.workloads import Wanted, deployment

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.bundle, pytest.mark.timeout(600)]
HOST_PORT = 18080


def install_as_upstream(lab: Lab) -> None:
    """As upstream's manifests call things; no tunnel: the routes are BIRD's."""
    install_manifest(lab, backend="bird", change=as_upstreams, CALICO_IPV4POOL_VXLAN="Never")


WAYS = {
    "bundle": (install_bundle, False),
    "bundle-dual": (install_bundle, True),
    "manifest-dual": (install_manifest, True),
    "manifest-upstreams-bgp": (install_as_upstream, False),
    "manifest-etcd": (install_manifest_for_etcd, True),
}


@pytest.fixture(scope="module", params=list(WAYS))
def pods_lab(
    request: pytest.FixtureRequest, busybox_image: Path, product_image: Path, own_bundle: Path
) -> Iterator[Lab]:
    install, dual = WAYS[request.param]
    images = [busybox_image, *([product_image] if "manifest" in request.param else [])]
    with running_lab(dual=dual, images=images, bundle=own_bundle) as made:
        install(made)
        yield made


def addresses(pod: dict[str, Any]) -> list[str]:
    return [entry["ip"] for entry in pod["status"]["podIPs"]]


def await_connected(lab: Lab, pods: list[dict[str, Any]]) -> None:
    """Each pod reaches each other one by every address; routes may come a moment after the pods."""
    for source in pods:
        wanted = sorted(address for target in pods for address in addresses(target))
        until(
            partial(_reaches, lab, source, wanted),
            f"{source['metadata']['name']} reaches {wanted}",
            timeout_s=40,
            pause_s=0.1,
        )


def _reaches(lab: Lab, source: dict[str, Any], wanted: list[str]) -> bool:
    """One process in the pod, one ping after the other."""
    script = "".join(f"ping -c 1 -W 2 {address} >/dev/null && echo {address};" for address in wanted)
    return lab.exec(source, "sh", "-c", script, check=False).split() == wanted


def test_pods_come_up_reach_each_other_and_leave_nothing(pods_lab: Lab) -> None:
    web, port = deployment(Wanted("web", 4)), deployment(Wanted("port", 1, node="node1", host_port=HOST_PORT))
    pods_lab.apply(web, port)
    pods = pods_lab.await_pods(5)
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node1", "node2"}
    assert {len(addresses(pod)) for pod in pods} == {2 if pods_lab.dual else 1}
    assert len({address for pod in pods for address in addresses(pod)}) == sum(len(addresses(pod)) for pod in pods)
    await_connected(pods_lab, pods)
    [behind] = [pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"].startswith("port")]
    url = f"http://{pods_lab.nodes[0].address}:{HOST_PORT}/"
    assert pods_lab.nodes[1].run("busybox", "wget", "-qO-", url).strip() == behind
    pods_lab.calicoctl("ipam", "check")

    pods_lab.kubectl("delete", "deployment", "--all", "--wait=false")
    pods_lab.await_no_pods()
    until(lambda: not pods_lab.leftovers(), f"nothing left over: {pods_lab.leftovers()}", timeout_s=20, pause_s=0.1)
    pods_lab.calicoctl("ipam", "check")


def test_a_kubelet_and_a_runtime_that_start_again_lose_nothing(pods_lab: Lab) -> None:
    pods_lab.apply(deployment(Wanted("stays", 2)))
    before = {pod["metadata"]["uid"]: addresses(pod) for pod in pods_lab.await_pods(2)}
    for node in pods_lab.nodes:
        node.restart("containerd")
        node.restart("kubelet")
    pods_lab.apply(deployment(Wanted("comes", 2)))
    pods = pods_lab.await_pods(4)
    now = {pod["metadata"]["uid"]: addresses(pod) for pod in pods}
    assert {uid: now.get(uid) for uid in before} == before
    assert {pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods} == {0}
    await_connected(pods_lab, pods)

    pods_lab.kubectl("delete", "deployment", "--all", "--wait=false")
    pods_lab.await_no_pods()
    until(lambda: not pods_lab.leftovers(), f"nothing left over: {pods_lab.leftovers()}", timeout_s=20, pause_s=0.1)
    pods_lab.calicoctl("ipam", "check")


def conditions(lab: Lab, kind: str) -> set[tuple[str, str]]:
    found = [c for item in lab.get("nodes")["items"] for c in item["status"]["conditions"] if c["type"] == kind]
    return {(condition["status"], condition["reason"]) for condition in found}


def test_the_network_of_a_node_is_available_once_its_agent_says_so(pods_lab: Lab) -> None:
    until(
        lambda: conditions(pods_lab, "NetworkUnavailable") == {("False", "CalicoIsUp")},
        "NetworkUnavailable is False",
        pause_s=0.1,
    )
    daemon_sets = pods_lab.get("daemonsets", "-n", "kube-system")["items"]
    for daemon_set in daemon_sets:
        name = daemon_set["metadata"]["name"]
        until(
            lambda: ready_agents(pods_lab) == 2,
            f"{name} ready on both nodes: {json.dumps(daemon_set['status'])}",
            pause_s=0.1,
        )


def ready_agents(lab: Lab) -> int:
    [daemon_set] = lab.get("daemonsets", "-n", "kube-system")["items"]
    return int(daemon_set["status"].get("numberReady", 0))
