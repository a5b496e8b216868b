"""A host with an uplink to another one, a workload on it, and packets to the host, from it and through it.

Rule: that a packet does not arrive is known when a later one has, which no policy stops: to a failsafe port.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deadlines import until
from tests.netns.namespaces import Namespace, namespace
from tests.netns.policing.lab import FIRST_MARK, LAST_MARK, NODE, Lab, lab, socket_in

HOST, OTHER = {4: "172.31.0.1", 6: "fd31::1"}, {4: "172.31.0.9", 6: "fd31::9"}
POD = {4: "10.65.0.1", 6: "fd00::1"}
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
DHCP, DNS, SSH, NODE_PORT = 68, 53, 22, 30080
DENY_ALL = {
    "selector": "",
    "order": 1,
    "types": ["Ingress", "Egress"],
    "ingress": [{"action": "Deny"}],
    "egress": [{"action": "Deny"}],
}


@dataclass
class Uplinked:
    """``other`` is a host that reaches this one, and its workload ``a``, through ``eth0``."""

    lab: Lab
    other: Namespace
    stack: ExitStack
    count: int = 0
    receivers: dict[tuple[str, int], socket.socket] = field(default_factory=dict)

    @property
    def host(self) -> Namespace:
        return self.lab.host

    def put_host(self, name: str = "h", interface: str = "eth0", **spec: Any) -> None:
        labels = spec.pop("labels", {"host": "yes"})
        given = {"interfaceName": interface} if interface else {}
        self.lab.put("HostEndpoint", name, {"node": NODE, **given, **spec}, **labels)

    def put_policy(self, name: str, **spec: Any) -> None:
        self.lab.put("GlobalNetworkPolicy", name, {"order": 10, "selector": "host == 'yes'", **spec})

    def receiver(self, ns: Namespace, version: int) -> socket.socket:
        if (ns.name, version) not in self.receivers:
            opened = socket_in(ns, FAMILIES[version], socket.SOCK_RAW, socket.IPPROTO_UDP)
            opened.settimeout(20)
            self.receivers[ns.name, version] = self.stack.enter_context(opened)
        return self.receivers[ns.name, version]

    def arrives(
        self, source: Namespace, to: str, port: int, at: Namespace, marker: tuple[Namespace, str, int], sport: int = 0
    ) -> bool:
        """Whether a UDP packet, the first of its connection, arrives in ``at``. ``marker``: what always does."""
        version = 6 if ":" in to else 4
        arrived = self.receiver(at, version)
        self.count += 1
        word = f"probe{self.count}".encode()
        with socket_in(source, FAMILIES[version], socket.SOCK_DGRAM) as probe:
            probe.bind(("::" if version == 6 else "", sport))
            try:
                probe.sendto(word, (to, port))
            except PermissionError:
                return False  # how the kernel says that it was dropped on its way out
        found = False
        with socket_in(marker[0], FAMILIES[version], socket.SOCK_DGRAM) as marking:
            for mark in (FIRST_MARK + word, LAST_MARK + word):
                marking.sendto(mark, marker[1:])
                while not (data := arrived.recv(4096)).endswith(mark):
                    found = found or data.endswith(word)
        return found

    def into_host(self, port: int, version: int = 4, to: str = "") -> bool:
        marker = (self.other, HOST[version], DHCP)
        return self.arrives(self.other, to or HOST[version], port, self.host, marker)

    def out_of_host(self, port: int, version: int = 4) -> bool:
        return self.arrives(self.host, OTHER[version], port, self.other, (self.host, OTHER[version], DNS))

    def into_workload(self, port: int, version: int = 4, to: str = "") -> bool:
        """``to``: an address that is translated to the workload's."""
        pod = self.lab.workloads["a"].ns
        return self.arrives(self.other, to or POD[version], port, pod, (self.host, POD[version], 9))

    def out_of_workload(self, port: int) -> bool:
        pod = self.lab.workloads["a"].ns
        return self.arrives(pod, OTHER[4], port, self.other, (self.host, OTHER[4], DNS))

    def from_workload_to_host(self, port: int, version: int = 4) -> bool:
        pod = self.lab.workloads["a"].ns
        return self.arrives(pod, HOST[version], port, self.host, (self.other, HOST[version], DHCP))

    def log_in(self, version: int = 4) -> bool:
        """A TCP connection to the failsafe port of SSH."""
        return self.connects(self.other, HOST[version], SSH)

    def connects(self, source: Namespace, to: str, port: int) -> bool:
        """A TCP connection to the host, with data."""
        family = FAMILIES[6 if ":" in to else 4]
        with ExitStack() as stack:
            listening = stack.enter_context(socket_in(self.host, family, socket.SOCK_STREAM))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((to, port))
            listening.listen()
            client = stack.enter_context(socket_in(source, family, socket.SOCK_STREAM))
            for end in (client, listening):
                end.settimeout(20)
            client.connect((to, port))
            served = stack.enter_context(listening.accept()[0])
            client.sendall(b"hello")
            return served.recv(5) == b"hello"

    def until(self, probe: Any, wanted: bool, what: str) -> None:
        try:
            until(lambda: probe() is wanted, what)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.lab.standing()}\n{self.lab.log()}\n{self.lab.ruleset()}") from None

    def until_warned(self, text: str) -> None:
        until(lambda: any(text in said for said in self.lab.standing().get("warnings", ())), f"warning {text!r}")


@contextmanager
def uplinked_lab(root: Path) -> Iterator[Uplinked]:
    with lab(root) as made, ExitStack() as stack:
        other = stack.enter_context(namespace("other"))
        made.host.do("link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", other.name)
        for end, addresses in ((made.host, HOST), (other, OTHER)):
            end.do("addr", "add", f"{addresses[4]}/24", "dev", "eth0")
            end.do("addr", "add", f"{addresses[6]}/64", "dev", "eth0", "nodad")
            end.do("link", "set", "eth0", "up")
            end.do("link", "set", "lo", "up")
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        made.put_profile("kns.default")
        made.add("a", *POD.values(), app="a")
        for version, net in ((4, "10.65.0.0/16"), (6, "fd00::/64")):
            other.do(f"-{version}", "route", "add", net, "via", HOST[version])
        yield Uplinked(made, other, stack)


def start(uplinked: Uplinked, *, ipv6: bool = True, **counts: int) -> None:
    support = str(ipv6).lower()
    uplinked.lab.start(FELIX_DEFAULTENDPOINTTOHOSTACTION="RETURN", FELIX_IPV6SUPPORT=support)
    uplinked.lab.until_in_force(**counts)
