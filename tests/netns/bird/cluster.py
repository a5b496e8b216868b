"""Calico nodes with real BIRDs in network namespaces, joined by a switch or by a router between subnets.

Rule: the files come from ``render_bird_config`` and go in force through ``BirdController``, as on a real node; what a
kernel ends up with is read with ``ip -j``. Every BIRD is ended by its process, every directory and namespace removed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.nodeagent.bgp.bird.control import BirdControl
from cni_calico.nodeagent.bgp.bird.controller import Applied, BirdController
from cni_calico.nodeagent.bgp.bird.leftovers import remove_leftovers
from cni_calico.nodeagent.bgp.bird.process import BirdPaths
from cni_calico.nodeagent.bgp.bird.status import BirdStatus
from cni_calico.nodeagent.bgp.config.render import BirdConfig, render_bird_config
from tests.deadlines import until
from tests.netns.namespaces import Namespace, namespace
from tests.unit.nodeagent.bgp.config.clusters import BIRD, Document, make_snapshot, this

CONVERGED_S = 30.0


@dataclass
class BirdNode:
    """A namespace with a BIRD of its own; ``documents`` are the cluster's, ``blocks`` this node's."""

    name: str
    ns: Namespace
    directory: Path
    controller: BirdController
    blocks: list[Any] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    config: BirdConfig | None = None

    def apply(self, documents: Iterable[Document], timeout_s: float = 20.0) -> Applied:
        self.config = render_bird_config(make_snapshot([*documents, this(self.name, self.blocks, **self.env)]))
        return self.controller.apply(self.config, Deadline.after(timeout_s))

    def apply_text(self, text: str) -> Applied:
        """A hand-written bird.cfg: for routers that are no Calico nodes."""
        return self.controller.apply(BirdConfig({"bird.cfg": text}), Deadline.after(20.0))

    def status(self) -> BirdStatus:
        return self.controller.status(Deadline.after(5.0))

    def established(self) -> set[str]:
        return {peer.name for peer in self.status().peers if peer.established}

    def pid(self) -> int:
        child = self.controller.process.child
        assert child is not None
        return child.pid

    def kill(self) -> int:
        """End BIRD as a crash would; its pid."""
        pid = self.pid()
        os.kill(pid, signal.SIGKILL)
        return pid

    def learned(self, version: int = 4) -> dict[str, str]:
        """Destination -> gateway of BIRD's routes in the kernel; "blackhole" for those."""
        routes = {}
        found = self.ns.ip(f"-{version}", "route", "show", "proto", "bird")
        for route in sorted(found, key=lambda r: -r.get("metric", 0)):  # of several the kernel takes the last
            hops = route.get("nexthops") or [route]
            gateway = ",".join(sorted(hop.get("gateway", "-") for hop in hops))
            routes[route["dst"]] = "blackhole" if route.get("type") == "blackhole" else gateway
        return routes

    def remote(self, version: int = 4) -> dict[str, str]:
        return {dst: via for dst, via in self.learned(version).items() if via != "blackhole"}

    def show_routes(self) -> set[str]:
        """Every destination in BIRD's own tables."""
        with BirdControl(self.controller.paths.socket, Deadline.after(5.0)) as control:
            lines = control.tell("show route all", Deadline.after(5.0)).lines
        return {text.split()[0] for code, text in lines if code == 1007 and "/" in text.split(" ")[0]}

    def show_route(self, network: str) -> dict[str, str]:
        """The attributes of the best route to a network, by BIRD's names."""
        with BirdControl(self.controller.paths.socket, Deadline.after(5.0)) as control:
            lines = control.tell(f"show route {network} primary all", Deadline.after(5.0)).lines
        pairs = (text.strip().partition(":") for _, text in lines)
        return {name: value.strip() for name, _, value in pairs}

    def announcers(self, network: str) -> set[str]:
        """The next hops of all BGP routes to a network, also of those that are not the best."""
        with BirdControl(self.controller.paths.socket, Deadline.after(5.0)) as control:
            lines = control.tell(f"show route {network} all", Deadline.after(5.0)).lines
        return {text.split()[-1] for _, text in lines if text.strip().startswith("BGP.next_hop:")}

    def add_pod(self, label: str, *addresses: str, make: Callable[[str], Namespace]) -> Namespace:
        """A pod the way CNI sets one up: routes to its addresses through a cali interface, proxy ARP."""
        pod = make(label)
        device = f"cali{label}"
        self.ns.do("link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", pod.name)
        self.ns.set_sysctl(f"ipv4/conf/{device}/proxy_arp", "1")
        self.ns.set_sysctl(f"ipv4/neigh/{device}/proxy_delay", "0")
        self.ns.set_sysctl(f"ipv6/conf/{device}/proxy_ndp", "1")
        self.ns.do("link", "set", device, "up")
        pod.do("link", "set", "eth0", "up")
        for address in addresses:
            _add_pod_address(self.ns, pod, device, address)
        return pod


def _add_pod_address(host: Namespace, pod: Namespace, device: str, address: str) -> None:
    if ":" in address:
        host.do("-6", "route", "add", f"{address}/128", "dev", device, "metric", "1024")
        host.do("addr", "add", "fe80::ecee:eeff:feee:eeee/64", "dev", device, "nodad")
        pod.do("addr", "add", f"{address}/128", "dev", "eth0", "nodad")
        pod.do("-6", "route", "add", "default", "via", "fe80::ecee:eeff:feee:eeee", "dev", "eth0")
    else:
        host.do("route", "add", f"{address}/32", "dev", device, "scope", "link")
        pod.do("addr", "add", f"{address}/32", "dev", "eth0")
        pod.do("route", "replace", "169.254.1.1", "dev", "eth0", "scope", "link")
        pod.do("route", "replace", "default", "via", "169.254.1.1", "dev", "eth0")


class Lab:
    """Namespaces on one or more switches. Use as ``with make_lab(tmp) as lab``."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.stack = stack
        self.directory = directory
        self.nodes: dict[str, BirdNode] = {}
        self.switches: dict[str, Namespace] = {}

    def namespace(self, label: str) -> Namespace:
        return self.stack.enter_context(namespace(label))

    def plug(self, ns: Namespace, device: str, switch: str, *addresses: str) -> None:
        """A cable from a namespace to a switch."""
        if switch not in self.switches:
            made = self.namespace(f"sw{switch}")
            made.do("link", "add", "br0", "type", "bridge")
            made.do("link", "set", "br0", "up")
            self.switches[switch] = made
        bridge = self.switches[switch]
        port = f"p{len(bridge.ip('link', 'show'))}"
        bridge.do("link", "add", port, "type", "veth", "peer", "name", device, "netns", ns.name)
        bridge.do("link", "set", port, "master", "br0", "up")
        ns.do("link", "set", device, "up")
        for address in addresses:
            ns.do("addr", "add", address, "dev", device, *(["nodad"] if ":" in address else []))

    def node(self, name: str, *addresses: str, switch: str = "0", blocks: Iterable[Any] = ()) -> BirdNode:
        """A node with one interface; a default route to nobody, which proxy ARP needs."""
        ns = self.namespace(name)
        ns.set_sysctl("ipv4/ip_forward", "1")
        ns.set_sysctl("ipv6/conf/all/forwarding", "1")
        self.plug(ns, "eth0", switch, *addresses)
        if addresses and ":" not in addresses[0]:
            ns.do("route", "add", "default", "via", addresses[0].rsplit("/")[0].rsplit(".", 1)[0] + ".254")
        return self.bird(name, ns, list(blocks))

    def bird(self, name: str, ns: Namespace, blocks: list[Any] | None = None) -> BirdNode:
        directory = self.directory / name
        directory.mkdir()
        binary = directory / "bird"
        binary.write_text(f'#!/bin/sh\nexec nsenter --net={ns.path} {BIRD} "$@"\n')
        binary.chmod(0o755)
        output = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.stack.callback(os.close, output)
        paths = BirdPaths(str(directory / "cfg"), str(directory / "ctl"), str(directory / "pid"), str(binary))
        controller = self.controller(ns, paths, output)
        node = BirdNode(name, ns, directory, controller, blocks or [])
        self.nodes[name] = node
        return node

    def controller(self, ns: Namespace, paths: BirdPaths, output: int = 2) -> BirdController:
        def left_routes(deadline: Deadline) -> bool:
            return any(ns.ip(f"-{version}", "route", "show", "proto", "bird") for version in (4, 6))

        controller = BirdController(paths, output_fd=output, left_routes=left_routes)
        self.stack.callback(controller.close)
        return controller

    def apply_all(self, documents: Iterable[Document]) -> None:
        documents = list(documents)
        for node in self.nodes.values():
            node.apply(documents)

    def resync(self) -> None:
        """What every agent does now and then, in its own namespace."""
        for node in self.nodes.values():
            node.ns.call(_remove_leftovers, node.controller.paths.socket)

    def await_routes(self, expected: Mapping[str, Mapping[str, str]], version: int = 4) -> float:
        """Wait until every named node's kernel has exactly these remote routes; the seconds it took."""
        start = time.monotonic()
        for name, routes in expected.items():
            node = self.nodes[name]
            try:
                until(partial(_has_routes, node, version, routes), "routes", CONVERGED_S)
            except AssertionError:
                log = (node.directory / "log").read_text()[-3000:]
                raise AssertionError(
                    f"{name} has {node.remote(version)}, expected {dict(routes)}\n"
                    f"{node.status().peers}\n{node.ns.run('ip', 'route').stdout}\n{log}"
                ) from None
        return time.monotonic() - start

    def await_established(self, *names: str) -> None:
        for name in names or self.nodes:
            node = self.nodes[name]
            until(partial(_has_all_sessions, node), f"sessions of {name}", CONVERGED_S)


def _has_routes(node: BirdNode, version: int, routes: Mapping[str, str]) -> bool:
    return node.remote(version) == dict(routes)


def _has_all_sessions(node: BirdNode) -> bool:
    return all(peer.established for peer in node.status().peers)


def _remove_leftovers(socket: str) -> int:
    return remove_leftovers(socket, Deadline.after(5.0))


@contextmanager
def make_lab(directory: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(stack, directory)


def can_ping(source: Namespace, address: str, count: int = 1) -> bool:
    return source.run("ping", "-c", str(count), "-i", "0.2", "-W", "2", "-n", address, check=False).returncode == 0
