"""PURE: requests about WireGuard devices, encoded by hand, and their answers decoded.

Rule: as in kernel/netlink/links.py. One change is as few messages as fit into MESSAGE_BYTES each; a peer whose networks
do not fit goes on in the next one, and only its first part replaces what it had. A dump's peer may go on likewise, in
the next message. A device's private key, which a dump has, is never looked at. Layouts: linux/wireguard.h.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_network
from struct import Struct

from cni_calico import faults
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.addresses import AF_INET, AF_INET6
from cni_calico.kernel.netlink.families import GENERIC
from cni_calico.kernel.netlink.wire import NLM_F_DUMP, Request, attribute, nested, text, u32
from cni_calico.model.resources import Network
from cni_calico.model.wireguard import (
    KEY_BYTES,
    PeerChange,
    WireguardChange,
    WireguardDevice,
    WireguardEndpoint,
    WireguardPeer,
)

FAMILY = "wireguard"
WIREGUARD_SET = faults.declare("netlink.wireguard-set")
MESSAGE_BYTES = 16000
_GET_DEVICE, _SET_DEVICE, _VERSION = 0, 1, 1
_IFNAME, _PRIVATE_KEY, _PUBLIC_KEY, _LISTEN_PORT, _FWMARK, _PEERS = 2, 3, 4, 6, 7, 8
_PEER_KEY, _PEER_FLAGS, _PEER_ENDPOINT, _PEER_KEEPALIVE, _PEER_HANDSHAKE = 1, 3, 4, 5, 6
_PEER_RECEIVED, _PEER_SENT, _PEER_ALLOWED = 7, 8, 9
_REMOVE_ME, _REPLACE_ALLOWED, _UPDATE_ONLY = 1, 2, 4
_ALLOWED_FAMILY, _ALLOWED_ADDRESS, _ALLOWED_LENGTH = 1, 2, 3
_U16, _U64, _TIME = Struct("=H"), Struct("=Q"), Struct("=qq")
_V4_PLACE, _V6_PLACE = Struct("=H2s4s8x"), Struct("=H2s4x16s4x")


def list_device(family: int, name: str) -> Request:
    """``family``: the kernel's number of it."""
    body = GENERIC.pack(_GET_DEVICE, _VERSION, 0) + text(_IFNAME, name)
    return Request(family, NLM_F_DUMP, body, f"read {name}")


def set_device(family: int, name: str, change: WireguardChange) -> list[Request]:
    """The requests of a change, in their order."""
    head = text(_IFNAME, name)
    first = b""
    if change.private_key is not None:
        first += attribute(_PRIVATE_KEY, change.private_key.packed)
    if change.port is not None:
        first += attribute(_LISTEN_PORT, _U16.pack(change.port))
    if change.mark is not None:
        first += u32(_FWMARK, change.mark)
    bodies = []
    for peers in _pages(change.peers, MESSAGE_BYTES - len(head) - len(first)):
        bodies.append(head + first + (nested(_PEERS, *peers) if peers else b""))
        first = b""
    generic = GENERIC.pack(_SET_DEVICE, _VERSION, 0)
    return [Request(family, 0, generic + body, f"set {name}", WIREGUARD_SET) for body in bodies]


def _pages(peers: Iterable[PeerChange], room: int) -> Iterator[list[bytes]]:
    """The peers' attributes by message; at least one message, which may be empty."""
    page: list[bytes] = []
    used, sent = 0, False
    for peer in peers:
        for part in _parts(peer, room):
            if page and used + len(part) > room:
                yield page
                page, used, sent = [], 0, True
            page.append(part)
            used += len(part)
    if page or not sent:
        yield page


def _parts(peer: PeerChange, room: int) -> Iterator[bytes]:
    key = attribute(_PEER_KEY, peer.public_key)
    flags = _REMOVE_ME * peer.remove | _UPDATE_ONLY * (peer.known_only or peer.remove)
    flags |= _REPLACE_ALLOWED * (peer.allowed is not None)
    body = key + u32(_PEER_FLAGS, flags)
    if peer.endpoint is not None:
        body += attribute(_PEER_ENDPOINT, _place(peer.endpoint))
    if peer.keepalive_s is not None:
        body += attribute(_PEER_KEEPALIVE, _U16.pack(peer.keepalive_s))
    networks: list[bytes] = []
    left = room - len(body) - 16
    for network in sorted(peer.allowed or (), key=lambda one: (one.version, one)):
        entry = _allowed(network)
        if len(entry) > left:
            yield nested(0, body, nested(_PEER_ALLOWED, *networks))
            body = key + u32(_PEER_FLAGS, _UPDATE_ONLY)
            networks, left = [], room - len(body) - 16
        networks.append(entry)
        left -= len(entry)
    yield nested(0, body, nested(_PEER_ALLOWED, *networks) if networks else b"")


def _allowed(network: Network) -> bytes:
    family = AF_INET if network.version == 4 else AF_INET6
    return nested(
        0,
        attribute(_ALLOWED_FAMILY, _U16.pack(family)),
        attribute(_ALLOWED_ADDRESS, network.network_address.packed),
        attribute(_ALLOWED_LENGTH, bytes((network.prefixlen,))),
    )


def _place(endpoint: WireguardEndpoint) -> bytes:
    port = endpoint.port.to_bytes(2, "big")
    if endpoint.address.version == 4:
        return _V4_PLACE.pack(AF_INET, port, endpoint.address.packed)
    return _V6_PLACE.pack(AF_INET6, port, endpoint.address.packed)


def decode_device(
    payloads: Iterable[bytes], share: Callable[[WireguardPeer], WireguardPeer] = lambda peer: peer
) -> WireguardDevice:
    """All messages of a dump. ``share``: what becomes of each peer. Raises KernelError."""
    key, port, mark = b"", 0, 0
    peers: dict[bytes, WireguardPeer] = {}
    for payload in payloads:
        found = wire.attributes(payload, GENERIC.size)
        key = found.get(_PUBLIC_KEY, key)
        port = _integer(found[_LISTEN_PORT], _U16) if _LISTEN_PORT in found else port
        mark = wire.number(found.get(_FWMARK), mark)
        for element in wire.list_elements(found.get(_PEERS, b"")):
            peer = _peer(element)
            before = peers.get(peer.public_key)
            peers[peer.public_key] = share(peer if before is None else _with_more(before, peer))
    if len(key) not in (0, KEY_BYTES):
        raise wire.malformed("a WireGuard device", f"a key of {len(key)} bytes")
    return WireguardDevice(key, port, mark, tuple(peers.values()))


def _with_more(before: WireguardPeer, more: WireguardPeer) -> WireguardPeer:
    """A continued peer repeats nothing but its key."""
    return replace(before, allowed=frozenset((*before.allowed, *more.allowed)))


def _peer(payload: bytes) -> WireguardPeer:
    found = wire.attributes(payload)
    key = found.get(_PEER_KEY, b"")
    if len(key) != KEY_BYTES:
        raise wire.malformed("a WireGuard peer", f"a key of {len(key)} bytes")
    handshake = found.get(_PEER_HANDSHAKE, bytes(_TIME.size))
    if len(handshake) != _TIME.size:
        raise wire.malformed("a WireGuard peer", f"a time of {len(handshake)} bytes")
    return WireguardPeer(
        public_key=key,
        endpoint=_endpoint(found.get(_PEER_ENDPOINT)),
        allowed=frozenset(map(_network, wire.list_elements(found.get(_PEER_ALLOWED, b"")))),
        keepalive_s=_integer(found.get(_PEER_KEEPALIVE, bytes(2)), _U16),
        handshake_s=_TIME.unpack(handshake)[0],
        handshake_ns=_TIME.unpack(handshake)[1],
        sent=_integer(found.get(_PEER_SENT, bytes(8)), _U64),
        received=_integer(found.get(_PEER_RECEIVED, bytes(8)), _U64),
    )


def _integer(payload: bytes, layout: Struct) -> int:
    if len(payload) != layout.size:
        raise wire.malformed("a netlink attribute", f"{len(payload)} bytes where {layout.size} are needed")
    return int.from_bytes(payload, sys.byteorder)


def _endpoint(payload: bytes | None) -> WireguardEndpoint | None:
    if payload is None:
        return None
    for family, layout in ((AF_INET, _V4_PLACE), (AF_INET6, _V6_PLACE)):
        if len(payload) == layout.size and _integer(payload[:2], _U16) == family:
            _, port, packed = layout.unpack(payload)
            return WireguardEndpoint(ip_address(packed), int.from_bytes(port, "big"))
    raise wire.malformed("a WireGuard peer", f"an endpoint of {len(payload)} bytes")


def _network(payload: bytes) -> Network:
    found = wire.attributes(payload)
    packed, length = found.get(_ALLOWED_ADDRESS, b""), found.get(_ALLOWED_LENGTH, b"")
    if len(packed) not in (4, 16) or len(length) != 1 or length[0] > len(packed) * 8:
        raise wire.malformed("a WireGuard peer", f"a network of {len(packed)} bytes")
    network: Network = ip_network((packed, length[0]), strict=False)
    return network
