"""Tells this node's public keys in its Node: how the other nodes know that it can be sent encrypted packets.

Rule: the device is the truth. A key is told once the device has it, and it goes before the device does. A Node that
says another key is corrected; if it says one again and again, another agent runs on this node: that is said, and after
GIVES_UP times not fought over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cni_calico.daemon.keeper import Keeper
from cni_calico.datastore.ensure import ensure_record
from cni_calico.errors import KernelError
from cni_calico.model.documents.codec import decode_node, encode_node
from cni_calico.model.wireguard import (
    awaited_by,
    published_key,
    render_public_key,
    with_age,
    with_awaited,
    with_published_key,
    with_rotation_due,
)
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.startup.node_record import key_of
from cni_calico.nodeagent.view.snapshot import Snapshot

CHECK_S = 300.0
GIVES_UP = 5


@dataclass(slots=True)
class PublicKeyKeeper:
    """``wanted``: by family, the key's text, "" for none; of others nothing is said. ``every_s``: the age at which a
    key is to be replaced, 0: never.
    """

    context: Context
    node: str
    keeper: Keeper = field(init=False)
    wanted: Mapping[int, str] = field(default_factory=dict)
    awaits: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    every_s: int = 0
    _told: dict[int, str] = field(default_factory=dict)
    _fights: int = 0

    def __post_init__(self) -> None:
        self.keeper = Keeper("WireGuard's public keys", self._do, CHECK_S, self.context.log, self.context.troubles)

    def use(
        self,
        keys: Mapping[int, bytes],
        snapshot: Snapshot,
        awaits: Mapping[int, tuple[str, ...]] | None = None,
        every_s: int = 0,
    ) -> None:
        """The keys that the devices have now (b"": none), what the Node says, and who has not followed a new key."""
        self.every_s = every_s
        awaits = {} if awaits is None else dict(awaits)
        wanted = {family: render_public_key(key) if key else "" for family, key in keys.items()}
        own = snapshot.own
        said = {} if own is None else {family: published_key(own, family) for family in wanted}
        told = {} if own is None else {family: awaited_by(own, family) for family in awaits}
        if wanted != self.wanted or said != wanted or (own is not None and told != awaits):
            self.wanted, self.awaits = wanted, awaits
            self.keeper.wake()

    def _do(self) -> None:
        wanted, awaits = dict(self.wanted), dict(self.awaits)

        def desired(old: Mapping[str, Any] | None) -> dict[str, Any] | None:
            if old is None:
                return None
            node = decode_node(key_of(self.node), old)
            for family, text in wanted.items():
                before = published_key(node, family)
                if before not in ("", text) and self._told.get(family) == text:
                    self._fights += 1
                    if self._fights > GIVES_UP:
                        raise KernelError(
                            f"another agent tells another key for Node {self.node} again and again: does one more "
                            "calico-node run here?"
                        )
                if text and text != before:
                    node = with_age(node, family, time.time())
                node = with_awaited(with_published_key(node, family, text), family, awaits.get(family, ()))
                node = with_rotation_due(node, family, self.every_s, time.time())
            return encode_node(node)

        if ensure_record(self.context.store, key_of(self.node), desired, self.context.deadline()).changed:
            said = ", ".join(f"IPv{family}: {text or 'none'}" for family, text in sorted(wanted.items()))
            self.context.log.info(f"WireGuard's public key in Node {self.node}: {said}")
        self._told = wanted
