"""Encapsulated packets from a host that is no node do not reach pods, by any tunnel; those of one that counts do."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address, ip_address
from pathlib import Path

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.dataplane.encapsulation import derived_mac
from tests.deadlines import until
from tests.netns.bird.cluster import make_lab
from tests.netns.namespaces import Namespace
from tests.netns.node_cluster import Cluster
from tests.netns.policing.lab import socket_in
from tests.unit.nodeagent.fabric import node, pool

pytestmark = [
    *(pytest.mark.slow, pytest.mark.etcd, pytest.mark.bundle, pytest.mark.netns, pytest.mark.never_excused),
    *(pytest.mark.stock, pytest.mark.timeout(900)),
]
KINDS = {
    "ipip": (pool("10.65.0.0/16", ipip="Always"), "tunl0"),
    "vxlan": (pool("10.65.0.0/16", vxlan="Always"), "vxlan.calico"),
    "vxlan6": (pool("fd65::/64", vxlan="Always"), "vxlan-v6.calico"),
}
STRANGER = {4: "10.0.0.66", 6: "fd00:0::66"}
NODE = {4: "10.0.0.1", 6: "fd00:0::1"}
ALLOW_ALL = {"selector": "all()", "types": ["Ingress", "Egress"], "ingress": [{"action": "Allow"}], "egress": []}
PORT, VNI, VXLAN_PORT, UDP = 7777, 4096, 4789, 17


class Scene:
    """A node with a pod, and a host beside it that is no node."""

    def __init__(self, cluster: Cluster, stranger: Namespace, kind: str) -> None:
        self.cluster, self.stranger, self.kind = cluster, stranger, kind
        self.family = 6 if kind == "vxlan6" else 4
        self.node = cluster.nodes["n1"]
        self.pod = cluster.pods["n1-a"]
        self.address = next(a for a in self.pod.addresses if ip_address(a).version == self.family)
        self._inet = socket.AF_INET if self.family == 4 else socket.AF_INET6
        self._count = 0

    def arrives(self) -> bool:
        """Whether the pod gets what the stranger encapsulates for it; the host's own packet is behind it."""
        self._count += 1
        word, last = f"strange{self._count}".encode(), f"last{self._count}".encode()
        with ExitStack() as stack:
            pod = stack.enter_context(socket_in(self.pod.ns, self._inet, socket.SOCK_RAW, socket.IPPROTO_UDP))
            pod.settimeout(20)
            out = stack.enter_context(socket_in(self.stranger, *self._way()))
            out.sendto(self._packet(word), (NODE[self.family], 0 if self.kind == "ipip" else VXLAN_PORT))
            host = stack.enter_context(socket_in(self.node.ns, self._inet, socket.SOCK_DGRAM))
            found = False
            for mark in (b"first" + last, last):  # a packet in a device's queue may be overtaken by one
                host.sendto(mark, (self.address, PORT))
                while not (data := pod.recv(2048)).endswith(mark):
                    found = found or data.endswith(word)
        return found

    def _way(self) -> tuple[int, ...]:
        if self.kind == "ipip":
            return socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IPIP
        return self._inet, socket.SOCK_DGRAM

    def _packet(self, word: bytes) -> bytes:
        """What the tunnel carries, with its header; from an address of the pool that is on no node."""
        upper = struct.pack(">HHHH", 5555, PORT, 8 + len(word), 0) + word
        if self.family == 6:
            source, to = ip_address("fd65::dead").packed, ip_address(self.address).packed
            upper = upper[:6] + checksum(source + to + struct.pack(">II", len(upper), UDP) + upper) + upper[8:]
            inner = struct.pack(">IHBB", 6 << 28, len(upper), UDP, 64) + source + to + upper
        else:
            head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(upper), 1, 0, 64, UDP, 0)
            head += IPv4Address("10.65.200.200").packed + IPv4Address(self.address).packed
            inner = head[:10] + checksum(head) + head[12:] + upper
        if self.kind == "ipip":
            return inner
        mac = bytes.fromhex(derived_mac("n1", self.family).replace(":", ""))
        ethernet = mac + bytes.fromhex("660000000001") + (b"\x08\0" if self.family == 4 else b"\x86\xdd")
        return struct.pack(">II", 0x08000000, VNI << 8) + ethernet + inner


def checksum(data: bytes) -> bytes:
    total = sum(struct.unpack(f">{len(data) // 2}H", data[: len(data) // 2 * 2])) + (data[-1] << 8) * (len(data) % 2)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">H", ~total & 0xFFFF)


@pytest.fixture(params=[pytest.param("ipip", marks=pytest.mark.kernel("ipip")), "vxlan", "vxlan6"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, bundle: Path) -> Iterator[Scene]:
    wanted, device = KINDS[request.param]
    ipv6 = request.param == "vxlan6"
    environ = {"CALICO_NETWORKING_BACKEND": "vxlan", "IP6": "autodetect" if ipv6 else "none"}
    with make_lab(tmp_path) as lab:
        made = Cluster(lab, tmp_path, ipv6=ipv6, environ=environ, bin_dir=bundle, tries=4)
        made.store.put(wanted, *([pool("10.65.0.0/16")] if ipv6 else []))
        made.start("n1", "0", 1).until_ready()
        made.add_pod("n1", "a")
        stranger = lab.namespace("stranger")
        lab.plug(stranger, "eth0", "0", *(f"{at}/{24 if ':' not in at else 64}" for at in STRANGER.values()))
        scene = Scene(made, stranger, request.param)
        until(lambda: "UP" in (scene.node.ns.link(device) or {"flags": []})["flags"], f"{device} is up", 60)
        yield scene


def test_only_who_counts_as_a_node_reaches_pods(scene: Scene) -> None:
    """Also after the set of nodes has changed, and as externalNodesList says; without a policy, and with one."""
    _only_nodes_reach(scene)
    scene.cluster.store.put(Resource("GlobalNetworkPolicy", Metadata("all"), ALLOW_ALL))
    until(lambda: (scene.node.status().get("policing") or {}).get("in_force"), "the policy is in force", 60)
    _only_nodes_reach(scene)


def _only_nodes_reach(scene: Scene) -> None:
    store = scene.cluster.store
    assert not scene.arrives()
    listed = [f"{STRANGER[scene.family]}/{32 if scene.family == 4 else 128}"]
    store.put(Resource("FelixConfiguration", Metadata("default"), {"externalNodesList": listed}))
    until(scene.arrives, "an external node is let in", 60)
    store.put(Resource("FelixConfiguration", Metadata("default"), {}))
    until(lambda: not scene.arrives(), "it is kept out again", 60)
    store.put(node("n9", f"{STRANGER[4]}/24", f"{STRANGER[6]}/64"))
    until(scene.arrives, "a new node is let in", 60)
    store.remove(ResourceKey("Node", "n9"))
    until(lambda: not scene.arrives(), "a node that is gone is kept out", 60)
