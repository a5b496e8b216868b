"""Endpoints of Kubernetes on their way to the engine: addresses that only a pod's annotation names are held back until
they are confirmed (policy.confirmed).

Rule: whoever follows pods and whoever follows IPAM's blocks hand over here, in any order and from any thread; what goes
on is always what the newest of both mean together. An endpoint of this node goes on at once, so that its interface is
policed and its ADD does not wait, with the addresses that count. A block that cannot be read means what it last meant;
one that was never readable confirms nothing, and its pods wait for their status.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.host_routes import select_routed
from cni_calico.model.documents.codec import decode_block
from cni_calico.model.keys import BlockKey, BlockList, Key, ResourceKey
from cni_calico.model.names import owner_in
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.policy.confirmed import ClaimedEndpoint, ConfirmedAddresses, HeldInBlock, PodClaim, held_in_block
from cni_calico.policy.endpoints import owner_of
from cni_calico.policy.records import Labelled

_LOOK_S = 1.0
WAITING = "addresses of new pods count in selectors only once the pods' status names them"

Claiming = WorkloadEndpoint | Labelled


class Confirmation:
    """``pass_on(key, record)`` takes what goes on; ``refuse_on(key, why)`` a record that cannot be read."""

    def __init__(
        self,
        pass_on: Callable[[ResourceKey, Claiming | ClaimedEndpoint | None], None],
        refuse_on: Callable[[ResourceKey, str], None],
    ) -> None:
        self._pass_on = pass_on
        self._refuse_on = refuse_on
        self._lock = threading.Lock()
        self._known = ConfirmedAddresses()
        self._claiming: dict[ResourceKey, Claiming] = {}
        self._refused: dict[ResourceKey, str] = {}  # claiming ones of which a newer version cannot be read
        self._blocks: Cache[HeldInBlock] | None = None
        self._partial: set[Key] = set()
        self._unreadable: dict[Key, str] = {}

    def put(self, key: ResourceKey, record: Claiming | None, claim: PodClaim | None = None) -> None:
        """Take a readable endpoint; with ``claim`` its addresses are claimed. None: it is gone, or is no endpoint."""
        if claim is not None and isinstance(record, WorkloadEndpoint):
            claim = self._with_routed(key, record, claim)
        with self._lock:
            self._refused.pop(key, None)
            if record is None or claim is None:
                if self._claiming.pop(key, None) is not None:
                    self._known.put_claim(key, None)
                self._pass_on(key, record)
                return
            self._claiming[key] = record
            self._known.put_claim(key, claim)
            self._judge(key)

    def refuse(self, key: ResourceKey, why: str) -> None:
        """The endpoint exists but cannot be read: its last version stays, and still counts only as far as confirmed."""
        with self._lock:
            if key in self._claiming:
                self._refused[key] = why
            self._refuse_on(key, why)

    def _with_routed(self, key: ResourceKey, record: WorkloadEndpoint, claim: PodClaim) -> PodClaim:
        """What this node has routed to the pod's interface stays routed: its DEL removes the route first."""
        try:
            addresses = [net.network_address for net in record.ip_networks]
            owners = ("", owner_of(key.namespace, record))
            found = select_routed(
                addresses,
                record.interface_name,
                Deadline.after(_LOOK_S),
                fits=lambda alias: owner_in(alias) in owners,  # another pod may have the name
            )
        except CalicoError:
            found = frozenset()
        routed = frozenset(address.packed for address in found)
        with self._lock:
            before, earlier = self._claiming.get(key), self._known.claim(key)
            if (
                earlier is not None
                and isinstance(before, WorkloadEndpoint)
                and before.metadata.uid == record.metadata.uid
            ):
                routed |= earlier.routed.intersection(claim.addresses)
        return replace(claim, routed=routed)

    def _judge(self, key: ResourceKey) -> None:
        record, confirmed = self._claiming[key], self._known.confirmed(key)
        if isinstance(record, WorkloadEndpoint):
            nets = tuple(net for net in record.ip_networks if net.network_address.packed in confirmed)
            self._pass_on(key, ClaimedEndpoint(record, nets))
        else:
            addresses = tuple(address for address in record.addresses if address in confirmed)
            self._pass_on(key, replace(record, addresses=addresses) if addresses else None)
        if key in self._refused:
            self._refuse_on(key, self._refused[key])

    # -- IPAM's blocks ------------------------------------------------------------------------------------------------

    def follow(self, store: Datastore, wake: Callable[[], None]) -> Cache[HeldInBlock]:
        """Follow every block from now on: other nodes' addresses are needed."""
        self._blocks = Cache(
            store,
            Kept(BlockList(holders=True), _decode, keep_documents=False),
            Listeners(
                on_change=lambda _: wake(),
                on_read=wake,
                corrupt=self._note_unreadable,
                hand_over=self._receive_block,
                gone=self._drop_block,
            ),
            cached=True,
        )
        return self._blocks

    def _receive_block(self, key: Key, held: HeldInBlock) -> None:
        with self._lock:
            self._unreadable.pop(key, None)
            (self._partial.add if held.is_partial else self._partial.discard)(key)
        self._put_block(key, held.holders)

    def _drop_block(self, key: Key) -> None:
        with self._lock:
            self._unreadable.pop(key, None)
            self._partial.discard(key)
        self._put_block(key, None)

    def _put_block(self, key: Key, holders: Mapping[int, str] | None) -> None:
        assert isinstance(key, BlockKey)
        with self._lock:
            for changed in self._known.put_block(key.cidr, holders):
                self._judge(changed)

    def _note_unreadable(self, key: Key, why: str) -> None:
        with self._lock:
            self._unreadable[key] = why

    @property
    def decided(self) -> bool:
        """Whether the blocks have been read, as far as they can be and are needed."""
        blocks = self._blocks
        return blocks is None or blocks.synced or blocks.error is not None

    @property
    def troubles(self) -> tuple[str, ...]:
        """In words, why addresses count later than they could."""
        blocks = self._blocks
        if blocks is not None and not blocks.synced and blocks.error is not None:
            return (f"IPAM's blocks cannot be read, so {WAITING}: {blocks.error}",)
        found = [f"a block of IPAM cannot be read, so of its {WAITING}: {why}" for why in self._unreadable.values()]
        if self._partial:
            found.append(f"the relay is older than this agent and leaves out who has which address, so {WAITING}")
        return tuple(sorted(found))


def _decode(item: Versioned) -> HeldInBlock:
    """Raises CorruptRecord."""
    key: Any = item.key
    return held_in_block(decode_block(key, item.value))
