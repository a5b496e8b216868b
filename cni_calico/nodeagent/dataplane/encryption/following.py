"""PURE: after a new key of this node, which peers have not shaken hands with it yet.

Rule: only who had a handshake with the key before is awaited. It is told at once, again when nobody is awaited any
more, and what is left after TOLD_S, so that a thousand peers that follow are two changes of the Node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cni_calico.model.wireguard import WireguardDevice
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption

TOLD_S, FOLLOWED_S = 10.0, 60.0


@dataclass(slots=True)
class Following:
    """``before``: when the last handshake with each peer was (``WireguardPeer.shaken``: two may be in one second), by
    its key. ``told``: who is said to be awaited.
    """

    before: dict[bytes, tuple[int, int]]
    since: float
    told: tuple[str, ...] = field(default=(), init=False)
    _begun: bool = field(default=False, init=False)

    def look(self, desired: DesiredEncryption, device: WireguardDevice, now: float) -> bool:
        """Whether to look again soon."""
        awaited = tuple(sorted(peer.node for peer in desired.peers if self._is_awaited(peer.key, device)))
        if not self._begun or not awaited or now - self.since >= TOLD_S:
            self.told, self._begun = awaited, True
        return bool(awaited) and now - self.since < FOLLOWED_S

    def _is_awaited(self, key: bytes, device: WireguardDevice) -> bool:
        peer = device.peer(key)
        return key in self.before and (peer is None or peer.shaken <= self.before[key])


def begin_following(device: WireguardDevice, now: float) -> Following:
    """``device``: with the key that is replaced."""
    return Following({peer.public_key: peer.shaken for peer in device.peers if peer.handshake_s}, now)
