"""Pods of KubeVirt's virtual machines: what is stored is upstream's, and the machine keeps its address.

The plugin has the rights of the manifests, no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.kubernetes.kubevirt import INSTANCES, MACHINES
from cni_calico.errors import DatastoreError
from cni_calico.model.access import CRD_ROOT
from tests.e2e.forks import forks_in
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.kubevirt import Machines, kubevirt
from tests.e2e.kubernetes.node import KubeNode
from tests.e2e.kubernetes.roles import node_with_role
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

NETWORK = "k8s-pod-network"
C = [f"{n}{n}" * 32 for n in "abcdef"]


@pytest.fixture(params=["one-shot", "served"])
def node(request: pytest.FixtureRequest, kube: Cluster, host_ns: Namespace, tmp_path: Path) -> Iterator[KubeNode]:
    with ExitStack() as stack:
        stack.enter_context(kubevirt(kube))
        made = stack.enter_context(node_with_role("calico.yaml", kube, host_ns, tmp_path))
        made.forks = stack.enter_context(forks_in(host_ns))
        if request.param == "served":
            stack.enter_context(made.server())
        yield made


def call(node: KubeNode, command: str, pod: str, number: int, netns: str = "", **more: Any) -> Any:
    return node.pod_call(command, pod, C[number], netns, name=NETWORK, **more)


def address(reply: Any) -> str:
    assert reply.ok, reply.document
    [found] = reply.document["ips"]
    return str(found["address"])


def attribute(node: KubeNode, handle: str) -> dict[str, Any]:
    blocks = [v for v in node.dump().values() if "attributes" in v]
    [found] = [a for block in blocks for a in block["attributes"] if a["handle_id"] == handle]
    found = {**found, "secondary": dict(found.get("secondary") or {})}
    found["secondary"].pop("timestamp", None)
    return found


def persistence(node: KubeNode, wanted: str) -> None:
    path = f"{CRD_ROOT}/ipamconfigs"
    try:
        config = node.kube.request("GET", f"{path}/default")
        config["spec"]["kubeVirtVMAddressPersistence"] = wanted
        node.kube.request("PUT", f"{path}/default", config)
    except DatastoreError:
        spec = {"autoAllocateBlocks": True, "strictAffinity": False, "kubeVirtVMAddressPersistence": wanted}
        body = {"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMConfig", "metadata": {"name": "default"}}
        node.kube.request("POST", path, {**body, "spec": spec})


def test_a_machine_keeps_its_address(node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """Over a stop and a start, a migration there, and its end."""
    machines = Machines(node.kube, node.namespace)
    instance = machines.run("vm")
    handle = f"{NETWORK}.vmi.{node.namespace}.vm"
    first = machines.create_pod(instance, "1", node.nodename)
    one, two, three = (make_pod_ns() for _ in range(3))
    added = call(node, "ADD", first, 0, one.path)
    given = address(added)
    assert call(node, "CHECK", first, 0, one.path, prevResult=added.document).ok
    uids = {"vmi-name": "vm", "vmi-uid": instance["metadata"]["uid"]}
    uids["vm-uid"] = instance["metadata"]["ownerReferences"][0]["uid"]
    whose = {"node": node.nodename, "namespace": node.namespace}
    assert attribute(node, handle) == {"handle_id": handle, "secondary": {**whose, "pod": first, **uids}}
    assert address(call(node, "ADD", first, 0, one.path)) == given, "again for the same container"

    # the machine is stopped: nobody has the address, and nobody else gets it
    assert call(node, "DEL", first, 0, one.path).ok
    assert attribute(node, handle)["secondary"] == {}
    node.kube.request("DELETE", f"/api/v1/namespaces/{node.namespace}/pods/{first}?gracePeriodSeconds=0")
    machines.delete(INSTANCES, "vm")
    instance = machines.make(INSTANCES, "vm", node.kube.request("GET", machines.path(MACHINES, "vm")))
    second = machines.create_pod(instance, "2", node.nodename)
    assert address(call(node, "ADD", second, 1, two.path)) == given
    uids["vmi-uid"] = instance["metadata"]["uid"]

    # another pod shares it while the machine moves; the host's route stays with the machine
    third = machines.create_pod(instance, "3", node.nodename, migration="job")
    reply = call(node, "ADD", third, 2, three.path)
    assert address(reply) == given and not reply.document.get("routes")
    veth = reply.document["interfaces"][0]["name"]
    assert veth not in node.host.run("ip", "route", "show", given).stdout
    stored = attribute(node, handle)
    assert stored["secondary"] == {**whose, "pod": second, **uids}
    shared = {k: v for k, v in stored["alternateOwnerAttrs"].items() if k != "timestamp"}
    assert shared == {**whose, "pod": third, **uids, "vmim-uid": "job"}
    assert call(node, "CHECK", third, 2, three.path, prevResult=reply.document).ok
    assert call(node, "DEL", third, 2, three.path).ok
    assert "alternateOwnerAttrs" not in attribute(node, handle)

    # the machine is deleted: its last pod's end releases the address
    machines.delete(MACHINES, "vm", held=True)
    assert call(node, "DEL", second, 1, two.path).ok
    assert not [k for k in node.dump() if "/handle/" in k and "vmi" in k]
    assert handle not in str(node.dump())
    machines.let_go(MACHINES, "vm")


def test_a_machine_that_cannot_be_read_gets_no_address(node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    machines, netns = Machines(node.kube, node.namespace), make_pod_ns().path
    instance = machines.run("vm", alone=True)

    def refused(pod: str) -> str:
        reply = call(node, "ADD", pod, 0, netns)
        assert not reply.ok and ".vmi." not in str(node.dump())
        return str(reply.document["msg"]) + str(reply.document.get("details"))

    other = machines.create_pod(instance, "uid", node.nodename, uid="0b5f2a4e-5c4f-4f0c-9f6e-0123456789ab")
    assert "is another one now" in refused(other)
    gone = machines.create_pod(instance, "gone", node.nodename, name="no-such-vm")
    assert f"there is no VirtualMachineInstance {node.namespace}/no-such-vm" in refused(gone)
    target = machines.create_pod(instance, "target", node.nodename, migration="job")
    assert f"no IP allocated to VM handle {NETWORK}.vmi.{node.namespace}.vm" in refused(target)
    persistence(node, "Disabled")
    assert "not allowed when KubeVirtVMAddressPersistence is disabled" in refused(target)
    plain = machines.create_pod(instance, "plain", node.nodename)
    address(call(node, "ADD", plain, 1, make_pod_ns().path))
    assert ".vmi." not in str(node.dump()) and call(node, "DEL", plain, 1).ok
    # a pod of that name without a machine is a pod like any other
    persistence(node, "Enabled")
    node.kube.create_pod(node.namespace, "virt-launcher-nobody", node.nodename)
    address(call(node, "ADD", "virt-launcher-nobody", 2, make_pod_ns().path))
    assert ".vmi." not in str(node.dump())


def test_a_failed_add_leaves_the_machine_its_address(node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    machines, netns = Machines(node.kube, node.namespace), make_pod_ns()
    instance = machines.run("vm", alone=True)
    first = machines.create_pod(instance, "1", node.nodename)
    handle = f"{NETWORK}.vmi.{node.namespace}.vm"
    netns.run("ip", "link", "add", "eth0", "type", "bridge")  # somebody else's
    assert not call(node, "ADD", first, 0, netns.path).ok
    assert handle not in str(node.dump()), "taken for the first time, it is free again"
    given = address(call(node, "ADD", first, 0, make_pod_ns().path))
    target = machines.create_pod(instance, "2", node.nodename, migration="job")
    before = attribute(node, handle)
    assert not call(node, "ADD", target, 1, netns.path).ok
    assert attribute(node, handle) == before
    # its pod is forgotten by Kubernetes before the DEL: nothing is released for that
    node.kube.request("DELETE", f"/api/v1/namespaces/{node.namespace}/pods/{first}?gracePeriodSeconds=0")
    assert call(node, "DEL", first, 0, uid="").ok
    assert handle in str(node.dump()) and given
