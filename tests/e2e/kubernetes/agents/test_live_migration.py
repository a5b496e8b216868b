"""A virtual machine moves between two nodes and back, while a pod on a third one talks to it.

Everything is as in a cluster: three frozen ``calico-node run`` with the rights of the manifests, BIRD or VXLAN, a relay
or none, the CNI plugin, KubeVirt's objects at a real API server. Only the hypervisor is missing: the guest is a network
namespace. What the machine's absence took is printed ("-s").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.kubernetes.kubevirt import MIGRATIONS
from cni_calico.ipam.lasting import LastingAddresses
from cni_calico.model.access import CRD_ROOT
from tests.deadlines import soon, until
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.guests import Client, Guest, client_of, guest_of
from tests.e2e.kubernetes.kubevirt import Machines, kubevirt
from tests.e2e.kubernetes.node import Relay
from tests.e2e.kubernetes.programs import RelayProcess
from tests.e2e.kubernetes.roles import with_agent_roles, with_plugin_role
from tests.e2e.relays import make_certificates
from tests.fixtures.kubernetes import NAMESPACE
from tests.netns.agents import Store
from tests.netns.bird.cluster import Lab, make_lab
from tests.netns.node_cluster import ENVIRON
from tests.netns.nodes import Node, Pod

pytestmark = [
    *(pytest.mark.slow, pytest.mark.kubernetes, pytest.mark.netns, pytest.mark.bird, pytest.mark.bundle),
    pytest.mark.timeout(900),
]

MANIFEST = "calico.yaml"
POOL = {
    "CALICO_IPV4POOL_CIDR": "10.65.0.0/16",
    "CALICO_IPV4POOL_IPIP": "Never",
    "NO_DEFAULT_POOLS": "false",
    "CALICO_JANITOR": "false",  # as the manifest has it
}
WAYS = {
    "bgp": {"CALICO_NETWORKING_BACKEND": "bird", "CALICO_IPV4POOL_VXLAN": "Never"},
    "vxlan": {"CALICO_NETWORKING_BACKEND": "vxlan", "CALICO_IPV4POOL_VXLAN": "Always"},
}
WAYS["vxlan by a relay"] = WAYS["vxlan"]  # which has neither migrations nor all of a block
POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "clients"},
    "spec": {
        "podSelector": {"matchLabels": {"kubevirt.io": "virt-launcher"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"is": "client"}}}]}],
    },
}


class KubeStore(Store):
    """The API server, as the node agent and the plugin are told of it."""

    def __init__(self, kube: Cluster) -> None:
        super().__init__(Path("/"))
        self.kube = kube

    def environ(self) -> dict[str, str]:
        return {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": self.kube.kubeconfig("node-token")}

    def conf(self) -> dict[str, Any]:
        kubernetes = {"kubeconfig": self.kube.kubeconfig("cni-token")}
        return {"datastore_type": "kubernetes", "kubernetes": kubernetes, "policy": {"type": "k8s"}}


class KubeNodes:
    """Nodes of one subnet."""

    def __init__(
        self, lab: Lab, kube: Cluster, root: Path, bundle: Path, environ: dict[str, str], ports: Sequence[int]
    ) -> None:
        """``ports`` of this host are theirs, too, on their own loopback."""
        self.lab, self.kube, self.machines = lab, kube, Machines(kube, NAMESPACE)
        self.nodes: dict[str, Node] = {}
        self.count = count(1)
        for number, name in enumerate(("n1", "n2", "n3"), 1):
            kube.create_node(name)
            ns = lab.namespace(name)
            lab.plug(ns, "eth0", "0", f"10.0.0.{number}/24")
            ns.do("route", "add", "default", "via", "10.0.0.254")
            for port in ports:
                lab.stack.callback(Relay(ns, port).close)
            more = {**ENVIRON, **POOL, "IP6": "none", **environ}
            node = Node(ns, name, root / name, KubeStore(kube), more=more, bin_dir=bundle)
            self.nodes[name] = node.run()
            lab.stack.callback(node.end)
        lab.stack.callback(lambda: [node.ask_to_end() for node in self.nodes.values()])
        for node in self.nodes.values():
            node.until_ready()

    def start(self, pod: str, node: str) -> Pod:
        """The sandbox of a pod that Kubernetes has."""
        uid = self.kube.read_pod(NAMESPACE, pod)["metadata"]["uid"]
        arguments = f"IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={pod};K8S_POD_UID={uid}"
        container = f"{next(self.count):064x}"
        arguments += f";K8S_POD_INFRA_CONTAINER_ID={container}"
        return self.nodes[node].add(Pod(self.lab.namespace(pod[-8:]), container, arguments=arguments), tries=4)

    def end(self, name: str, pod: Pod, node: str) -> None:
        self.nodes[node].cni("DEL", pod)
        self.kube.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}?gracePeriodSeconds=0")

    def metrics(self, node: str, address: str, device: str = "cali") -> list[int]:
        """Of a node's routes to exactly this address by such devices."""
        routes = self.nodes[node].ns.ip("route", "show", "exact", address)
        return sorted(route.get("metric", 0) for route in routes if route["dev"].startswith(device))

    def listens(self, node: str) -> bool:
        """Whether the node's agent waits for a machine's ARP and RARP."""
        lines = self.nodes[node].ns.run("cat", "/proc/net/packet").stdout.splitlines()
        return {"0806", "8035"} <= {line.split()[3] for line in lines}

    def has_followed(self, node: str, address: str, target: str, device: str) -> bool:
        """Whether a node sends packets to the address to the target, whose own address this device has."""
        [there] = self.nodes[target].ns.ip("addr", "show", "dev", device)
        [route] = self.nodes[node].ns.ip("route", "get", address)
        own = [info["local"] for info in there["addr_info"] if info["family"] == "inet"]
        return route["dev"] == device and [route.get("gateway")] == own


@contextmanager
def relayed(kube: Cluster, directory: Path) -> Iterator[tuple[RelayProcess, dict[str, str]]]:
    """A relay, and what three agents are told of it, each of which has to follow it."""
    directory.mkdir()
    make_certificates(directory)
    relay = RelayProcess(kube, directory)
    environ = {
        "FELIX_TYPHAADDR": f"127.0.0.1:{relay.port}",
        "FELIX_TYPHACAFILE": str(directory / "ca.crt"),
        "FELIX_TYPHACERTFILE": str(directory / "client.crt"),
        "FELIX_TYPHAKEYFILE": str(directory / "client.key"),
        "FELIX_TYPHACN": "typha-server",
    }
    try:
        relay.await_ready()
        yield relay, environ
        _, figures = relay.page(relay.metrics, "/metrics")
        accepted = re.search(r"^typha_connections_accepted(?:_total)? (\d+)", figures, re.MULTILINE)
        assert accepted and int(accepted[1]) >= 3, figures
    finally:
        relay.stop()


@pytest.fixture(params=WAYS)
def kube_nodes(
    request: pytest.FixtureRequest, kube: Cluster, tmp_path: Path, bundle: Path
) -> Iterator[tuple[KubeNodes, str]]:
    policies = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"
    felix = {"apiVersion": "crd.projectcalico.org/v1", "kind": "FelixConfiguration", "metadata": {"name": "default"}}
    with ExitStack() as stack:
        stack.enter_context(kubevirt(kube))
        stack.enter_context(with_agent_roles(kube, MANIFEST))
        stack.enter_context(with_plugin_role(kube, MANIFEST))
        path = f"{CRD_ROOT}/felixconfigurations"
        kube.ensure(path, {**felix, "spec": {"liveMigrationRouteConvergenceTime": "3s"}})
        kube.ensure(policies, POLICY)
        stack.callback(kube.request, "DELETE", f"{policies}/clients")
        ports, environ = [kube.port], dict(WAYS[request.param])
        if "relay" in request.param:
            relay, more = stack.enter_context(relayed(kube, tmp_path / "relay"))
            ports.append(relay.port)
            environ.update(more)
        lab = stack.enter_context(make_lab(tmp_path))
        yield KubeNodes(lab, kube, tmp_path, bundle, environ, ports), request.param


def log_has(node: Node, text: str) -> None:
    until(lambda: text in node.log(), f"{node.name} says: {text}", 60)


@dataclass
class Move:
    """One migration of the machine from one node to another."""

    all: KubeNodes
    way: str
    guest: Guest
    client: Client
    instance: Any
    handle: str

    def carry_out(self, number: int, source: tuple[str, Pod, str], node: str, kind: str) -> tuple[str, Pod, str]:
        """``source``: the pod, its sandbox, its node; the same of the target is returned."""
        every, machines, address = self.all, self.all.machines, self.guest.address
        job = f"job{number}"
        uid = machines.make(MIGRATIONS, job, spec={"vmiName": "vm"})["metadata"]["uid"]
        machines.migrate("vm", job, "Scheduling")
        name = machines.create_pod(self.instance, str(number), node, migration=uid)
        machines.migrate("vm", job, "Scheduled")
        target = every.start(name, node)
        assert target.addresses == [address]
        machines.migrate("vm", job, "Running", sourcePod=source[0])
        log_has(every.nodes[node], f"pod {NAMESPACE}/{name}: live migration: base -> target")
        until(lambda: every.listens(node), "the agent waits for the machine", 60)
        assert every.metrics(node, address) == []

        self.guest.move(target.ns)
        said = self.guest.announce(kind)
        assert said["early"] == 0, "nobody sends to where the machine is not"
        print(f"{self.way}: {source[2]} to {node} by {kind}: {1000 * said['gap_s']:.0f} ms to the first packet")
        self.client.until_echoed(100)
        until(lambda: every.metrics(node, address) == [512], "an elevated route")
        self.until_all_follow(node)

        def is_active() -> bool:
            store = every.kube.store()
            try:
                owners = LastingAddresses(store).owners(self.handle, soon()).values()
            finally:
                store.close()
            return bool(owners) and all(o.active.get("pod") == name for o in owners)

        until(is_active, "IPAM knows where the machine is", 30)
        machines.migrate("vm", job, "Succeeded", sourcePod=source[0])
        every.end(*source)
        self.client.until_echoed(100)
        until(lambda: every.metrics(node, address) == [1024], "an ordinary route", 60)
        self.until_all_follow(node)
        self.client.until_echoed(100)
        return name, target, node

    def until_all_follow(self, node: str) -> None:
        device = "eth0" if self.way == "bgp" else "vxlan.calico"
        for other in self.all.nodes.keys() - {node}:
            followed = partial(self.all.has_followed, other, self.guest.address, node, device)
            until(followed, f"{other} sends to {node}", 60)


def test_there_and_back(kube_nodes: tuple[KubeNodes, str]) -> None:
    """One established TCP connection survives both ways; whom the policy does not let in stays outside."""
    every, way = kube_nodes
    instance = every.machines.run("vm")
    first = every.machines.create_pod(instance, "1", "n1")
    every.kube.create_pod(NAMESPACE, "client", "n3", labels={"is": "client"})
    every.kube.create_pod(NAMESPACE, "stranger", "n3")
    source = every.start(first, "n1")
    client_pod, stranger = every.start("client", "n3"), every.start("stranger", "n3")
    [address] = source.addresses
    with ExitStack() as stack:
        guest = stack.enter_context(guest_of(every.lab.namespace("guest"), address))
        guest.move(source.ns)
        until(lambda: client_pod.can_ping(source), "the client reaches the machine", 60)
        client = stack.enter_context(client_of(client_pod.ns, address))
        port = client.until_echoed(20)["port"]
        move = Move(every, way, guest, client, instance, f"calnet.vmi.{NAMESPACE}.vm")
        second = move.carry_out(2, (first, source, "n1"), "n2", "arp")
        third = move.carry_out(3, second, "n1", "rarp")
        assert client.until_echoed(20)["port"] == port
        assert client_pod.can_ping(third[1]) and not stranger.can_ping(third[1])
