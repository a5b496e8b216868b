"""PURE: what the agent's status says of encryption, of one family.

Rule: a node that is neither a peer nor named with a reason does not exist; a private key is never told.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from cni_calico.model.wireguard import render_public_key
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption


def tell_encryption(
    desired: DesiredEncryption, key: bytes, waiting: Collection[str], failing: str = "", renewed: int = 0
) -> dict[str, Any]:
    """``waiting``: the peers whose first handshake is awaited; ``failing``: why it is not in force; ``renewed``: how
    often another node's key was replaced, since the agent's start.
    """
    return {
        "device": desired.name,
        "port": desired.port,
        "mtu": desired.mtu,
        "address": str(desired.address or ""),
        "key": render_public_key(key) if key and not desired.impossible else "",
        "mandatory": desired.mandatory,
        "peers": sorted(peer.node for peer in desired.peers),
        "waiting": sorted(waiting),
        "plain": dict(desired.plain),
        "failing": failing or desired.impossible,
        "renewed": renewed,
    }
