"""A virtual machine comes to a node: its pod has no route until the machine announces itself, then an elevated one."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import pytest

from cni_calico.datastore.kubernetes.kubevirt import MIGRATIONS
from cni_calico.ipam.assign import AssignRequest
from cni_calico.ipam.lasting import LastingAddresses
from tests.deadlines import soon, until
from tests.e2e.kubernetes.agent import agent
from tests.e2e.kubernetes.cluster import CRD_ROOT, Cluster
from tests.e2e.kubernetes.kubevirt import Machines, kubevirt
from tests.e2e.kubernetes.node import KubeNode, kube_node
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

C = "ab" * 32


@pytest.fixture
def moving_node(kube: Cluster, host_ns: Namespace, tmp_path: Path) -> Iterator[KubeNode]:
    with ExitStack() as stack:
        stack.enter_context(kubevirt(kube))
        yield stack.enter_context(kube_node(kube, host_ns, tmp_path))


def announce(address: str) -> None:
    """The guest's gratuitous ARP, in its pod's namespace."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
        raw.bind(("eth0", 0))
        own, mac = ip_address(address).packed, raw.getsockname()[4]
        raw.send(b"\xff" * 6 + mac + b"\x08\x06" + bytes((0, 1, 8, 0, 6, 4, 0, 1)) + mac + own + bytes(6) + own)


def metrics(moving_node: KubeNode, veth: str, address: str) -> list[str]:
    """The metrics of the host's routes to the address through the pod's interface."""
    lines = moving_node.host.run("ip", "route", "show", "exact", address, "dev", veth).stdout.splitlines()
    return [line.split(" metric ")[1].split()[0] if " metric " in line else "0" for line in lines]


def received_bits(moving_node: KubeNode, veth: str) -> int:
    """What the pod may receive in a second, 0: as much as it likes."""
    shown = json.loads(moving_node.host.run("tc", "-j", "qdisc", "show", "dev", veth).stdout)
    return 8 * sum(one["options"]["rate"] for one in shown if one["kind"] == "tbf")


def test_a_machine_comes(moving_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """And what its pod's annotations ask for is in force whenever they change."""
    machines, pod_ns = Machines(moving_node.kube, moving_node.namespace), make_pod_ns()
    instance = machines.run("vm", alone=True)
    handle = f"k8s-pod-network.vmi.{moving_node.namespace}.vm"
    felix = {"apiVersion": "crd.projectcalico.org/v1", "kind": "FelixConfiguration", "metadata": {"name": "default"}}
    moving_node.kube.ensure(
        f"{CRD_ROOT}/felixconfigurations", {**felix, "spec": {"liveMigrationRouteConvergenceTime": "1s"}}
    )
    source = machines.create_pod(instance, "1", "elsewhere")
    owner = {"node": "elsewhere", "namespace": moving_node.namespace, "pod": source, "vmi-name": "vm"}
    store = moving_node.kube.store()
    lasting = LastingAddresses(store)
    with agent(moving_node):
        [given] = lasting.assign(AssignRequest(moving_node.nodename, handle, owner, num4=1), soon())
        address = str(given.address)
        job = machines.make(MIGRATIONS, "job", spec={"vmiName": "vm"})["metadata"]["uid"]
        machines.migrate("vm", "job", "TargetReady")
        target = machines.create_pod(instance, "2", moving_node.nodename, migration=job)
        reply = moving_node.pod_call("ADD", target, C, pod_ns.path, name="k8s-pod-network")
        assert reply.ok, reply.document
        veth = reply.document["interfaces"][0]["name"]
        log = moving_node.root / "agent.log"
        until(lambda: "live migration: base -> target" in log.read_text(), "the agent waits for the machine", 60)
        assert metrics(moving_node, veth, address) == []

        begun = time.monotonic()
        pod_ns.call(announce, address)
        until(lambda: metrics(moving_node, veth, address) == ["512"], "the machine is routed to", 30)
        print(f"routed {1000 * (time.monotonic() - begun):.0f} ms after the announcement, as 'ip' sees it")

        def is_active() -> bool:
            return all(o.active.get("pod") == target for o in lasting.owners(handle, soon()).values())

        until(is_active, "IPAM knows where the machine is", 30)
        machines.migrate("vm", "job", "Succeeded", sourcePod=source)
        until(lambda: metrics(moving_node, veth, address) == ["1024"], "the route is an ordinary one", 60)
        # it moves on: nothing of this node is elevated any more
        machines.migrate("vm", "next", "Running", sourcePod=target)
        assert metrics(moving_node, veth, address) == ["1024"]

        annotation = "qos.projectcalico.org/ingressBandwidth"
        for change, bits in (
            (f"{annotation}=1.5M", 1_500_000),
            (f"{annotation}=2e6", 2_000_000),
            (f"{annotation}-", 0),
        ):
            moving_node.kube.kubectl("annotate", "-n", moving_node.namespace, "--overwrite", "pod", target, change)
            until(partial(lambda bits: received_bits(moving_node, veth) == bits, bits), f"{bits} bit/s", 60)
    store.close()
