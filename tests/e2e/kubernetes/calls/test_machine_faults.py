"""Calls of a virtual machine's pods that fail or die at one of their requests: the machine has one address, always the
same, which nobody else has, and the pod in which it runs does not lose it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.kubernetes.kubevirt import INSTANCES, MACHINES
from cni_calico.ipam.lasting import LastingAddresses
from cni_calico.model.lasting import AddressOwners
from tests.deadlines import soon, until
from tests.e2e.forks import forks_in
from tests.e2e.host import Reply
from tests.e2e.kubernetes.calls.test_faults import LONG
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.kubevirt import Machines, kubevirt
from tests.e2e.kubernetes.node import KubeNode, kube_node
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Killed, Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

HANDLE = "calnet.vmi.space.vm"
Fault = tuple[str, str, str, int]
# the block has been written without the owner, then without the address; the handle's update is the third
HANDLE_STAYS: list[Fault] = [
    ("kill", "after", "update", 2),
    ("kill", "before", "update", 3),
    ("fail", "before", "update", 3),
]


class Machine:
    """One virtual machine whose pods are on one node."""

    def __init__(self, node: KubeNode, make_pod_ns: MakeNamespace) -> None:
        self.node, self.count = node, 0
        self.machines = Machines(node.kube, node.namespace)
        self.instance = self.machines.run("vm")
        self.source, self.target = make_pod_ns(), make_pod_ns()
        store = node.kube.store()
        self.lasting, self.close = LastingAddresses(store), store.close

    def create(self, *, migration: str = "") -> str:
        self.count += 1
        return self.machines.create_pod(self.instance, str(self.count), self.node.nodename, migration=migration)

    def call(self, verb: str, pod: str, netns: Namespace, fault: Fault | None = None) -> Reply | None:
        """None when it was killed."""
        text = ""
        if fault is not None:
            action, when, point, nth = fault
            text = f"kubernetes.{point}:{when}:{nth}:{action}"
        container = pod.rpartition("-")[2].zfill(64)
        try:
            return self.node.pod_call(verb, pod, container, netns.path, fault=text)
        except Killed:
            return None

    def add(self, pod: str, netns: Namespace) -> str:
        """Its address, repeated until it succeeds, as a runtime does."""

        def ask() -> Any:
            reply = self.call("ADD", pod, netns)
            return reply is not None and reply.ok and reply.document["ips"]

        [found] = until(ask, f"ADD of {pod}", 60)
        return str(found["address"]).partition("/")[0]

    def finish(self, pod: str, netns: Namespace) -> None:
        """DEL until it owes nothing."""

        def is_done() -> bool:
            reply = self.call("DEL", pod, netns)
            return reply is not None and reply.ok and "intents" not in self.node.leftovers()

        until(is_done, f"DEL of {pod}", 60)

    def owners(self) -> dict[str, AddressOwners]:
        return {str(address): found for address, found in self.lasting.owners(HANDLE, soon()).items()}

    def remove(self, pod: str) -> None:
        self.node.kube.delete_pod(self.node.kube.read_pod(self.node.namespace, pod))


@pytest.fixture
def dying_machine(kube: Cluster, host_ns: Namespace, tmp_path: Path, make_pod_ns: MakeNamespace) -> Iterator[Machine]:
    with ExitStack() as stack:
        stack.enter_context(kubevirt(kube))
        node = stack.enter_context(kube_node(kube, host_ns, tmp_path))
        node.forks = stack.enter_context(forks_in(host_ns))
        made = Machine(node, make_pod_ns)
        stack.callback(made.close)
        yield made


@LONG
def test_the_pod_to_which_it_is_to_come(faults: list[Fault], dying_machine: Machine) -> None:
    """ADD and DEL of it, each repeated until it has succeeded, as a runtime does."""
    machine = dying_machine
    source, hit = machine.create(), 0
    address = machine.add(source, machine.source)

    def require(what: object, target: str = "") -> None:
        [(held, owners)] = machine.owners().items()
        assert held == address and owners.active["pod"] == source, what
        assert owners.alternate.get("pod", "") == target, what
        assert list(machine.node.taken()) == [address], what

    for fault in faults:
        target = machine.create(migration="job")
        reply = machine.call("ADD", target, machine.target, fault)
        hit += reply is None or not reply.ok
        [(held, owners)] = machine.owners().items()
        assert held == address and owners.active["pod"] == source, fault
        assert machine.add(target, machine.target) == address
        require(fault, target)
        reply = machine.call("DEL", target, machine.target, fault)
        hit += reply is None or not reply.ok
        [(held, owners)] = machine.owners().items()
        assert held == address and owners.active["pod"] == source, fault
        machine.finish(target, machine.target)
        require(fault)
        machine.remove(target)
    assert hit >= len(faults) / 4, "too few of them were reached"


@LONG
def test_the_pod_that_it_leaves(faults: list[Fault], dying_machine: Machine) -> None:
    """Its machine has gone: its DEL takes nothing from the pod to which that came. Then this one is left in turn."""
    machine = dying_machine
    source = machine.create()
    address = machine.add(source, machine.source)
    here, there = machine.source, machine.target
    for fault in faults:
        target = machine.create(migration="job")
        assert machine.add(target, there) == address
        assert machine.lasting.swap(HANDLE, "space", target, soon())
        machine.call("DEL", source, here, fault)
        [owners] = machine.owners().values()
        assert owners.active["pod"] == target, fault
        machine.finish(source, here)
        [(held, owners)] = machine.owners().items()
        assert held == address and owners.active["pod"] == target and not owners.alternate, fault
        machine.remove(source)
        source, here, there = target, there, here


@LONG
def test_its_first_and_its_last_pod(faults: list[Fault], dying_machine: Machine) -> None:
    """One address is taken and nothing is left over, whatever was half done; the machine is new each time. A handle
    whose address is gone already ends with the DEL that is repeated, too.
    """
    machine = dying_machine
    for fault in (*faults, *HANDLE_STAYS):
        pod = machine.create()
        machine.call("ADD", pod, machine.source, fault)
        address = machine.add(pod, machine.source)
        assert list(machine.owners()) == list(machine.node.taken()) == [address], fault
        machine.machines.delete(MACHINES, "vm")
        machine.machines.delete(INSTANCES, "vm")
        machine.call("DEL", pod, machine.source, fault)
        machine.finish(pod, machine.source)
        left = machine.node.leftovers()
        assert not left and not machine.owners() and not machine.node.taken(), (fault, left)
        machine.remove(pod)
        machine.instance = machine.machines.run("vm")
