"""A host whose interfaces' far ends send any frames and see which ones come out, with our tables in its kernel."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.kernel import netns
from cni_calico.kernel.filter.interface import PacketFilter
from cni_calico.kernel.filter.legacy.filter import LegacyFilter
from cni_calico.kernel.filter.legacy.matches import Marks
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.log import Log
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.policy.wanted import Wanted
from tests.netns.namespaces import Namespace, namespace
from tests.unit.nodeagent.policing.tables.worlds import difference
from tests.unit.policy.cluster import ADDRESSES

INTERFACES = ("cali1", "calil3")
UPLINK = "uplink"
MARKS = Marks(0x40000, 0x80000)
MARKER = 0x88B5  # an EtherType for experiments
ROUTER, PEER = "02:00:00:00:00:01", "02:00:00:00:00:02"
MARK = bytes.fromhex((PEER + ROUTER).replace(":", "")) + struct.pack(">H", MARKER) + bytes(46)
TOKEN = os.urandom(8)  # before each packet's number
_SYN = 0x02
_HEADER = {6: 20, 17: 8, 1: 8, 58: 8}  # bytes of the upper protocols' headers


def frame(packet: dict[str, Any], number: int) -> bytes:
    """An Ethernet frame; ``number`` is its payload. Checksums of the upper protocols are not looked at."""
    source, destination = packet["source"], packet["destination"]
    protocol, payload = packet["protocol"], TOKEN + struct.pack(">I", number)
    if protocol == 6:
        flags = 0 if packet.get("invalid") else _SYN
        upper = struct.pack(">HHIIBBHHH", packet["sport"], packet["dport"], 1, 0, 0x50, flags, 8192, 1, 0) + payload
    elif protocol == 17:
        upper = struct.pack(">HHHH", packet["sport"], packet["dport"], 8 + len(payload), 1) + payload
    else:
        upper = struct.pack(">BBHHH", *packet["icmp"], 0, 7, 7) + payload
    ethernet = bytes.fromhex((ROUTER + PEER).replace(":", ""))
    if source.version == 6:
        header = struct.pack(">IHBB", 6 << 28, len(upper), protocol, 64) + source.packed + destination.packed
        return ethernet + b"\x86\xdd" + header + upper
    header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(upper), number & 0xFFFF, 0, 64, protocol, 0)
    header += source.packed + destination.packed
    total = sum(struct.unpack(">10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return ethernet + b"\x08\0" + header[:10] + struct.pack(">H", checksum) + header[12:] + upper


def number_of(data: bytes) -> int | None:
    """The number of a packet that ``frame`` made, from its Ethernet frame; None for anything else, which a host says of
    its own accord: the report of its multicast groups ends in ff02::2, an ICMP error in the packet that it is about.
    """
    kind = data[12:14]
    if kind == b"\x08\0":
        return number_in(data[23], data[34:])
    return number_in(data[20], data[54:]) if kind == b"\x86\xdd" else None


def number_in(protocol: int, upper: bytes) -> int | None:
    """The same from what follows the IP header."""
    payload = upper[_HEADER.get(protocol, len(upper)) :]
    if len(payload) != len(TOKEN) + 4 or not payload.startswith(TOKEN):
        return None
    number: int = struct.unpack(">I", payload[-4:])[0]
    return number


@dataclass
class Wire:
    """The far ends of the host's interfaces, and the host's kernel."""

    host: Namespace
    enforcer: Enforcer
    inner: dict[str, socket.socket] = field(default_factory=dict)  # on the host, for markers
    outer: dict[str, socket.socket] = field(default_factory=dict)
    wanted: Wanted = field(default_factory=Wanted)
    number: int = 0

    def apply(self, wanted: Wanted) -> None:
        self.enforcer.goal.update(difference(self.wanted, wanted))
        self.wanted = wanted
        self.bring_about()

    def bring_about(self) -> None:
        """In the host's namespace, where programs have to be started."""
        with entered(self.host):
            self.enforcer.bring_about(Deadline.after(60))

    def route(
        self,
        owners: dict[IPv4Address | IPv6Address, str],
        without: Collection[IPv4Address | IPv6Address] = (),
    ) -> None:
        """``without``: the host's own addresses."""
        lines = []
        for text in ADDRESSES:
            if ip_address(text) in without:
                continue
            device = owners.get(ip_address(text), UPLINK)
            lines.append(f"route replace {text} dev {device}")
            lines.append(f"neigh replace {text} lladdr {PEER} dev {device}")
        command = ["ip", "-n", self.host.name, "-batch", "-"]
        subprocess.run(command, input="\n".join(lines), text=True, check=True, timeout=60)

    def arrivals(self, packets: list[tuple[str, str, dict[str, Any]]]) -> list[bool]:
        """For each (incoming interface, outgoing interface, packet): whether it came out there."""
        first = self.number + 1
        for incoming, _, packet in packets:
            self.number += 1
            self.outer[incoming].send(frame(packet, self.number))
        seen = self.seen()
        return [first + i in seen[outgoing] for i, (_, outgoing, _) in enumerate(packets)]

    def seen(self) -> dict[str, set[int]]:
        """The numbers of the packets that came out of each interface since the last time."""
        seen: dict[str, set[int]] = {name: set() for name in self.inner}
        for name in [*self.inner, *self.inner]:  # twice: see policing/lab.py, LAST_MARK
            self.inner[name].send(MARK)
            while True:
                data, about = self.outer[name].recvfrom(4096)
                if about[2] == socket.PACKET_OUTGOING:
                    continue
                if data == MARK:
                    break
                number = number_of(data)
                if number is not None:
                    seen[name].add(number)
        return seen


def _raw(device: str, protocol: int) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
    opened.bind((device, protocol))
    opened.settimeout(10)
    return opened


@contextmanager
def entered(ns: Namespace) -> Iterator[None]:
    """This thread is in that namespace meanwhile."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(ns.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            netns.enter(there)
            yield
        finally:
            netns.enter(here)
            os.close(there)
    finally:
        os.close(here)


@contextmanager
def open_wire(settings: FilterSettings, *, legacy: bool = False) -> Iterator[Wire]:
    """``legacy``: iptables and IP sets instead of nf_tables."""
    with ExitStack() as stack:
        host, far = stack.enter_context(namespace("host")), stack.enter_context(namespace("far"))
        host.set_sysctl("ipv4/ip_forward", "1")
        host.set_sysctl("ipv6/conf/all/forwarding", "1")
        for name in ("all", "default"):
            host.set_sysctl(f"ipv4/conf/{name}/rp_filter", "0")
        for name in (*INTERFACES, UPLINK):
            host.do("link", "add", name, "address", ROUTER, "type", "veth", "peer", "name", name, "netns", far.name)
            for end in (host, far):
                end.do(
                    "link", "set", name, "addrgenmode", "none"
                )  # before it is up: else it may have had an address by then
                end.do("link", "set", name, "up")
        stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # packets of one processor stay in order
        with entered(host):
            kernel: PacketFilter = stack.enter_context(LegacyFilter(MARKS, 5) if legacy else NfTables())
            made = Wire(host, Enforcer(kernel, Goal(settings), Log("error")))
            for name in (*INTERFACES, UPLINK):
                made.inner[name] = stack.enter_context(_raw(name, MARKER))
        with entered(far):
            for name in (*INTERFACES, UPLINK):
                made.outer[name] = stack.enter_context(_raw(name, 3))
        made.bring_about()
        host.set_sysctl("netfilter/nf_conntrack_checksum", "0")
        host.set_sysctl("ipv4/icmp_ratelimit", "0")
        yield made
