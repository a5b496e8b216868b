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
def machine_node(
    request: pytest.FixtureRequest, kube: Cluster, host_ns: Namespace, tmp_path: Path
) -> Iterator[KubeNode]:
    with ExitStack() as stack:
        stack.enter_context(kubevirt(kube))
        made = stack.enter_context(node_with_role("calico.yaml", kube, host_ns, tmp_path))
        made.forks = stack.enter_context(forks_in(host_ns))
        if request.param == "served":
            stack.enter_context(made.server())
        yield made


def call(machine_node: KubeNode, command: str, pod: str, number: int, netns: str = "", **more: Any) -> Any:
    return machine_node.pod_call(command, pod, C[number], netns, name=NETWORK, **more)


def address(reply: Any) -> str:
    assert reply.ok, reply.document
    [found] = reply.document["ips"]
    return str(found["address"])


def attribute(machine_node: KubeNode, handle: str) -> dict[str, Any]:
    blocks = [v for v in machine_node.dump().values() if "attributes" in v]
    [found] = [a for block in blocks for a in block["attributes"] if a["handle_id"] == handle]
    found = {**found, "secondary": dict(found.get("secondary") or {})}
    found["secondary"].pop("timestamp", None)
    return found


def persistence(machine_node: KubeNode, wanted: str) -> None:
    path = f"{CRD_ROOT}/ipamconfigs"
    try:
        config = machine_node.kube.request("GET", f"{path}/default")
        config["spec"]["kubeVirtVMAddressPersistence"] = wanted
        machine_node.kube.request("PUT", f"{path}/default", config)
    except DatastoreError:
        spec = {"autoAllocateBlocks": True, "strictAffinity": False, "kubeVirtVMAddressPersistence": wanted}
        body = {"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMConfig", "metadata": {"name": "default"}}
        machine_node.kube.request("POST", path, {**body, "spec": spec})


def test_a_machine_keeps_its_address(machine_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """Over a stop and a start, a migration there, and its end."""
    machines = Machines(machine_node.kube, machine_node.namespace)
    instance = machines.run("vm")
    handle = f"{NETWORK}.vmi.{machine_node.namespace}.vm"
    first = machines.create_pod(instance, "1", machine_node.nodename)
    one, two, three = (make_pod_ns() for _ in range(3))
    added = call(machine_node, "ADD", first, 0, one.path)
    given = address(added)
    assert call(machine_node, "CHECK", first, 0, one.path, prevResult=added.document).ok
    uids = {"vmi-name": "vm", "vmi-uid": instance["metadata"]["uid"]}
    uids["vm-uid"] = instance["metadata"]["ownerReferences"][0]["uid"]
    whose = {"node": machine_node.nodename, "namespace": machine_node.namespace}
    assert attribute(machine_node, handle) == {"handle_id": handle, "secondary": {**whose, "pod": first, **uids}}
    assert address(call(machine_node, "ADD", first, 0, one.path)) == given, "again for the same container"

    # the machine is stopped: nobody has the address, and nobody else gets it
    assert call(machine_node, "DEL", first, 0, one.path).ok
    assert attribute(machine_node, handle)["secondary"] == {}
    machine_node.kube.request(
        "DELETE", f"/api/v1/namespaces/{machine_node.namespace}/pods/{first}?gracePeriodSeconds=0"
    )
    machines.delete(INSTANCES, "vm")
    instance = machines.make(INSTANCES, "vm", machine_node.kube.request("GET", machines.path(MACHINES, "vm")))
    second = machines.create_pod(instance, "2", machine_node.nodename)
    assert address(call(machine_node, "ADD", second, 1, two.path)) == given
    uids["vmi-uid"] = instance["metadata"]["uid"]

    # another pod shares it while the machine moves; the host's route stays with the machine
    third = machines.create_pod(instance, "3", machine_node.nodename, migration="job")
    reply = call(machine_node, "ADD", third, 2, three.path)
    assert address(reply) == given and not reply.document.get("routes")
    veth = reply.document["interfaces"][0]["name"]
    assert veth not in machine_node.host.run("ip", "route", "show", given).stdout
    stored = attribute(machine_node, handle)
    assert stored["secondary"] == {**whose, "pod": second, **uids}
    shared = {k: v for k, v in stored["alternateOwnerAttrs"].items() if k != "timestamp"}
    assert shared == {**whose, "pod": third, **uids, "vmim-uid": "job"}
    assert call(machine_node, "CHECK", third, 2, three.path, prevResult=reply.document).ok
    assert call(machine_node, "DEL", third, 2, three.path).ok
    assert "alternateOwnerAttrs" not in attribute(machine_node, handle)

    # the machine is deleted: its last pod's end releases the address
    machines.delete(MACHINES, "vm", held=True)
    assert call(machine_node, "DEL", second, 1, two.path).ok
    assert not [k for k in machine_node.dump() if "/handle/" in k and "vmi" in k]
    assert handle not in str(machine_node.dump())
    machines.let_go(MACHINES, "vm")


def test_a_machine_that_cannot_be_read_gets_no_address(machine_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    machines, netns = Machines(machine_node.kube, machine_node.namespace), make_pod_ns().path
    instance = machines.run("vm", alone=True)

    def refused(pod: str) -> str:
        reply = call(machine_node, "ADD", pod, 0, netns)
        assert not reply.ok and ".vmi." not in str(machine_node.dump())
        return str(reply.document["msg"]) + str(reply.document.get("details"))

    other = machines.create_pod(instance, "uid", machine_node.nodename, uid="0b5f2a4e-5c4f-4f0c-9f6e-0123456789ab")
    assert "is another one now" in refused(other)
    gone = machines.create_pod(instance, "gone", machine_node.nodename, name="no-such-vm")
    assert f"there is no VirtualMachineInstance {machine_node.namespace}/no-such-vm" in refused(gone)
    target = machines.create_pod(instance, "target", machine_node.nodename, migration="job")
    assert f"no IP allocated to VM handle {NETWORK}.vmi.{machine_node.namespace}.vm" in refused(target)
    persistence(machine_node, "Disabled")
    assert "not allowed when KubeVirtVMAddressPersistence is disabled" in refused(target)
    plain = machines.create_pod(instance, "plain", machine_node.nodename)
    address(call(machine_node, "ADD", plain, 1, make_pod_ns().path))
    assert ".vmi." not in str(machine_node.dump()) and call(machine_node, "DEL", plain, 1).ok
    # a pod of that name without a machine is a pod like any other
    persistence(machine_node, "Enabled")
    machine_node.kube.create_pod(machine_node.namespace, "virt-launcher-nobody", machine_node.nodename)
    address(call(machine_node, "ADD", "virt-launcher-nobody", 2, make_pod_ns().path))
    assert ".vmi." not in str(machine_node.dump())


def test_a_failed_add_leaves_the_machine_its_address(machine_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    machines, netns = Machines(machine_node.kube, machine_node.namespace), make_pod_ns()
    instance = machines.run("vm", alone=True)
    first = machines.create_pod(instance, "1", machine_node.nodename)
    handle = f"{NETWORK}.vmi.{machine_node.namespace}.vm"
    netns.run("ip", "link", "add", "eth0", "type", "bridge")  # somebody else's
    assert not call(machine_node, "ADD", first, 0, netns.path).ok
    assert handle not in str(machine_node.dump()), "taken for the first time, it is free again"
    given = address(call(machine_node, "ADD", first, 0, make_pod_ns().path))
    target = machines.create_pod(instance, "2", machine_node.nodename, migration="job")
    before = attribute(machine_node, handle)
    assert not call(machine_node, "ADD", target, 1, netns.path).ok
    assert attribute(machine_node, handle) == before
    # its pod is forgotten by Kubernetes before the DEL: nothing is released for that
    machine_node.kube.request(
        "DELETE", f"/api/v1/namespaces/{machine_node.namespace}/pods/{first}?gracePeriodSeconds=0"
    )
    assert call(machine_node, "DEL", first, 0, uid="").ok
    assert handle in str(machine_node.dump()) and given
