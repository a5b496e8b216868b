"""PURE: who has which address, so that a workload's connections are removed only if nobody has its address any more.

Rule: an address is released when an endpoint of this node gives it up, but never while any endpoint of any node has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.policy.confirmed import ClaimedEndpoint
from cni_calico.policy.records import Labelled


class Owners:
    """``local_version`` changes whenever the addresses of this node's endpoints may have changed."""

    def __init__(self, node: str) -> None:
        self.local_version = 0
        self._node = node
        self._addresses: dict[ResourceKey, tuple[bytes, ...]] = {}
        self._held: Counter[bytes] = Counter()
        self._local: set[ResourceKey] = set()
        self._local_held: Counter[bytes] = Counter()  # how many of them have the address
        self._let_go: set[bytes] = set()

    def put(self, key: ResourceKey, endpoint: WorkloadEndpoint | ClaimedEndpoint | Labelled | None) -> None:
        """A Labelled is an endpoint of another node; of a ClaimedEndpoint the confirmed addresses count."""
        if isinstance(endpoint, Labelled) and key not in self._addresses and key not in self._local:
            for address in endpoint.addresses:
                self._held[address] += 1
            if endpoint.addresses:
                self._addresses[key] = endpoint.addresses
            return  # as nearly all at the start
        before = self._addresses.pop(key, ())
        was_local = key in self._local
        after = _addresses(endpoint)
        _exchange(self._held, before, after)
        if was_local:
            self._let_go.update(set(before) - set(after))
        record = endpoint.record if isinstance(endpoint, ClaimedEndpoint) else endpoint
        is_local = isinstance(record, WorkloadEndpoint) and record.node == self._node
        _exchange(self._local_held, before if was_local else (), after if is_local else ())
        if is_local:
            self._local.add(key)
        else:
            self._local.discard(key)
        if after:
            self._addresses[key] = after
        self.local_version += is_local or was_local

    @property
    def count(self) -> int:
        """How many endpoints have addresses."""
        return len(self._addresses)

    def local_addresses(self) -> set[bytes]:
        """Of this node's endpoints."""
        return set(self._local_held)

    def is_free(self, address: bytes) -> bool:
        """Whether no endpoint has the address; may be called from any thread."""
        return address not in self._held

    def let_go(self, addresses: Iterable[bytes]) -> None:
        """Note addresses that endpoints of this node had in an earlier run."""
        self._let_go.update(addresses)

    def take_let_go(self) -> set[bytes]:
        """Addresses that endpoints of this node gave up and that nobody has now. Each is returned once."""
        gone = {address for address in self._let_go if address not in self._held}
        self._let_go.clear()
        return gone


def _exchange(counts: Counter[bytes], before: Iterable[bytes], after: Iterable[bytes]) -> None:
    counts.update(after)
    for address in before:
        counts[address] -= 1
        if not counts[address]:
            del counts[address]


def _addresses(endpoint: WorkloadEndpoint | ClaimedEndpoint | Labelled | None) -> tuple[bytes, ...]:
    if isinstance(endpoint, ClaimedEndpoint):
        return tuple(net.network_address.packed for net in endpoint.confirmed)
    if isinstance(endpoint, Labelled):
        return endpoint.addresses
    return () if endpoint is None else tuple(net.network_address.packed for net in endpoint.ip_networks)
