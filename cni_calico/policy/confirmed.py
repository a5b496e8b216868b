"""PURE: addresses that only a pod's own annotation names, and which of them count in sets.

Rule: anyone who may patch a pod may write any address into its annotations. Such a claimed address counts while a block
of IPAM that contains it holds it for that pod, or while the pod's own node routes it to the pod's interface and no
block holds it for another pod. What a pod's status names is no claim and needs no confirmation. The result depends only
on the present claims and blocks, never on the order in which they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cni_calico.model.keys import ResourceKey
from cni_calico.model.lasting import ALTERNATE
from cni_calico.model.resources import Block, Network, WorkloadEndpoint

HolderText = str  # "namespace/name" of a pod; of two that share an address, both with a space between


@dataclass(frozen=True, slots=True)
class PodClaim:
    """``addresses``: packed, those that only the annotation names; ``routed``: those of them that the pod's own node
    routes to the pod's interface.
    """

    holder: HolderText
    addresses: tuple[bytes, ...]
    routed: frozenset[bytes] = frozenset()


def pod_claim(endpoint: WorkloadEndpoint) -> PodClaim:
    """The claim of an endpoint whose addresses only its pod's annotation names."""
    addresses = tuple(dict.fromkeys(net.network_address.packed for net in endpoint.ip_networks))
    return PodClaim(f"{endpoint.metadata.namespace}/{endpoint.pod}", addresses)


@dataclass(frozen=True, slots=True)
class ClaimedEndpoint:
    """An endpoint of this node with claimed addresses: its interface has its policies at once, but only the
    ``confirmed`` addresses are members of sets.
    """

    record: WorkloadEndpoint
    confirmed: tuple[Network, ...]


@dataclass(frozen=True, slots=True)
class HeldInBlock:
    """The pods that a block holds addresses for, by the address's ordinal. ``is_partial``: it does not say."""

    holders: Mapping[int, HolderText]
    is_partial: bool = False


def held_in_block(block: Block) -> HeldInBlock:
    """An address whose attributes name no pod has no holder: it is a tunnel's, or an old version has taken it. While a
    virtual machine moves, two pods hold its address.
    """
    holders: dict[int, HolderText] = {}
    for ordinal, index in enumerate(() if block.deleted else block.allocations):
        if index is None or index >= len(block.attributes):
            continue
        attribute = block.attributes[index]
        holder = _holder_text(attribute.secondary)
        if attribute.extra and isinstance(other := attribute.extra.get(ALTERNATE), Mapping):
            holder = " ".join(filter(None, (holder, _holder_text(other))))
        if holder:
            holders[ordinal] = holder
    return HeldInBlock(holders, bool(block.extra.get("partial")))


def _holder_text(said: Mapping[str, str]) -> HolderText:
    """Empty for what names no pod."""
    pod, namespace = said.get("pod"), said.get("namespace")
    return f"{namespace}/{pod}" if pod and namespace else ""


class ConfirmedAddresses:
    """``put_block`` and ``put_claim`` return the keys of the claims whose confirmed addresses may have changed."""

    def __init__(self) -> None:
        self._claims: dict[ResourceKey, PodClaim] = {}
        self._claimants: dict[bytes, set[ResourceKey]] = {}
        # by (size of an address in bytes, prefix length), then by the network's number
        self._blocks: dict[tuple[int, int], dict[int, Mapping[int, HolderText]]] = {}

    def put_block(self, cidr: Network, holders: Mapping[int, HolderText] | None) -> set[ResourceKey]:
        """None: there is no such block (any more)."""
        size, first = cidr.max_prefixlen // 8, int(cidr.network_address)
        kind = size, cidr.prefixlen
        known = self._blocks.setdefault(kind, {})
        before = known.pop(first, {})
        after = holders or {}
        if after:
            known[first] = after
        elif not known:
            del self._blocks[kind]
        if not self._claims:
            return set()
        changed = [o for o in before.keys() | after.keys() if before.get(o) != after.get(o)]
        packed = ((first + ordinal).to_bytes(size, "big") for ordinal in changed)
        return set().union(*(self._claimants.get(address, ()) for address in packed))

    def put_claim(self, key: ResourceKey, claim: PodClaim | None) -> set[ResourceKey]:
        """None: it claims nothing (any more)."""
        before = self._claims.pop(key, None)
        for address in () if before is None else before.addresses:
            claimants = self._claimants.get(address, set())
            claimants.discard(key)
            if not claimants:
                self._claimants.pop(address, None)
        if claim is not None:
            self._claims[key] = claim
            for address in claim.addresses:
                self._claimants.setdefault(address, set()).add(key)
        return {key}

    def claim(self, key: ResourceKey) -> PodClaim | None:
        return self._claims.get(key)

    def confirmed(self, key: ResourceKey) -> frozenset[bytes]:
        """The claimed addresses of an endpoint that count."""
        claim = self._claims.get(key)
        return frozenset() if claim is None else frozenset(a for a in claim.addresses if self._counts(claim, a))

    def _counts(self, claim: PodClaim, address: bytes) -> bool:
        holders = self._holders(address)
        return claim.holder in holders or (address in claim.routed and not holders)

    def _holders(self, address: bytes) -> set[HolderText]:
        """Normally at most one: blocks overlap only while pools are being replaced, and two pods share an address only
        while a virtual machine moves.
        """
        number, bits = int.from_bytes(address, "big"), len(address) * 8
        found = set()
        for (size, length), blocks in self._blocks.items():
            if size == len(address):
                first = number >> (bits - length) << (bits - length)
                holder = blocks.get(first, {}).get(number - first)
                if holder is not None:
                    found.update(holder.split(" "))
        return found
