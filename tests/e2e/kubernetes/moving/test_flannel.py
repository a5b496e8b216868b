"""flannel's own program and this agent on one VXLAN: nodes are moved one by one, and back, and pods reach each other.

Rule: what the agents are told is what `calicoctl migrate flannel --plan` prints. flanneld is built by
tests/setup/flannel.sh; pods are namespaces behind a veth, with addresses of their node's podCIDR.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.e2e.kubernetes.cluster import BIN, Cluster
from tests.e2e.kubernetes.node import Relay
from tests.netns.agents import Store
from tests.netns.namespaces import Namespace, namespace
from tests.netns.nodes import Node

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns, pytest.mark.flannel, pytest.mark.slow]

SPACE, MAP = "kube-flannel", "kube-flannel-cfg"
CONF = {"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}
WORDS = ["/opt/bin/flanneld", "--ip-masq", "--kube-subnet-mgr"]
VTEP = "projectcalico.org/IPv4VXLANTunnelAddr"
ANNOTATIONS = [f"flannel.alpha.coreos.com/{name}" for name in ("backend-data", "backend-type", "public-ip")]


class KubeStore(Store):
    """The API server, as calico-node is told of it."""

    def __init__(self, kubeconfig: str) -> None:
        super().__init__(Path("/nonexistent"))
        self.kubeconfig = kubeconfig

    def environ(self) -> dict[str, str]:
        return {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": self.kubeconfig, "CALICO_JANITOR": "false"}


@dataclass
class Moved:
    """A node with one pod. ``daemon``: its flanneld."""

    number: int
    node: Node
    pod: Namespace
    conf: Path
    daemon: subprocess.Popen[bytes] | None = None

    @property
    def pod_address(self) -> str:
        return f"10.244.{self.number}.5"

    def start_flannel(self) -> None:
        argv = ["nsenter", f"--net={self.node.ns.path}", str(BIN / "flanneld"), "--kube-subnet-mgr", "--iface=eth0"]
        argv += [f"--kubeconfig-file={self.node.store.environ()['KUBECONFIG']}", f"--net-config-path={self.conf}"]
        argv += [f"--subnet-file={self.conf.parent}/subnet-{self.number}.env", "--iptables-forward-rules=false"]
        with open(f"{self.conf.parent}/flannel-{self.number}.log", "ab") as log:
            self.daemon = subprocess.Popen(argv, env={"NODE_NAME": self.node.name}, stderr=log, stdout=log)
        until(lambda: self.node.ns.link("flannel.1"), f"flanneld has its device: {self.conf.parent}", 60)

    def stop_flannel(self) -> None:
        if self.daemon is not None:
            self.daemon.terminate()
            self.daemon.wait(20)
            self.daemon = None

    def to_calico(self) -> None:
        """The commands of the plan."""
        self.stop_flannel()
        self.node.ns.do("link", "delete", "flannel.1")
        self.node.run().until_ready()

    def back(self) -> None:
        self.node.stop()
        self.node.ns.do("link", "delete", "vxlan.calico")
        self.start_flannel()


@dataclass
class World:
    kube: Cluster
    nodes: list[Moved] = field(default_factory=list)

    def until_all_reach_all(self) -> None:
        def reach() -> bool:
            return all(
                one.pod.run("ping", "-c1", "-W1", other.pod_address, check=False).returncode == 0
                for one in self.nodes
                for other in self.nodes
                if one is not other
            )

        try:
            until(reach, "every pod reaches every other", 90)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{''.join(map(describe, self.nodes))}") from None

    def check(self) -> str:
        return self.calicoctl("migrate", "flannel", "--check")

    def calicoctl(self, *words: str, check: bool = True) -> str:
        done = self.nodes[0].node.calicoctl(*words, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout + ("" if check else done.stderr)


def describe(moved: Moved) -> str:
    """How the node reaches others."""
    ns = moved.node.ns
    shown = (["route"], ["neigh"], ["-d", "link", "show", "type", "vxlan"])
    texts = [ns.run("ip", *words, check=False).stdout for words in shown]
    texts += [ns.run("bridge", "fdb", check=False).stdout, str(moved.node.status())[:3000]]
    return f"--- {moved.node.name}\n" + "\n".join(texts)


def annotate(kube: Cluster, each: Moved, gone: list[str]) -> None:
    body = {"metadata": {"annotations": dict.fromkeys(gone)}}
    path, kind = f"/api/v1/nodes/{each.node.name}", "application/merge-patch+json"
    kube.request("PATCH", path, body, content_type=kind)


def add_node(world: World, number: int, root: Path, stack: ExitStack) -> Moved:
    name, kube = f"flannel{number}", world.kube
    cidr = f"10.244.{number}.0/24"
    metadata = {"annotations": {"node.alpha.kubernetes.io/ttl": "0"}}  # without any flanneld does not start
    kube.create_node(name, metadata=metadata, spec={"podCIDR": cidr, "podCIDRs": [cidr]})
    stack.callback(kube.request, "DELETE", f"/api/v1/nodes/{name}")
    host = stack.enter_context(namespace(f"h{number}"))
    pod = stack.enter_context(namespace(f"p{number}"))
    relay = Relay(host, kube.port)
    stack.callback(relay.close)
    host.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    host.do("link", "add", "pod", "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    address = f"10.244.{number}.5"
    host.do("link", "set", "pod", "address", "ee:ee:ee:ee:ee:ee", "up")
    host.do("route", "add", f"{address}/32", "dev", "pod")
    pod.do("link", "set", "eth0", "up")
    pod.do("addr", "add", f"{address}/32", "dev", "eth0")
    pod.do("neigh", "add", "169.254.1.1", "lladdr", "ee:ee:ee:ee:ee:ee", "dev", "eth0")
    pod.do("route", "add", "169.254.1.1", "dev", "eth0", "scope", "link")
    pod.do("route", "add", "default", "via", "169.254.1.1", "dev", "eth0")
    more = {
        "IP": f"10.0.0.{number}/24",
        "USE_POD_CIDR": "true",
        "CALICO_IPV4POOL_CIDR": "none",
        "FELIX_HEALTHPORT": str(9100 + number),
        "FELIX_PROMETHEUSMETRICSENABLED": "false",
    }
    store = KubeStore(kube.kubeconfig())
    made = Moved(number, Node(host, name, root / name, store, more=more), pod, root / "net-conf.json")
    stack.callback(made.stop_flannel)
    stack.callback(made.node.end)
    world.nodes.append(made)
    return made


@pytest.fixture
def flannel_world(kube: Cluster, tmp_path: Path) -> Iterator[World]:
    (tmp_path / "net-conf.json").write_text(json.dumps(CONF))
    kube.ensure_namespace(SPACE)
    maps, daemons = f"/api/v1/namespaces/{SPACE}/configmaps", f"/apis/apps/v1/namespaces/{SPACE}/daemonsets"
    template = {
        "metadata": {"labels": {"app": "flannel"}},
        "spec": {"containers": [{"name": "kube-flannel", "image": "example/none", "command": WORDS}]},
    }
    spec = {"selector": {"matchLabels": {"app": "flannel"}}, "template": template}
    with ExitStack() as stack:
        data = {"net-conf.json": json.dumps(CONF)}
        kube.request("POST", maps, {"kind": "ConfigMap", "metadata": {"name": MAP}, "data": data})
        stack.callback(kube.request, "DELETE", f"{maps}/{MAP}")
        metadata = {"name": "kube-flannel-ds"}
        kube.request("POST", daemons, {"kind": "DaemonSet", "metadata": metadata, "spec": spec})
        stack.callback(kube.request, "DELETE", f"{daemons}/kube-flannel-ds")
        made = World(kube)
        one, other = (add_node(made, number, tmp_path, stack) for number in (1, 2))
        one.node.ns.do("link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", other.node.ns.name)
        for each in (one, other):
            each.node.ns.do("addr", "add", f"10.0.0.{each.number}/24", "dev", "eth0")
            each.node.ns.do("link", "set", "eth0", "up")
        yield made


def apply_plan(world: World, root: Path) -> None:
    """The records that it has between its two marks."""
    plan = world.calicoctl("migrate", "flannel", "--plan")
    records = plan.partition("<<'END'\n")[2].partition("# END")[0]
    (root / "records.yaml").write_text(records)
    world.calicoctl("apply", "-f", str(root / "records.yaml"))


def test_nodes_are_moved_one_by_one_and_back(flannel_world: World, tmp_path: Path) -> None:
    world = flannel_world
    one, other = world.nodes
    assert "has flanneld run there?" in world.calicoctl("migrate", "flannel", "--check", check=False)
    for each in world.nodes:
        each.start_flannel()
    world.until_all_reach_all()
    assert "2 with flannel, 0 moved" in world.check()
    apply_plan(world, tmp_path)
    other.to_calico()
    world.until_all_reach_all()  # flannel's node and ours
    assert "1 with flannel, 1 moved" in world.check()
    device = other.node.ns.link("vxlan.calico")
    assert device is not None and device["address"] in str(world.kube.request("GET", "/api/v1/nodes/flannel2"))
    other.back()
    annotate(world.kube, other, [VTEP])
    world.until_all_reach_all()
    assert "2 with flannel, 0 moved" in world.check()
    for each in (other, one):
        each.to_calico()
        world.until_all_reach_all()
    assert "0 with flannel, 2 moved" in world.check() and "every node is moved" in world.calicoctl(
        "migrate", "flannel", "--plan"
    )
    for each in world.nodes:
        annotate(world.kube, each, ANNOTATIONS)
    until(lambda: (other.node.ns.link("vxlan.calico") or device)["address"] != device["address"], "its own MAC", 60)
    world.until_all_reach_all()
