"""What a pod can send besides plain TCP and UDP: tags, other protocols, fragments, IPv6 extension headers, multicast.

Rule: an attacker sends Ethernet frames of his own to the host, past his own kernel; what arrives is what a socket sees
that is given every frame of the other pod. Without a policy the frames that a router forwards at all arrive, so that
they are known to be good ones.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest

from tests.netns.policing.lab import ALLOW_80, BUFFER, FIRST_MARK, LAST_MARK, RCVBUFFORCE, Lab, lab, socket_in

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]

HOST_MAC = bytes.fromhex("eeeeeeeeeeee")
ALL_FRAMES = socket.htons(0x0003)
IPV4, IPV6, TAG, OUTER_TAG = 0x0800, 0x86DD, 0x8100, 0x88A8
UDP, GRE, IPIP, SCTP, ESP = 17, 47, 4, 132, 50
HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION_OPTIONS = 0, 43, 44, 60
ALLOWED, DENIED = 80, 81
A = {4: ip_address("10.65.0.1"), 6: ip_address("fd00::1")}
B = {4: ip_address("10.65.0.2"), 6: ip_address("fd00::2")}


def checksum(data: bytes) -> int:
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def ipv4(
    protocol: int, payload: bytes, to: str = str(B[4]), *, flags: int = 0, offset: int = 0, number: int = 7
) -> bytes:
    """``offset``: of a fragment, in units of 8 bytes; ``flags`` 1: more follow."""
    fixed = struct.pack(">BBHHHBB", 0x45, 0, 20 + len(payload), number, flags << 13 | offset, 64, protocol)
    ends = A[4].packed + ip_address(to).packed
    return fixed + struct.pack(">H", checksum(fixed + bytes(2) + ends)) + ends + payload


def ipv6(first: int, payload: bytes) -> bytes:
    return struct.pack(">IHBB", 6 << 28, len(payload), first, 64) + A[6].packed + B[6].packed + payload


def udp(port: int, word: bytes, version: int) -> bytes:
    length = 8 + len(word)
    header = struct.pack(">HHH", 40000, port, length)
    ends: tuple[IPv4Address | IPv6Address, ...] = A[version], B[version]
    pseudo = b"".join(end.packed for end in ends) + struct.pack(">II", length, UDP)
    return header + struct.pack(">H", checksum(pseudo + header + bytes(2) + word) or 0xFFFF) + word


def fragments(port: int, word: bytes, *, first_bytes: int) -> list[bytes]:
    whole = udp(port, bytes(64) + word, 4)
    parts = whole[:first_bytes], whole[first_bytes:]
    return [
        ipv4(UDP, parts[0], flags=1, number=port),
        ipv4(UDP, parts[1], offset=first_bytes // 8, number=port),
    ]


def fragments6(port: int, word: bytes) -> list[bytes]:
    whole = udp(port, bytes(64) + word, 6)
    return [
        ipv6(FRAGMENT, struct.pack(">BBHI", UDP, 0, 1, port) + whole[:16]),
        ipv6(FRAGMENT, struct.pack(">BBHI", UDP, 0, 16, port) + whole[16:]),
    ]


def behind(header: int, port: int, word: bytes) -> bytes:
    """UDP behind one extension header of eight bytes, padded."""
    extension = bytes((UDP, 0, 1, 4, 0, 0, 0, 0))  # of options: six bytes of padding
    if header == ROUTING:
        extension = bytes((UDP, 0, 4, 0, 0, 0, 0, 0))  # no segments are left
    return ipv6(header, extension + udp(port, word, 6))


@dataclass
class Attack:
    """``a`` sends, ``b`` gets."""

    lab: Lab
    wire: socket.socket
    seen: socket.socket
    source_mac: bytes
    count: int = field(default=0)

    def arrives(self, *packets: bytes, kind: int = IPV4, tags: bytes = b"", word: bytes, mac: bytes = HOST_MAC) -> bool:
        """Whether a frame that ends in ``word`` arrives after these were sent, each in a frame of its own."""
        for packet in packets:
            self.wire.send(mac + self.source_mac + tags + kind.to_bytes(2, "big") + packet)
        found = False
        with socket_in(self.lab.host, socket.AF_INET, socket.SOCK_DGRAM) as host:
            for mark in (FIRST_MARK + word, LAST_MARK + word):
                host.sendto(mark, (str(B[4]), 9))
                while not (data := self.seen.recv(65535)).endswith(mark):
                    found = found or (data.endswith(word) and not data.endswith(FIRST_MARK + word))
        return found

    def word(self) -> bytes:
        self.count += 1
        return f"attack{self.count:04}".encode()

    def reached(self) -> set[str]:
        """The names of the frames that arrive."""
        found = set()
        for port in (ALLOWED, DENIED):
            for name, packets, kind, tags in self._frames(port):
                word = self.word()
                if self.arrives(*packets(word), kind=kind, tags=tags, word=word):
                    found.add(f"{name} {port}")
        for number in (GRE, IPIP, SCTP, ESP, 200):
            word = self.word()
            if self.arrives(ipv4(number, bytes(16) + word), word=word):
                found.add(f"protocol {number}")
        word = self.word()
        tail = ipv4(UDP, bytes(64) + word, offset=4, number=999)
        if self.arrives(tail, word=word):
            found.add("a later fragment alone")
        word = self.word()
        group = ipv4(UDP, udp(ALLOWED, word, 4), to="224.0.0.251")
        if self.arrives(group, word=word, mac=bytes.fromhex("01005e0000fb")):
            found.add("multicast")
        return found

    def _frames(self, port: int) -> Iterator[tuple[str, Callable[[bytes], list[bytes]], int, bytes]]:
        """(name, the packets that carry a word, the frames' kind, their tags)."""
        tag, outer = struct.pack(">HH", TAG, 5), struct.pack(">HH", OUTER_TAG, 6)
        yield "plain", lambda word: [ipv4(UDP, udp(port, word, 4))], IPV4, b""
        yield "plain6", lambda word: [ipv6(UDP, udp(port, word, 6))], IPV6, b""
        yield "tag", lambda word: [ipv4(UDP, udp(port, word, 4))], IPV4, tag
        yield "two tags", lambda word: [ipv4(UDP, udp(port, word, 4))], IPV4, outer + tag
        yield "priority tag", lambda word: [ipv4(UDP, udp(port, word, 4))], IPV4, struct.pack(">HH", TAG, 0xE000)
        yield "fragments", lambda word: fragments(port, word, first_bytes=40), IPV4, b""
        yield "tiny fragments", lambda word: fragments(port, word, first_bytes=8), IPV4, b""
        yield "late first fragment", lambda word: fragments(port, word, first_bytes=16)[::-1], IPV4, b""
        yield "fragments6", lambda word: fragments6(port, word), IPV6, b""
        yield "hop-by-hop", lambda word: [behind(HOP_BY_HOP, port, word)], IPV6, b""
        yield "routing", lambda word: [behind(ROUTING, port, word)], IPV6, b""
        yield "options", lambda word: [behind(DESTINATION_OPTIONS, port, word)], IPV6, b""


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Attack]:
    with lab(tmp_path) as made, ExitStack() as stack:
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        made.put_profile("kns.default")
        a, b = made.add("a", str(A[4]), str(A[6]), app="a"), made.add("b", str(B[4]), str(B[6]), app="b")
        wire, seen = (
            stack.enter_context(socket_in(w.ns, socket.AF_PACKET, socket.SOCK_RAW, ALL_FRAMES)) for w in (a, b)
        )
        for opened in (wire, seen):
            opened.bind(("eth0", 3))
            opened.settimeout(20)
        seen.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, BUFFER)
        link = a.ns.link("eth0")
        assert link is not None
        yield Attack(made, wire, seen, bytes.fromhex(link["address"].replace(":", "")))


ROUTED = {"plain", "plain6", "priority tag", "fragments", "tiny fragments", "late first fragment", "fragments6"} | {
    "hop-by-hop",
    "routing",
    "options",
}
OTHERS = {f"protocol {number}" for number in (GRE, IPIP, SCTP, ESP, 200)}


@pytest.mark.parametrize("mode", ["Auto", "Disabled"])
def test_no_frame_gets_around_a_policy(attack: Attack, mode: str) -> None:
    everything = {f"{name} {port}" for name in ROUTED for port in (ALLOWED, DENIED)} | OTHERS
    assert attack.reached() >= everything - {"priority tag 80", "priority tag 81"}
    attack.lab.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    attack.lab.start(FELIX_NFTABLESMODE=mode)
    attack.lab.until_in_force(policies=1)
    allowed = {f"{name} {ALLOWED}" for name in ROUTED}
    found = attack.reached()
    assert found <= allowed, found - allowed
    assert {f"plain {ALLOWED}", f"plain6 {ALLOWED}", f"options {ALLOWED}"} <= found
