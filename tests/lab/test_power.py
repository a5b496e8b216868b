"""Nodes that lose power: what ran there comes up again, there or elsewhere, and nothing of it stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.lab.lab import Lab, install_manifest, running_lab
from tests.lab.test_pods import addresses, await_connected, ready_agents
from tests.lab.workloads import Wanted, deployment, pods

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.bundle, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def power_lab(busybox_image: Path, product_image: Path, own_bundle: Path) -> Iterator[Lab]:
    with running_lab(images=[busybox_image, product_image], bundle=own_bundle) as made:
        install_manifest(made)
        until(lambda: ready_agents(made) == 2, "agents ready", pause_s=0.1)
        yield made


def end_all(lab: Lab) -> None:
    lab.kubectl("delete", "deployment", "--all", "--wait=false")
    lab.await_no_pods()
    # a kubelet gives sandboxes back, whose pods went while it was away, with its garbage: once in a minute
    until(lambda: not lab.leftovers(), f"nothing left over: {lab.leftovers()}", timeout_s=150, pause_s=0.1)
    lab.calicoctl("ipam", "check")


def names(pods: list[dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


def test_after_a_power_cut_the_same_pods_have_a_network_again(power_lab: Lab) -> None:
    power_lab.apply(deployment(Wanted("web", 4)))
    before = power_lab.await_pods(4)
    node = power_lab.nodes[1]
    started = {pod["metadata"]["name"]: _started(pod) for pod in before if pod["spec"]["nodeName"] == node.name}
    node.power_off()
    node.power_on()
    until(
        lambda: all(
            _started(pod) > started[pod["metadata"]["name"]] for pod in power_lab.pods() if _on(pod, node.name)
        ),
        "containers started anew",
        pause_s=0.1,
    )
    after = power_lab.await_pods(4)
    assert names(after) == names(before)
    assert len({address for pod in after for address in addresses(pod)}) == 4
    await_connected(power_lab, after)
    # the sandboxes from before the cut have given their addresses back
    until(lambda: len(_held(power_lab)) == 4, f"one handle for each pod: {_held(power_lab)}", timeout_s=60, pause_s=0.1)
    end_all(power_lab)


def _on(pod: dict[str, Any], node: str) -> bool:
    return bool(pod["spec"]["nodeName"] == node)


def _started(pod: dict[str, Any]) -> str:
    [container] = pod["status"]["containerStatuses"]
    return str(container["state"].get("running", {}).get("startedAt", ""))


def _held(lab: Lab) -> list[str]:
    return [entry for entry in lab.leftovers() if entry.startswith("handle")]


def test_pods_of_a_node_that_is_gone_come_up_elsewhere(power_lab: Lab) -> None:
    power_lab.apply(deployment(Wanted("web", 4)))
    power_lab.await_pods(4)
    gone = power_lab.nodes[1]
    gone.power_off()
    power_lab.kubectl("delete", "node", gone.name)
    # the garbage collector of pods waits 40 s after a node was deleted
    until(
        lambda: not any(_on(pod, gone.name) for pod in power_lab.pods()),
        "its pods are gone",
        timeout_s=120,
        pause_s=0.1,
    )
    pods = power_lab.await_pods(4)
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node1"}
    await_connected(power_lab, pods)

    # and the node comes back, as new
    gone.power_on()
    power_lab.await_ready_nodes()
    until(lambda: ready_agents(power_lab) == 2, "agents ready", pause_s=0.1)
    end_all(power_lab)
    power_lab.apply(deployment(Wanted("again", 4)))
    pods = power_lab.await_pods(4)
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node1", "node2"}
    await_connected(power_lab, pods)
    end_all(power_lab)


def make(lab: Lab, numbers: range) -> None:
    lab.kubectl("create", "-f", "-", stdin=pods(numbers, lab.nodes[0]))


def end_pods(lab: Lab) -> None:
    lab.kubectl("delete", "pods", "--all", "--wait=false")
    lab.await_no_pods()
    until(lambda: not lab.leftovers(), f"nothing left over: {lab.leftovers()}", timeout_s=60, pause_s=0.1)
    lab.calicoctl("ipam", "check")


def test_an_upgrade_of_the_agents_fails_no_pod(power_lab: Lab) -> None:
    """The installer copies, the CNI server ends and another one starts, while pods come and go."""
    power_lab.kubectl("rollout", "restart", "daemonset/calico-node", "-n", "kube-system")
    until(lambda: ready_agents(power_lab) < 2, "the roll-out has begun", pause_s=0.1)
    waves = 0
    while ready_agents(power_lab) < 2 or waves < 2:
        make(power_lab, range(8))
        power_lab.await_pods(8)
        power_lab.kubectl("delete", "pods", "--all", "--wait=false")
        power_lab.await_no_pods()
        waves += 1
        assert waves < 20
    end_pods(power_lab)
    assert power_lab.warnings() == []


def test_pods_come_and_go_while_the_api_server_is_away(power_lab: Lab) -> None:
    make(power_lab, range(8))
    power_lab.await_pods(8)
    before = _tasks(power_lab)
    make(power_lab, range(8, 12))
    power_lab.kubectl("delete", "pods", *(f"p{i}" for i in range(8)), "--wait=false")
    power_lab.plane.stop_apiserver()
    # what the kubelet has heard of is stopped without it
    until(lambda: _tasks(power_lab) < before, "containers of deleted pods are stopped", timeout_s=60, pause_s=0.1)
    power_lab.plane.start_apiserver()
    power_lab.await_pods(4)
    end_pods(power_lab)


def _tasks(lab: Lab) -> int:
    """Containers that run on the first node, sandboxes among them."""
    return lab.nodes[0].ctr("tasks", "list").count("RUNNING")
