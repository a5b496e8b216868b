"""A kernel's WireGuard devices, with the rules of the real one that matter to who changes them.

Rule: ``tests/contract/test_wireguard.py`` holds it and the real ones against one another. A network belongs to the
last peer that was given it; the device's own key is no peer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from errno import EEXIST, ENODEV, EOPNOTSUPP

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError, LinkGone
from cni_calico.kernel.wireguard.curve25519 import public_key
from cni_calico.model.resources import Address
from cni_calico.model.wireguard import PeerChange, WireguardChange, WireguardDevice, WireguardPeer


class FakeWireguard:
    """Its methods are the functions of kernel/wireguard/device.py."""

    def __init__(self) -> None:
        self.devices: dict[str, WireguardDevice] = {}
        self.foreign: set[str] = set()  # names of interfaces that are not WireGuard's
        self.supported = True
        self.changes: list[WireguardChange] = []
        self.links: dict[str, tuple[int, tuple[Address, ...]]] = {}
        self.refuses: dict[str, KernelError] = {}  # by the name of a method

    def _reach(self, method: str, name: str) -> None:
        if method in self.refuses:
            raise self.refuses[method]
        if name in self.foreign:
            raise KernelError(f"cannot use {name}: it is of kind dummy and not WireGuard's", errno=EEXIST)

    def read_device(
        self, name: str, deadline: Deadline, share: Callable[[WireguardPeer], WireguardPeer] = lambda peer: peer
    ) -> WireguardDevice | None:
        self._reach("read_device", name)
        device = self.devices.get(name)
        return None if device is None else replace(device, peers=tuple(map(share, device.peers)))

    def ensure_link(self, name: str, mtu: int, addresses: tuple[Address, ...] | None, deadline: Deadline) -> list[str]:
        self._reach("ensure_link", name)
        done = []
        if name not in self.devices:
            if not self.supported:
                raise KernelError(f"cannot create interface {name}: Operation not supported", errno=EOPNOTSUPP)
            self.devices[name] = WireguardDevice()
            done.append(f"made {name}")
        before = self.links.get(name)
        wanted = mtu, (before[1] if before else ()) if addresses is None else tuple(addresses)
        if before != wanted:
            self.links[name] = wanted
            done.append(f"changed {name}")
        return done

    def remove_device(self, name: str, deadline: Deadline) -> bool:
        self._reach("remove_device", name)
        self.links.pop(name, None)
        return self.devices.pop(name, None) is not None

    def change_device(self, name: str, change: WireguardChange, deadline: Deadline) -> None:
        self._reach("change_device", name)
        device = self.devices.get(name)
        if device is None:
            raise LinkGone(f"cannot set {name}: it is gone", errno=ENODEV)
        self.changes.append(change)
        if change.private_key is not None:
            device = replace(device, public_key=public_key(change.private_key.packed))
            device = replace(device, peers=tuple(p for p in device.peers if p.public_key != device.public_key))
        if change.port is not None:
            device = replace(device, port=change.port)
        if change.mark is not None:
            device = replace(device, mark=change.mark)
        for peer in change.peers:
            device = _with_peer(device, peer)
        self.devices[name] = device

    def shake(self, name: str, key: bytes, at_s: int, *, sent: int = 0) -> None:
        """A handshake with the peer has just ended."""
        device = self.devices[name]
        done = [replace(p, handshake_s=at_s, sent=p.sent + sent) if p.public_key == key else p for p in device.peers]
        self.devices[name] = replace(device, peers=tuple(done))


def _with_peer(device: WireguardDevice, change: PeerChange) -> WireguardDevice:
    peers = {peer.public_key: peer for peer in device.peers}
    if change.remove:
        peers.pop(change.public_key, None)
        return replace(device, peers=tuple(peers.values()))
    if change.public_key == device.public_key or (change.known_only and change.public_key not in peers):
        return device
    peer = peers.get(change.public_key) or WireguardPeer(change.public_key)
    if change.endpoint is not None:
        peer = replace(peer, endpoint=change.endpoint)
    if change.keepalive_s is not None:
        peer = replace(peer, keepalive_s=change.keepalive_s)
    if change.allowed is not None:
        peer = replace(peer, allowed=change.allowed)
        peers = {key: replace(one, allowed=one.allowed - change.allowed) for key, one in peers.items()}
    peers[change.public_key] = peer
    return replace(device, peers=tuple(peers.values()))
