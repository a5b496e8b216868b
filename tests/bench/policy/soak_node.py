"""The node of soak.py: workloads, two hosts outside, a NodePort, a service; and packets that are compared with
the naive evaluator.

Rule: a packet came through if it was seen where it has to come out, and nowhere else. What has not been seen when a
later packet that nobody stops was (``sure_ways``) did not come through; the thread stays on one CPU meanwhile, so that
later packets are later.
"""

from __future__ import annotations

import enum
import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import product
from pathlib import Path
from typing import Any

from tests.bench.policy.random_records import NODE_PORT, PORTS
from tests.netns.host_path import HERE, HostPath
from tests.netns.namespaces import Namespace, namespace
from tests.netns.policing.lab import BUFFER, NODE, RCVBUFFORCE, Lab, Workload, socket_in
from tests.unit.policy.naive import Naive

Address = IPv4Address | IPv6Address
NAMES = [f"w{number}" for number in range(6)]
TRAFFIC = ["t0", "t1"]  # which the traffic and the beacons are between; they always stay
PODS = [*NAMES, *TRAFFIC]
INTERFACES = ["eth0", "eth1"]
OUTSIDE = ["o0", "o1"]
FIRST_HOST = "a"
OWN = {name: [f"172.31.{number}.1", f"fd31:{number}::1"] for number, name in enumerate(INTERFACES)}
THEIRS = {name: [f"172.31.{number}.9", f"fd31:{number}::9"] for number, name in enumerate(OUTSIDE)}
SERVICE = {4: "10.96.0.1", 6: "fd96::1"}
BEHIND_NODE_PORT, BEHIND_SERVICE = "w1", "o0"
UDP, DHCP, DNS = 17, 68, 53
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


# who is behind an interface
OWNERS = {f"cali{name}": name for name in PODS} | dict(zip(INTERFACES, OUTSIDE, strict=True)) | {HERE: "host"}


class Presence(enum.Enum):
    THERE = 1
    WITHOUT_RECORD = 2
    GONE = 3


@dataclass(frozen=True)
class Probe:
    """``place``: the name of who has to see it if it passes."""

    source: str
    destination: str
    port: int
    place: str
    passes: bool


class SoakNode:
    def __init__(self, lab: Lab, root: Path, stack: ExitStack, limit_s: int) -> None:
        self.lab = lab
        lab.limit_s = limit_s
        self.documents: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._root = root
        self._stack = stack
        self._presence = dict.fromkeys(PODS, Presence.THERE)
        self._labels: dict[str, dict[str, str]] = {name: {} for name in NAMES}
        self._receivers: dict[tuple[str, int], socket.socket] = {}
        self._count = 0
        for interface, outside in zip(INTERFACES, OUTSIDE, strict=True):
            self._connect_outside(interface, outside)
        lab.workloads["host"] = Workload("host", lab.host, INTERFACES[0], tuple(OWN[INTERFACES[0]]))
        lab.sure_ways["host"] = (lab.workloads[OUTSIDE[0]].ns, DHCP)
        self.translate()
        for version, service in SERVICE.items():
            via = self._address(BEHIND_SERVICE, version)
            lab.host.do(f"-{version}", "route", "add", service, "via", str(via), "dev", INTERFACES[0])

    def _connect_outside(self, interface: str, name: str) -> None:
        ns, host = self._stack.enter_context(namespace(name)), self.lab.host
        host.do("link", "add", interface, "type", "veth", "peer", "name", "eth0", "netns", ns.name)
        ends: list[tuple[Namespace, str, list[str]]] = [(host, interface, OWN[interface]), (ns, "eth0", THEIRS[name])]
        for end, link, addresses in ends:
            end.do("link", "set", link, "addrgenmode", "none", "up")
            for address in addresses:
                end.do("addr", "add", f"{address}/{64 if ':' in address else 24}", "dev", link, "nodad")
        for (end, link, _), (other, other_link, others) in (ends, ends[::-1]):
            found = other.link(other_link)
            assert found is not None
            for address in others:
                end.do("neigh", "add", address, "lladdr", found["address"], "dev", link)
        for version, gateway in ((4, OWN[interface][0]), (6, OWN[interface][1])):
            ns.do(f"-{version}", "route", "add", "default", "via", gateway)
        self.lab.workloads[name] = Workload(name, ns, "eth0", tuple(THEIRS[name]))
        self.lab.sure_ways[name] = (host, DNS)

    def connect_all(self) -> None:
        for number, name in enumerate(PODS):
            self.lab.connect(name, f"cali{name}", f"10.65.0.{number + 1}", f"fd00::{number + 1}")
            self.put_workload(name, {})

    def start(self) -> None:
        self.lab.start(FELIX_DEFAULTENDPOINTTOHOSTACTION="RETURN")

    def translate(self) -> None:
        """As kube-proxy does."""
        text = ""
        for table, word, version in (("ip", "ip", 4), ("ip6", "ip6", 6)):
            pod, other = self._address(BEHIND_NODE_PORT, version), self._address(BEHIND_SERVICE, version)
            to = {
                address: f"[{address}]:{PORTS[0]}" if version == 6 else f"{address}:{PORTS[0]}"
                for address in (pod, other)
            }
            chain = f"fib daddr type local udp dport {NODE_PORT} dnat to {to[pod]};"
            service = f"{word} daddr {SERVICE[version]} udp dport {PORTS[0]} dnat to {to[other]};"
            text += (
                f"table {table} others {{}}\ndelete table {table} others\ntable {table} others {{\n"
                f"chain pre {{ type nat hook prerouting priority -100; {chain} }}\n"
                f"chain out {{ type nat hook output priority -100; {service} }}\n}}\n"
            )
        (self._root / "others.nft").write_text(text)
        self.lab.host.run("nft", "-f", str(self._root / "others.nft"))

    def _address(self, name: str, version: int) -> Address:
        if name in PODS:
            return ip_address(f"{'fd00::' if version == 6 else '10.65.0.'}{PODS.index(name) + 1}")
        return ip_address(self.lab.workloads[name].address(version))

    # -- records ------------------------------------------------------------------------------------------------------

    def put(self, kind: str, name: str, spec: dict[str, Any], namespace_name: str = "", **labels: str) -> None:
        self.documents[kind, namespace_name, name] = {"metadata": {"labels": labels}, "spec": spec}
        self.lab.put(kind, name, spec, namespace_name, **labels)

    def remove(self, key: tuple[str, str, str]) -> None:
        kind, namespace_name, name = key
        del self.documents[key]
        self.lab.remove(kind, name, namespace_name)

    def put_workload(self, name: str, labels: dict[str, str]) -> None:
        self._labels[name] = labels
        if self._presence[name] is Presence.THERE:
            workload = self.lab.workloads[name]
            self.lab.put_endpoint(workload, **labels)
            self.documents[self.key(name)] = {"metadata": {"labels": labels}, "spec": workload.document}

    def key(self, name: str) -> tuple[str, str, str]:
        return "WorkloadEndpoint", "default", f"{NODE}-k8s-{name}-eth0"

    def move(self, name: str, presence: Presence) -> None:
        """A pod comes or goes, as the plugin would do it."""
        before, self._presence[name] = self._presence[name], presence
        if before is presence:
            return
        if before is Presence.THERE:
            self.remove(self.key(name))
        if presence is Presence.GONE:
            self.lab.host.do("link", "del", f"cali{name}")
        elif before is Presence.GONE:
            self.lab.plug(name)
        if presence is Presence.THERE:
            self.put_workload(name, self._labels[name])

    # -- packets ------------------------------------------------------------------------------------------------------

    def _path(self, version: int) -> HostPath:
        there = {name: self._address(name, version) for name in PODS if self._presence[name] is not Presence.GONE}
        workloads = {
            address: self.key(name) if self._presence[name] is Presence.THERE else None
            for name, address in there.items()
        }
        routes = {address: f"cali{name}" for name, address in there.items()}
        routes |= {self._address(name, version): INTERFACES[number] for number, name in enumerate(OUTSIDE)}
        routes[ip_address(SERVICE[version])] = INTERFACES[0]
        own = {name: frozenset(map(ip_address, addresses)) for name, addresses in OWN.items()}
        to_pod, to_other = self._address(BEHIND_NODE_PORT, version), self._address(BEHIND_SERVICE, version)
        return HostPath(
            Naive(self.documents),
            NODE,
            own,
            routes,
            workloads,
            frozenset({(UDP, DHCP)}),
            frozenset({(UDP, DNS)}),
            {(address, (UDP, NODE_PORT)): (to_pod, PORTS[0]) for listed in own.values() for address in listed},
            {(ip_address(SERVICE[version]), (UDP, PORTS[0])): (to_other, PORTS[0])},
        )

    def probes(self) -> list[Probe]:
        """All there is to try, with what has to become of it."""
        made = []
        for version in (4, 6):
            path = self._path(version)
            sources = {address: OWNERS[interface] for address, interface in path.routes.items()}
            sources = {address: name for address, name in sources.items() if name not in TRAFFIC}
            del sources[ip_address(SERVICE[version])]
            own = {address for listed in path.own.values() for address in listed if address.version == version}
            for (source, name), destination in product(sources.items(), [*sources, *own]):
                for port in [*PORTS, DHCP] + ([NODE_PORT] if destination in own else []):
                    hairpin = port == NODE_PORT and name == BEHIND_NODE_PORT
                    if source == destination or hairpin or self._is_lost(port, path):
                        continue
                    made.append(self._probe(path, path.passes_in, name, source, destination, port))
            for destination in [*sources, ip_address(SERVICE[version])]:
                source = ip_address(OWN["eth1" if sources.get(destination) == "o1" else "eth0"][version == 6])
                for port in [*PORTS, DNS] if destination in sources else PORTS[:1]:
                    made.append(self._probe(path, path.passes_out, "host", source, destination, port))
        return made

    def beacon_probes(self, ports: dict[str, int]) -> list[Probe]:
        """From one workload of the traffic to the other; about host endpoints, from outside."""
        path, outside, made = self._path(4), OUTSIDE[0], []
        for kind, port in ports.items():
            name, to = TRAFFIC[0], self._address(TRAFFIC[1], 4)
            if kind == "HostEndpoint":
                name, to = outside, ip_address(OWN[INTERFACES[0]][0])
            made.append(self._probe(path, path.passes_in, name, self._address(name, 4), to, port))
        return made

    def _is_lost(self, port: int, path: HostPath) -> bool:
        """Whether it is for a workload that is not there."""
        return port == NODE_PORT and not {to for to, _ in path.incoming.values()} <= set(path.routes)

    def _probe(self, path: HostPath, passes: Any, name: str, source: Address, to: Address, port: int) -> Probe:
        packet = {"source": source, "destination": to, "protocol": UDP, "sport": 40000, "dport": port, "icmp": None}
        interface, verdict = passes(packet)
        if to == ip_address(SERVICE[to.version]) and path.decided(INTERFACES[0], "raw", "egress", packet):
            verdict = False  # nobody has the address, and what is not tracked is not translated
        return Probe(f"{name} {source}", str(to), port, OWNERS[interface], verdict)

    def wrong(self, probes: list[Probe]) -> list[tuple[Probe, str]]:
        """Send them all; those that did not come out where they should, or did somewhere else, and where they did."""
        everybody = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(everybody)})
        try:
            return self._wrong(probes)
        finally:
            os.sched_setaffinity(0, everybody)

    def _wrong(self, probes: list[Probe]) -> list[tuple[Probe, str]]:
        present = [name for name in NAMES if self._presence[name] is not Presence.GONE]
        watched = [*product([*present, *OUTSIDE, "host"], (4, 6)), (TRAFFIC[1], 4)]
        for name, version in watched:
            self._receiver(name, version)
        words = {}
        for probe in probes:
            self._count += 1
            word = b"probe%09d" % self._count
            words[word] = probe
            name, source = probe.source.split()
            with socket_in(self.lab.workloads[name].ns, FAMILIES[6 if ":" in source else 4], socket.SOCK_DGRAM) as out:
                out.bind((source, 0))
                try:
                    out.sendto(word, (probe.destination, probe.port))
                except PermissionError:
                    continue  # how the kernel says that it was dropped on its way out
        self._count += 1
        last = b"last %09d" % self._count
        seen: dict[bytes, list[str]] = {word: [] for word in words}
        for name, version in watched:
            sure_from, port = self.lab.sure_ways.get(name, (self.lab.host, 9))
            with socket_in(sure_from, FAMILIES[version], socket.SOCK_DGRAM) as out:
                out.sendto(last, (str(self._address(name, version)), port))
            while True:
                word = self._receiver(name, version).recv(4096)[-len(last) :]
                if word == last:
                    break
                if word in seen:
                    seen[word].append(name)
        expected = {word: [probe.place] if probe.passes else [] for word, probe in words.items()}
        return [(probe, f"seen: {seen[word]}") for word, probe in words.items() if seen[word] != expected[word]]

    def _receiver(self, name: str, version: int) -> socket.socket:
        if (name, version) not in self._receivers:
            opened = socket_in(self.lab.workloads[name].ns, FAMILIES[version], socket.SOCK_RAW, socket.IPPROTO_UDP)
            opened.settimeout(60)
            opened.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, BUFFER)
            self._receivers[name, version] = self._stack.enter_context(opened)
        return self._receivers[name, version]
