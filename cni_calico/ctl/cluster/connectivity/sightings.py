"""PURE: what can be read of a packet on its way between two nodes, and what that says of encryption.

Rule: a packet is readable if the token is in it, or if one of its headers, also inside of VXLAN and IPIP, has an
address of the check's own pod. What was lost before it was looked at is never taken for encrypted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address

from cni_calico.ctl.cluster.connectivity.findings import FAILED, OK, SKIPPED, Trial

_DATA = b"\x04\0\0\0"  # how WireGuard's messages with data begin
_VXLAN = 4789
_UDP, _INSIDE_IP = 17, (4, 41)  # protocols of IP; IPIP, and IPv6 in IPv4
_DEEPEST = 3  # headers of IP in one another
Header = tuple[bytes, bytes, int, bytes]  # source, destination, protocol, what follows


@dataclass(frozen=True, slots=True)
class WirePlan:
    """What is looked for on a host's wires. ``tokens``: texts of 32 hexadecimal digits; ``pods``: addresses with which
    nothing plain may be seen; ``nodes``: those that WireGuard's packets go between; ``devices``: names of WireGuard's
    interfaces, ``prefixes`` of pods' ones: these are no wires. ``reach``: addresses that the host itself sends tokens
    to, in the order of the tokens.
    """

    tokens: Collection[str]
    pods: Collection[str]
    nodes: Collection[str]
    devices: Collection[str] = ()
    prefixes: Collection[str] = ("cali",)
    reach: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Sighting:
    """``readable``: packets, by token, and under "" those with a pod's address only; ``encrypted``: WireGuard's with
    data, by version of IP, on the wire that had most; ``missed``: what the kernel could not keep for us; ``wires``: the
    interfaces on which something readable was; ``round`` grows with each look; ``sent``: by address that the host was
    to reach, how many packets went there and back.
    """

    readable: Mapping[str, int] = field(default_factory=dict)
    encrypted: Mapping[str, int] = field(default_factory=dict)
    missed: int = 0
    wires: Collection[str] = ()
    round: int = 0
    sent: Mapping[str, int] = field(default_factory=dict)


def render_wire_plan(plan: WirePlan) -> str:
    return json.dumps({"wire": asdict(plan)})


def parse_wire_plan(text: str) -> WirePlan | None:
    """What ``render_wire_plan`` wrote; None: something else. Raises TypeError, ValueError."""
    document = json.loads(text)
    return WirePlan(**document["wire"]) if isinstance(document, dict) and "wire" in document else None


def headers_of(packet: bytes) -> Iterator[Header]:
    """Those of IP, the outermost first."""
    for _ in range(_DEEPEST):
        found = _header(packet)
        if found is None:
            return
        yield found
        _, _, protocol, rest = found
        if protocol in _INSIDE_IP:
            packet = rest
        elif protocol == _UDP and int.from_bytes(rest[2:4]) == _VXLAN:
            packet = rest[8 + 8 + 14 :]  # UDP, VXLAN, Ethernet
        else:
            return


def _header(packet: bytes) -> Header | None:
    version = packet[0] >> 4 if packet else 0
    if version == 4 and len(packet) >= 20:
        return packet[12:16], packet[16:20], packet[9], packet[(packet[0] & 0x0F) * 4 :]
    if version == 6 and len(packet) >= 40:
        return packet[8:24], packet[24:40], packet[6], packet[40:]
    return None


def is_encrypted(packet: bytes, nodes: Collection[bytes]) -> bool:
    """Whether it is WireGuard's, with data, from one of the nodes to another."""
    found = _header(packet)
    if found is None:
        return False
    source, target, protocol, rest = found
    return protocol == _UDP and rest[8:12] == _DATA and source in nodes and target in nodes


def has_address(packet: bytes, pods: Collection[bytes]) -> bool:
    return any(source in pods or target in pods for source, target, _, _ in headers_of(packet))


def packed(addresses: Collection[str]) -> frozenset[bytes]:
    return frozenset(ip_address(text).packed for text in addresses)


def judge(
    what: str, where: str, token: str, sent: int, seen: Mapping[str, tuple[Sighting, int]], excuse: str = ""
) -> Trial:
    """What was seen, by node, of ``sent`` packets with this token, and how many of WireGuard's came on meanwhile.
    ``excuse``: why it cannot be encrypted, as far as the records say it.
    """
    because = f": {excuse}" if excuse else ""
    for node, (one, _) in seen.items():
        if count := one.readable.get(token, 0) or one.readable.get("", 0):
            wires = ", ".join(sorted(one.wires))
            return Trial(what, FAILED, f"{where}: {count} packets can be read on {wires} of {node}{because}")
    if not sent:
        return Trial(what, FAILED, f"{where}: no packet with the token comes back{because}")
    for node, (one, encrypted) in seen.items():
        if one.missed:
            why = f"{where}: {node} has more packets than can be looked at; {one.missed} were not"
            return Trial(what, SKIPPED, why)
        if encrypted < sent:
            text = f"{where}: of {sent} packets {encrypted} were seen encrypted on {node}, the others not at all"
            return Trial(what, FAILED, text + because)
    return Trial(what, OK, f"{where}: {sent} packets, none readable")
