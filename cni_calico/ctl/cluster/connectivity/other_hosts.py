"""From a container of this host to the other hosts, where nobody there can be asked to answer.

Rule: the probe is an echo request to a container of the other host that has no hops left when it comes there, so the
other host's kernel reports it (RFC 792 and RFC 4443, "time exceeded") before any policy of its workloads is asked. What
comes back has passed routes and tunnels in both directions. Nothing is changed, here or there.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from cni_calico.ctl.addresses import addresses_of_node
from cni_calico.ctl.cluster.connectivity.findings import FAILED, OK, SKIPPED, Trial
from cni_calico.ctl.listing import read_kind
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.model.documents.codec import decode_endpoint, decode_node
from cni_calico.model.resources import Address

MakeAny = Callable[[int, int, int], socket.socket]  # family, kind, protocol

_FAR = 64  # hops, for what need not end on the way
HOPS = 8  # routers between two hosts
PATIENCE_S, ANSWER_S = 15.0, 1.0  # until routes must be there; for one packet
_LEAST_TRIED, _STEP = 600, 30  # bytes
MOST = 20  # hosts that are tried, unless they are named
_ICMP = {4: (socket.IPPROTO_ICMP, 8, 0, 11), 6: (socket.IPPROTO_ICMPV6, 128, 129, 3)}  # request, reply, exceeded
_FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
_HEADER = {4: 20, 6: 40}
_MTU_DISCOVER = {4: (socket.IPPROTO_IP, 10), 6: (socket.IPPROTO_IPV6, 23)}  # <linux/in.h>, <linux/in6.h>
_MTU = {4: 14, 6: 24}
_PROBE = 3  # IP_PMTUDISC_PROBE: never fragmented
_ECHO = "!BBHHH"  # type, code, checksum, identifier, sequence


@dataclass(frozen=True, slots=True)
class OtherHost:
    """``targets``: an address of one of its containers, or of its tunnels, for each family that it has."""

    name: str
    own: Collection[Address]
    targets: Mapping[int, Address]


@dataclass(frozen=True, slots=True)
class Heard:
    """``hops``: 0: nobody answered; ``by``: who did."""

    hops: int = 0
    by: Address | None = None


def read_hosts(session: Session, own_node: str, wanted: Collection[str]) -> list[OtherHost]:
    """The other hosts, or those that are wanted. Raises CommandFailed if one of these does not exist."""
    found = read_kind(session, "Node", decode_node, lambda key, error: session.note_damaged(key, str(error)))
    nodes = {key.name: node for key, node in found}
    for name in wanted:
        if name not in nodes:
            raise CommandFailed(f"cannot check the network: there is no node {name}")
    targets = _read_targets(session)
    for name, node in nodes.items():
        for address in (node.ipv4_vxlan_tunnel, node.ipv4_ipip_tunnel, node.ipv6_vxlan_tunnel):
            if address is not None:
                targets.setdefault(name, {}).setdefault(address.version, address)
    names = [name for name in sorted(nodes) if name != own_node and (not wanted or name in wanted)]
    return [OtherHost(name, addresses_of_node(nodes[name]), targets.get(name, {})) for name in names]


def _read_targets(session: Session) -> dict[str, dict[int, Address]]:
    """By node, an address of a container for each family."""
    found: dict[str, dict[int, Address]] = {}
    for _, endpoint in read_kind(session, "WorkloadEndpoint", decode_endpoint):
        for net in endpoint.ip_networks:
            found.setdefault(endpoint.node, {}).setdefault(net.version, net.network_address)
    return found


def try_hosts(hosts: list[OtherHost], make: MakeAny, families: Collection[int]) -> Iterator[Trial]:
    """Each host, by the families that the container has."""
    if not hosts:
        yield Trial("other hosts", SKIPPED, "there is no other node in this datastore")
    for host in hosts[:MOST]:
        for version in sorted(families):
            yield _try_host(host, make, version)
    if len(hosts) > MOST:
        yield Trial("other hosts", SKIPPED, f"{len(hosts) - MOST} more; name them with --nodes")


def _try_host(host: OtherHost, make: MakeAny, version: int) -> Trial:
    what, target = f"IPv{version} to host {host.name}", host.targets.get(version)
    if target is None:
        return Trial(what, SKIPPED, "no container there has an address, and no tunnel: start one there")
    end = time.monotonic() + PATIENCE_S
    while True:
        heard = trace(make, target, host.own)
        if heard.by is not None and (heard.by in host.own or heard.by == target):
            break
        if time.monotonic() >= end:
            return Trial(what, FAILED, _describe_silence(target, heard))
    mtu = _mtu_towards(make, target)
    way = "directly" if heard.hops <= 2 else f"over {heard.hops - 2} routers"  # the first hop is this host
    if probe(make, target, heard.hops, mtu) is None:
        passing = _largest_passing(make, target, heard.hops, mtu)
        said = f", those of {passing} are" if passing else ""
        return Trial(
            what,
            FAILED,
            f"{target} is reached, but packets of {mtu} bytes are not{said}: lower the MTU (veth_mtu; with encryption "
            "wireguardMTU, too)",
        )
    return Trial(what, OK, f"{target} is behind {heard.by}, {way}; packets of {mtu} bytes pass")


def _largest_passing(make: MakeAny, target: Address, hops: int, mtu: int) -> int:
    """The largest of some sizes that are tried, 0: none. Hosts report few packets a second, so there are few."""
    sizes = list(range(_LEAST_TRIED, mtu, _STEP))
    found = 0
    while sizes:
        at = len(sizes) // 2
        if probe(make, target, hops, sizes[at]) is None:
            sizes = sizes[:at]
        else:
            found, sizes = sizes[at], sizes[at + 1 :]
    return found


def _mtu_towards(make: MakeAny, target: Address) -> int:
    with make(_FAMILY[target.version], socket.SOCK_DGRAM, 0) as connected:
        level, discover = _MTU_DISCOVER[target.version]
        connected.setsockopt(level, discover, _PROBE)
        connected.connect((str(target), 9))  # sends nothing
        mtu: int = connected.getsockopt(level, _MTU[target.version])
        return mtu


def _describe_silence(target: Address, heard: Heard) -> str:
    last = f"the last that answers on the way is {heard.by}" if heard.by is not None else "nothing on the way answers"
    return (
        f"{target} is not behind its host: {last}. Look at the route to it (ip route get {target}), at BGP or the "
        "tunnel (calicoctl node status, on both hosts), and whether VXLAN (UDP 4789), IPIP (protocol 4) or BGP (TCP "
        "179) is let through between them"
    )


def trace(make: MakeAny, target: Address, ends: Collection[Address]) -> Heard:
    """How many hops it takes until one of ``ends``, or the target itself, reports; else the last who did."""
    last = Heard()
    for hops in range(1, HOPS + 1):
        by = probe(make, target, hops, 64)
        if by is not None:
            last = Heard(hops, by)
            if by in ends or by == target:
                return last
    return last


def probe(make: MakeAny, target: Address, hops: int, size: int) -> Address | None:
    """Who reports a packet of ``size`` bytes that may take ``hops`` hops; two attempts."""
    version = target.version
    request = _ICMP[version][1]
    with _open_raw(make, version, hops) as raw:
        for sequence in (1, 2):
            ours = struct.pack("!HH", int.from_bytes(os.urandom(2)), sequence)
            body = bytes(max(0, size - _HEADER[version] - struct.calcsize(_ECHO)))
            try:
                raw.sendto(_request(version, request, ours, body), (str(target), 0))
                by = _receive(raw, version, target, ours, time.monotonic() + ANSWER_S)
            except OSError:  # larger than the interface's MTU, or no route
                continue
            if by is not None:
                return by
    return None


def _open_raw(make: MakeAny, version: int, hops: int) -> socket.socket:
    raw = make(_FAMILY[version], socket.SOCK_RAW, _ICMP[version][0])
    level, discover = _MTU_DISCOVER[version]
    raw.setsockopt(level, discover, _PROBE)
    if version == 4:
        raw.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)
    else:
        raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hops)
    return raw


def send_echoes(make: MakeAny, target: Address, body: bytes, number: int) -> Iterator[bool]:
    """Send so many requests with ``body``, and as many that fill the interface's packets; for each whether it was
    taken. Nobody is awaited. Raises OSError.
    """
    version = target.version
    room = _mtu_towards(make, target) - _HEADER[version] - struct.calcsize(_ECHO)
    with _open_raw(make, version, _FAR) as raw:
        for size in (0, room):
            for sequence in range(number):
                ours = struct.pack("!HH", int.from_bytes(os.urandom(2)), sequence)
                try:
                    raw.sendto(_request(version, _ICMP[version][1], ours, body.ljust(size, b".")), (str(target), 0))
                except OSError:  # prohibited, or no route
                    yield False
                else:
                    yield True


def _request(version: int, kind: int, ours: bytes, body: bytes) -> bytes:
    """The kernel fills in the checksum of ICMPv6."""
    packet = struct.pack("!BBH", kind, 0, 0) + ours + body
    checksum = 0 if version == 6 else internet_checksum(packet)
    return packet[:2] + struct.pack("!H", checksum) + packet[4:]


def internet_checksum(data: bytes) -> int:
    """RFC 1071."""
    words: tuple[int, ...] = struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2))
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _receive(raw: socket.socket, version: int, target: Address, ours: bytes, end: float) -> Address | None:
    while (left := end - time.monotonic()) > 0:
        if not select.select((raw,), (), (), left)[0]:
            return None
        data, sender = raw.recvfrom(65536)
        if is_answer(data, version, target, ours):
            return ip_address(sender[0].partition("%")[0])
    return None


def is_answer(data: bytes, version: int, target: Address, ours: bytes) -> bool:
    """PURE: whether a packet is the reply to our request, or reports that it ran out of hops. ``ours``: its identifier
    and sequence. Raw sockets give IPv4's header too.
    """
    message = data[(data[0] & 0x0F) * 4 :] if version == 4 and data else data
    _, request, reply, exceeded = _ICMP[version]
    if len(message) < 8:
        return False
    if message[0] == reply:
        return message[4:8] == ours
    if message[0] != exceeded:
        return False
    inner = message[8:]
    if len(inner) < _HEADER[version] + 8:
        return False
    header = (inner[0] & 0x0F) * 4 if version == 4 else 40
    sent = inner[header:]
    to = inner[16:20] if version == 4 else inner[24:40]
    return to == target.packed and len(sent) >= 8 and sent[0] == request and sent[4:8] == ours
