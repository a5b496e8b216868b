"""What programs that are WireGuard outside of the kernel are told and say over their socket: lines of text.

Rule: text in, values out; whatever cannot be read raises KernelError. Source: wireguard.com,
"Cross-platform Interface".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_network

from cni_calico.errors import KernelError
from cni_calico.kernel.wireguard.curve25519 import public_key
from cni_calico.model.wireguard import (
    KEY_BYTES,
    PeerChange,
    WireguardChange,
    WireguardDevice,
    WireguardEndpoint,
    WireguardPeer,
)

GET = b"get=1\n\n"


def render_set(change: WireguardChange) -> bytes:
    text = bytearray(b"set=1\n")
    if change.private_key is not None:
        text += f"private_key={change.private_key.packed.hex()}\n".encode()
    if change.port is not None:
        text += f"listen_port={change.port}\n".encode()
    if change.mark is not None:
        text += f"fwmark={change.mark}\n".encode()
    for peer in change.peers:
        for line in _peer_lines(peer):
            text += f"{line}\n".encode()
    return bytes(text + b"\n")


def _peer_lines(peer: PeerChange) -> Iterator[str]:
    yield f"public_key={peer.public_key.hex()}"
    if peer.remove:
        yield "remove=true"
        return
    if peer.known_only:
        yield "update_only=true"
    if peer.endpoint is not None:
        yield f"endpoint={peer.endpoint}"
    if peer.allowed is not None:
        yield "replace_allowed_ips=true"
        for network in sorted(peer.allowed, key=lambda one: (one.version, one)):
            yield f"allowed_ip={network}"
    if peer.keepalive_s is not None:
        yield f"persistent_keepalive_interval={peer.keepalive_s}"


def parse_answer(
    lines: Iterable[str], doing: str, share: Callable[[WireguardPeer], WireguardPeer] = lambda peer: peer
) -> WireguardDevice:
    """``share``: what becomes of each peer. Raises KernelError: also for what the program refused."""
    device, peers = WireguardDevice(), list[WireguardPeer]()
    errno = 1
    try:
        for line in lines:
            name, _, value = line.partition("=")
            if name == "private_key":
                device = replace(device, public_key=public_key(_key(value)))
            elif name == "listen_port":
                device = replace(device, port=int(value))
            elif name == "fwmark":
                device = replace(device, mark=int(value))
            elif name == "public_key":
                _share_last(peers, share)
                peers.append(WireguardPeer(_key(value)))
            elif name == "errno":
                errno = int(value)
            elif peers:
                peers[-1] = _with(peers[-1], name, value)
    except ValueError:
        raise KernelError(f"cannot {doing}: it answers what is no description of a WireGuard device") from None
    if errno:
        raise KernelError(f"cannot {doing}: {os.strerror(abs(errno))}", errno=abs(errno))
    _share_last(peers, share)
    return replace(device, peers=tuple(peers))


def _share_last(peers: list[WireguardPeer], share: Callable[[WireguardPeer], WireguardPeer]) -> None:
    if peers:
        peers[-1] = share(peers[-1])


def _key(text: str) -> bytes:
    packed = bytes.fromhex(text)
    if len(packed) != KEY_BYTES:
        raise ValueError
    return packed


def _with(peer: WireguardPeer, name: str, value: str) -> WireguardPeer:
    match name:
        case "endpoint":
            address, _, port = value.rpartition(":")
            return replace(peer, endpoint=WireguardEndpoint(ip_address(address.strip("[]")), int(port)))
        case "allowed_ip":
            return replace(peer, allowed=frozenset((*peer.allowed, ip_network(value))))
        case "persistent_keepalive_interval":
            return replace(peer, keepalive_s=int(value))
        case "last_handshake_time_sec":
            return replace(peer, handshake_s=int(value))
        case "last_handshake_time_nsec":
            return replace(peer, handshake_ns=int(value))
        case "tx_bytes":
            return replace(peer, sent=int(value))
        case "rx_bytes":
            return replace(peer, received=int(value))
    return peer
