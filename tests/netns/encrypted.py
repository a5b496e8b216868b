"""Two nodes that encrypt what their pods send one another, with whichever WireGuard is here; a stream of numbered
packets between two pods, and what is seen of it on the way.

Rule: a device's name is the node's own, because programs outside of the kernel listen at a socket of that name.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cni_calico.datastore.ensure import ensure_record
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.kernel import netns
from cni_calico.kernel.wireguard.device import SOCKETS, read_device
from cni_calico.model.documents.codec import decode_node, encode_node
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Record, Resource
from cni_calico.model.timestamps import rfc3339
from cni_calico.model.wireguard import ROTATE, WireguardDevice, parse_public_key, with_published_key
from tests.deadlines import until
from tests.kernels.features import MACHINE, has
from tests.netns.agents import Store
from tests.netns.bird.cluster import Lab, make_lab
from tests.netns.namespaces import Namespace
from tests.netns.nodes import Node, Pod
from tests.netns.outside import wireguard_outside

PORT = 7777
_ETH_ALL = 3
# in a machine, where starts are what costs, the executables; a host's tests are of the modules as they are written
_FROZEN = Path("/opt/cni/bin") if MACHINE in os.environ else None
_PACKET = struct.Struct(">I")


def opened(ns: Namespace, *arguments: int) -> socket.socket:
    """A socket in the namespace."""
    there = netns.open_netns(ns.path)
    try:
        with netns.inside(there):
            made = socket.socket(*arguments)
    finally:
        os.close(there)
    made.setblocking(False)
    return made


class Capture:
    """What goes over an interface. ``readable``: packets in which the token is."""

    def __init__(self, ns: Namespace, interface: str, token: bytes) -> None:
        self._socket = opened(ns, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
        there = netns.open_netns(ns.path)
        with netns.inside(there):
            self._socket.bind((interface, _ETH_ALL))
        os.close(there)
        self._token = token
        self.readable = 0
        self.udp_to: dict[int, int] = {}

    def take_in(self) -> None:
        while True:
            try:
                frame = self._socket.recv(65536)
            except BlockingIOError:
                return
            self.readable += self._token in frame
            if frame[12:14] == b"\x08\0" and frame[23] == 17:
                port = int.from_bytes(frame[36:38], "big")
                self.udp_to[port] = self.udp_to.get(port, 0) + 1

    def close(self) -> None:
        self._socket.close()


@dataclass
class Stream:
    """100 packets a second each way (or one each ``pause_s``), each with the token, until it is stopped."""

    pods: tuple[Pod, Pod]
    captures: tuple[Capture, ...]
    token: bytes
    family: int = 4
    port: int = PORT
    pause_s: float = 0.01
    sent: list[int] = field(default_factory=lambda: [0, 0])
    arrived: list[set[int]] = field(default_factory=lambda: [set(), set()])
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> Stream:
        kind = socket.AF_INET if self.family == 4 else socket.AF_INET6
        self._sockets = [opened(pod.ns, kind, socket.SOCK_DGRAM) for pod in self.pods]
        for one in self._sockets:
            one.bind(("::" if self.family == 6 else "0.0.0.0", self.port))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _address(self, to: int) -> str:
        return next(one for one in self.pods[to].addresses if (":" in one) == (self.family == 6))

    def _run(self) -> None:
        addresses = [(self._address(to), self.port) for to in (0, 1)]
        while not self._stop.wait(self.pause_s):
            for at, one in enumerate(self._sockets):
                try:
                    one.sendto(self.token + _PACKET.pack(self.sent[at]), addresses[1 - at])
                except OSError:
                    pass  # refused by the host: it did not arrive
                self.sent[at] += 1
            self.take_in()

    def take_in(self) -> None:
        for at, one in enumerate(self._sockets):
            while True:
                try:
                    data = one.recv(2048)
                except OSError:
                    break
                self.arrived[1 - at].add(_PACKET.unpack(data[-4:])[0])  # who sent it
        for capture in self.captures:
            capture.take_in()

    def arrive(self, more: int) -> None:
        """Wait until so many more have arrived each way."""
        before = [len(numbers) for numbers in self.arrived]
        until(
            lambda: all(len(n) >= b + more for n, b in zip(self.arrived, before, strict=True)),
            "packets arrive",
            60,
            pause_s=0.05,
        )

    def stop(self) -> list[int]:
        """How many were lost each way."""
        if self._thread is None:
            return []
        self._stop.set()
        self._thread.join()
        self._thread = None

        def done() -> bool:
            self.take_in()
            return all(len(numbers) == sent for numbers, sent in zip(self.arrived, self.sent, strict=True))

        end = time.monotonic() + 3  # what is still on its way
        while not done() and time.monotonic() < end:
            select.select(self._sockets, [], [], 0.05)
        for one in self._sockets:
            one.close()
        return [sent - len(numbers) for numbers, sent in zip(self.arrived, self.sent, strict=True)]

    def outstanding(self) -> int:
        """How many were lost of those that were sent before the last ones that arrived."""
        self.arrive(5)
        return sum(max(numbers) + 1 - len(numbers) for numbers in map(set, self.arrived))

    def forget_readable(self) -> None:
        """What was seen so far."""
        self._thread_takes_in()
        for capture in self.captures:
            capture.readable = 0

    def _thread_takes_in(self) -> None:
        """Wait until the thread has looked at what has arrived."""
        sent = self.sent[0]
        until(lambda: self.sent[0] > sent + 2, "the stream goes on")

    def readable(self) -> int:
        return sum(capture.readable for capture in self.captures)


@dataclass
class EncryptedPair:
    """Nodes n1 and n2, and those that join, each with a pod."""

    lab: Lab
    store: Store
    directory: Path
    environ: dict[str, str]
    nodes: dict[str, Node] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)

    def start(self, name: str) -> Node:
        """A node whose agent has been started, in a network namespace of its own."""
        return self.place(name).run()

    def place(self, name: str) -> Node:
        """The same before its agent starts."""
        number = int(name.removeprefix("n"))
        ns = self.lab.namespace(name)
        self.lab.plug(ns, "eth0", "0", f"10.0.0.{number}/24", f"fd00:0::{number}/64")
        self.devices[name] = f"wg{number}-{os.getpid()}"
        more = {
            "NO_DEFAULT_POOLS": "true",
            "CALICO_IPV4POOL_CIDR": "",
            "CALICO_IPV4POOL_VXLAN": "",
            "CALICO_IPV6POOL_CIDR": "",
            "FELIX_HEALTHENABLED": "false",
            "FELIX_PROMETHEUSMETRICSENABLED": "false",
            "FELIX_WIREGUARDINTERFACENAME": self.devices[name],
            "FELIX_WIREGUARDINTERFACENAMEV6": f"{self.devices[name]}v6",
            **self.environ,
        }
        self.nodes[name] = Node(ns, name, self.directory / name, self.store, more=more, bin_dir=_FROZEN)
        self.lab.stack.callback(self.nodes[name].end)
        return self.nodes[name]

    def add_pod(self, name: str, label: str = "a", **conf: Any) -> Pod:
        """Another pod of a node; ``conf`` is of the plugin's configuration."""
        pod = Pod(self.lab.namespace(f"{name}{label}"), f"{name}{label}-{os.getpid()}", ipv6="IP6" in self.environ)
        if self.environ.get("IP") == "none":
            conf.setdefault("ipam", {"type": "calico-ipam", "assign_ipv4": "false", "assign_ipv6": "true"})
        return self.nodes[name].add(pod, **conf)

    def stream(
        self, family: int = 4, *, of: tuple[str, str] = ("n1", "n2"), port: int = PORT, pause_s: float = 0.01
    ) -> Stream:
        return self.stream_between((self.pods[of[0]], self.pods[of[1]]), family, port=port, pause_s=pause_s)

    def stream_between(
        self, pods: tuple[Pod, Pod], family: int = 4, *, port: int = PORT, pause_s: float = 0.01
    ) -> Stream:
        token = os.urandom(16)
        captures = tuple(Capture(node.ns, "eth0", token) for node in self.nodes.values())
        stream = Stream(pods, captures, token, family, port, pause_s)
        self.lab.stack.callback(stream.stop)
        return stream.start()

    def rotate(self, name: str) -> None:
        """Ask for a new key."""

        def asked(node: Any) -> Any:
            annotations = {**node.metadata.annotations, ROTATE: rfc3339(time.time() + 1)}
            return replace(node, metadata=replace(node.metadata, annotations=annotations))

        self.change_node(name, asked)

    def say_key(self, name: str, text: str) -> None:
        """In the Node, instead of its key."""
        self.change_node(name, lambda node: with_published_key(node, 4, text))

    def change_node(self, name: str, change: Callable[[Any], Any]) -> None:
        key = ResourceKey("Node", name)
        store = LocalStore(str(self.store.path))
        ensure_record(store, key, lambda old: encode_node(change(decode_node(key, old))), Deadline.after(10))
        store.close()

    def shaken(self, name: str, key: str) -> bool:
        """Whether a node's device has had a handshake with this peer."""
        peer = self.device(name).peer(parse_public_key(key))
        return peer is not None and peer.handshake_s > 0

    def device(self, name: str) -> WireguardDevice:
        """A node's, of IPv4; an empty one if there is none."""
        found = self.nodes[name].ns.call(read_device, self.devices[name], Deadline.after(10))
        return WireguardDevice() if found is None else found

    def handshake(self, name: str) -> int:
        """When the last one was, of any peer; Unix time."""
        return max((peer.handshake_s for peer in self.device(name).peers), default=0)

    def node(self, name: str) -> dict[str, Any]:
        """As it is stored; empty if there is none."""
        store = LocalStore(str(self.store.path))
        record = store.get(ResourceKey("Node", name), Deadline.after(10))
        store.close()
        return {} if record is None else dict(record.value)

    def told_keys(self) -> dict[str, str]:
        """By node, what it says; empty ones left out."""
        store = LocalStore(str(self.store.path))
        found = {}
        for name in self.nodes:
            record = store.get(ResourceKey("Node", name), Deadline.after(10))
            status = {} if record is None else record.value.get("status") or {}
            if status.get("wireguardPublicKey"):
                found[name] = status["wireguardPublicKey"]
        store.close()
        return found

    def enable(self, **fields: Any) -> None:
        self.enable_on(*self.nodes, **fields)

    def enable_on(self, *names: str, **fields: Any) -> None:
        """Only these have a device where the kernel has no WireGuard."""
        self.make_devices(*names)
        self.store.put(felix_default(wireguardEnabled=True, **fields))

    def disable(self) -> None:
        self.store.put(felix_default(wireguardEnabled=False))

    def make_devices(self, *names: str) -> None:
        """Where the kernel has no WireGuard, the agents find what is outside of it."""
        if not has("wireguard"):
            for name in names or self.nodes:
                self.make_device(name, self.devices[name])

    def make_device(self, node: str, device: str) -> None:
        """The same for one, of any name."""
        if not has("wireguard"):
            self.lab.stack.enter_context(wireguard_outside(self.nodes[node].ns, device))

    def remake_device(self, node: str) -> None:
        """For one that was deleted: its program ends with it, and another one may only then have its socket."""
        socket_of = Path(SOCKETS) / f"{self.devices[node]}.sock"
        until(lambda: not socket_of.exists(), "the program of the device that was deleted has ended")
        self.make_devices(node)

    def routed(self, name: str, family: int = 4) -> set[str]:
        """The networks that a node sends encrypted."""
        try:
            shown = self.nodes[name].ns.ip(f"-{family}", "route", "show", "table", "1")
        except RuntimeError:
            return set()  # nobody has used the table yet
        device = self.devices[name] + ("v6" if family == 6 else "")
        return {route["dst"] for route in shown if route.get("dev") == device}

    def until_encrypted(self) -> None:
        until(
            lambda: all(self.routed(name) for name in self.nodes),
            "each is routed to the other's device",
            60,
            pause_s=0.2,
        )

    def pings(self, name: str, address: str, token: bytes) -> bool:
        """Whether a node's pod has an answer to a ping with the token in it."""
        command = ["ping", "-c1", "-W1", "-s64", "-p", token.hex(), address]
        return self.pods[name].ns.run(*command, check=False).returncode == 0

    def rules(self, name: str) -> list[dict[str, Any]]:
        return [rule for rule in self.nodes[name].ns.ip("rule", "show") if rule["priority"] == 99]


def felix_default(annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    return Resource("FelixConfiguration", Metadata("default", annotations=annotations or {}), spec)


@contextmanager
def encrypted_pair(
    directory: Path, records: tuple[Record, ...], make_store: Callable[[Lab], Store] | None = None, **environ: str
) -> Iterator[EncryptedPair]:
    """Encryption is not enabled yet. ``make_store``: instead of a file."""
    with make_lab(directory) as lab:
        store = Store(directory / "store.db") if make_store is None else make_store(lab)
        store.put(*records)
        pair = EncryptedPair(lab, store, directory, environ)
        for name in ("n1", "n2"):
            pair.start(name)
        lab.stack.callback(lambda: [node.ask_to_end() for node in pair.nodes.values()])
        for name, node in pair.nodes.items():
            node.until_applied()
            pair.pods[name] = pair.add_pod(name)
        yield pair
