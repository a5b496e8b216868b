"""Pods whose interface a data plane of others makes: what it is told of the pod, and what is stored of its answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.node import KubeNode
from tests.e2e.kubernetes.pods import C1, endpoint, ips, pod
from tests.fakes.cni_dataplane import MAC, Dataplane, dataplane_in, without
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]


@pytest.fixture
def kube_dataplane(tmp_path: Path) -> Iterator[Dataplane]:
    with dataplane_in(tmp_path / "dataplane") as made:
        yield made


@pytest.fixture
def dataplane_node(any_kube_node: KubeNode, kube_dataplane: Dataplane) -> KubeNode:
    """Another program is its dataplane."""
    any_kube_node.overrides["dataplane_options"] = kube_dataplane.options
    return any_kube_node


def test_a_pods_life(dataplane_node: KubeNode, kube_dataplane: Dataplane, pod_ns: Namespace) -> None:
    ports = [{"name": "http", "containerPort": 80, "hostPort": 8080, "hostIP": "192.0.2.1"}]
    spec = {"serviceAccountName": "web-sa", "containers": [{"name": "c", "image": "i", "ports": ports}]}
    pod(dataplane_node, labels={"app": "web"}, annotations={"team": "a"}, spec=spec)
    added = dataplane_node.pod_call("ADD", "web-0", C1, pod_ns.path)
    [address] = ips(added)
    assert added.document["interfaces"][0] == {"name": "vpp-tun7"} and added.document["interfaces"][1]["mac"] == MAC
    [asked] = kube_dataplane.asked("Add")
    assert asked["desired_host_interface_name"] == "calie71244c6ddd" and asked["netns"] == pod_ns.path
    assert asked["container_ips"] == [{"address": address, "gateway": ""}]
    annotations = asked["workload"].pop("annotations")
    assert annotations["team"] == "a"
    assert asked["workload"] == {
        "name": "node1-k8s-web--0-eth0",
        "namespace": "space",
        "labels": {
            "app": "web",
            "projectcalico.org/namespace": "space",
            "projectcalico.org/orchestrator": "k8s",
            "projectcalico.org/serviceaccount": "web-sa",
        },
        "endpoint": "eth0",
        "node": "node1",
        "orchestrator": "k8s",
        "pod": "web-0",
        "ports": [{"name": "http", "protocol": "TCP", "port": 80, "host_port": 8080, "host_ip": "192.0.2.1"}],
    }
    assert endpoint(dataplane_node)["spec"]["ipNetworks"] == [address]
    if dataplane_node.datastore.type != "kubernetes":  # a pod has no place for them
        assert (
            endpoint(dataplane_node)["spec"]["interfaceName"] == "vpp-tun7"
            and endpoint(dataplane_node)["spec"]["mac"] == MAC
        )
    assert dataplane_node.pod_call("CHECK", "web-0", C1, pod_ns.path, prevResult=added.document).ok
    repeated = dataplane_node.pod_call("ADD", "web-0", C1, pod_ns.path)
    assert repeated.document == added.document
    [again] = kube_dataplane.asked("Add")
    assert again["desired_host_interface_name"] == "calie71244c6ddd"
    assert dataplane_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    assert kube_dataplane.asked() == [
        ["Del", {"interface_name": "eth0", "netns": pod_ns.path, "dataplane_options": without(kube_dataplane.options)}]
    ]
    assert not dataplane_node.leftovers()
    assert pod_ns.link("eth0") is None


def test_an_add_that_it_refuses(dataplane_node: KubeNode, kube_dataplane: Dataplane, pod_ns: Namespace) -> None:
    pod(dataplane_node)
    kube_dataplane.plan(Add={"successful": False, "error_message": "no memory"})
    reply = dataplane_node.pod_call("ADD", "web-0", C1, pod_ns.path)
    assert reply.document["code"] == 137 and "no memory" in reply.document["msg"]
    assert not dataplane_node.leftovers()
