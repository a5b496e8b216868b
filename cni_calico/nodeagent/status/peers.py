"""WireGuard's peers as the kernel has them now, with the names of their nodes and what the agent said of them.

Rule: ``said`` is the "encryption" of the agent's status; a device that cannot be read has no peers here, and why. Keys
that no Node has are shown all the same, without a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter import nft
from cni_calico.kernel.wireguard.device import read_device
from cni_calico.model.resources import Node
from cni_calico.model.wireguard import WireguardDevice, published_key, render_public_key

GUARD = ("inet", "calico-encryption")
ENCRYPTED, WAITING, PLAIN, STRANGER = "encrypted", "waiting", "plain", "no Node"


@dataclass(frozen=True, slots=True)
class PeerStanding:
    """``state``: one of the four; ``why``: of a plain one. ``handshake_s``: Unix time, 0: never. Bytes since the peer
    was added.
    """

    node: str
    state: str
    why: str = ""
    key: str = ""
    endpoint: str = ""
    handshake_s: int = 0
    sent: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True)
class FamilyStanding:
    """``failing``: why it is not in force; ``unread``: why nothing is known of the peers, as for who is not root.
    ``renewed``: how often a peer's key was replaced since the agent's start.
    """

    family: int
    device: str
    port: int
    mtu: int
    address: str
    key: str
    mandatory: bool
    failing: str
    unread: str
    renewed: int
    peers: tuple[PeerStanding, ...]


def read_families(said: Any, nodes: Mapping[str, Node], deadline: Deadline) -> Iterator[FamilyStanding]:
    """Nothing where encryption is off. Raises DeadlineExceeded."""
    for name, one in sorted(said.items()) if isinstance(said, Mapping) else ():
        family, failing, unread = int(name), str(one["failing"]), ""
        device: WireguardDevice | None = None
        try:
            device = read_device(one["device"], deadline)
            failing = failing or ("" if device else f"there is no interface {one['device']}")
        except KernelError as e:
            unread = str(e)
        yield FamilyStanding(
            family=family,
            device=one["device"],
            port=one["port"],
            mtu=one["mtu"],
            address=one["address"],
            key=one["key"],
            mandatory=one["mandatory"],
            failing=failing,
            unread=unread,
            renewed=one.get("renewed", 0),
            peers=tuple(_peers(one, family, device or WireguardDevice(), nodes)),
        )


def _peers(
    said: Mapping[str, Any], family: int, device: WireguardDevice, nodes: Mapping[str, Node]
) -> Iterator[PeerStanding]:
    keys = {key: name for name, node in nodes.items() if (key := published_key(node, family)) and name in said["peers"]}
    for peer in sorted(device.peers, key=lambda peer: keys.get(render_public_key(peer.public_key), "")):
        key = render_public_key(peer.public_key)
        name = keys.get(key, "")
        waits = name in said["waiting"] and not peer.handshake_s
        state = STRANGER if not name else WAITING if waits else ENCRYPTED
        counts = peer.handshake_s, peer.sent, peer.received
        yield PeerStanding(name, state, "", key, str(peer.endpoint or ""), *counts)
    for name, why in sorted(said["plain"].items()):
        yield PeerStanding(name, PLAIN, why)


def count_guard_drops(deadline: Deadline) -> int:
    """The packets that the guard has dropped since it was set last, 0 without it. Raises KernelError,
    DeadlineExceeded.
    """
    return nft.count_packets(*GUARD, deadline)
