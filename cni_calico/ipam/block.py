"""PURE: one block: which addresses are taken, by whom, and which come next.

Rule: a function takes a block and returns the block to store instead; ``next_write`` increments the sequence number,
once per stored write however many changes it carries. The time is linear in the size of the block, and loops over
addresses are left to built-ins where that matters: a /20 has 4096 addresses. Source: tests/golden/vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from cni_calico.errors import AddressInUse, AddressMismatch
from cni_calico.ipam.share import INTERFACE
from cni_calico.model.resources import Address, Attribute, Block, Network

NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Release:
    """An address to release, only if it is held under ``handle_id`` and since ``sequence_number``, where these are
    given.
    """

    address: Address
    handle_id: str | None = None
    sequence_number: int | None = None


def new_block(cidr: Network, node: str | None, now_ns: int, claim_time: str) -> Block:
    """An empty block of ``node`` (None: without an owner); ``claim_time`` is RFC 3339."""
    return Block(
        cidr=cidr,
        affinity=None if node is None else f"host:{node}",
        allocations=(None,) * cidr.num_addresses,
        unallocated=tuple(range(cidr.num_addresses)),
        sequence_number=now_ns,
        affinity_claim_time=claim_time if node is not None else "",
    )


def next_write(block: Block) -> Block:
    """The block with the next sequence number, to be written over the stored one."""
    return replace(block, sequence_number=block.sequence_number + 1)


def without_affinity(block: Block) -> Block:
    return replace(block, affinity=None, affinity_claim_time="")


def ordinal_of(cidr: Network, address: Address) -> int:
    """The address's place in the block. Raises ValueError if it is not in it."""
    if address.version != cidr.version or address not in cidr:
        raise ValueError(f"{address} is not in block {cidr}")
    return int(address) - int(cidr.network_address)


# -- what is there ----------------------------------------------------------------------------------------------------


def reserved_ordinals(cidr: Network, reserved: Iterable[Network]) -> frozenset[int]:
    """The ordinals that reservations exclude from automatic assignment."""
    first, last = int(cidr.network_address), int(cidr.broadcast_address)
    found: set[int] = set()
    for network in reserved:
        if network.version == cidr.version and network.overlaps(cidr):
            low = max(int(network.network_address), first)
            high = min(int(network.broadcast_address), last)
            found.update(range(low - first, high - first + 1))
    return frozenset(found)


def count_free(block: Block, reserved: AbstractSet[int] = NOTHING) -> int:
    """The number of addresses that ``allocate`` could assign."""
    if not reserved:
        return len(block.unallocated)
    return sum(ordinal not in reserved for ordinal in block.unallocated)


def addresses_of(block: Block, handle_id: str) -> tuple[Address, ...]:
    """What a handle holds in this block, sorted by address."""
    return tuple(block.cidr[ordinal] for ordinal in _ordinals_of(block, handle_id))


def interfaces_of(block: Block, handle_id: str) -> dict[Address, str]:
    """The interface of each address of a handle in this block, "" where that is not recorded."""
    named = {i: a.secondary.get(INTERFACE, "") for i, a in enumerate(block.attributes) if a.handle_id == handle_id}
    if not named:
        return {}
    return {block.cidr[o]: named[index] for o, index in enumerate(block.allocations) if index in named}


def holdings(block: Block) -> dict[str, int]:
    """Addresses per handle."""
    held: dict[str, int] = {}
    for index, number in Counter(block.allocations).items():
        handle_id = None if index is None else block.attributes[index].handle_id
        if handle_id is not None:
            held[handle_id] = held.get(handle_id, 0) + number
    return held


def holder_of(block: Block, address: Address) -> Attribute | None:
    """Who holds an address; None if it is free."""
    index = block.allocations[ordinal_of(block.cidr, address)]
    return None if index is None else block.attributes[index]


def _ordinals_of(block: Block, handle_id: str) -> list[int]:
    mine = {i for i, attribute in enumerate(block.attributes) if attribute.handle_id == handle_id}
    if not mine:
        return []
    return [ordinal for ordinal, index in enumerate(block.allocations) if index in mine]


# -- allocating -------------------------------------------------------------------------------------------------------


def allocate(
    block: Block,
    count: int,
    handle_id: str,
    attributes: Mapping[str, str],
    reserved: AbstractSet[int] = NOTHING,
) -> tuple[Block, tuple[Address, ...]]:
    """Take up to ``count`` addresses from the front of the free ones; reserved ordinals keep their place there."""
    if not reserved:
        chosen = block.unallocated[:count]
    else:
        chosen = tuple(o for o in block.unallocated if o not in reserved)[:count]
    if not chosen:
        return block, ()
    return _assign(block, chosen, handle_id, attributes), tuple(block.cidr[ordinal] for ordinal in chosen)


def allocate_address(block: Block, address: Address, handle_id: str, attributes: Mapping[str, str]) -> Block:
    """The block with exactly this address taken. Raises AddressInUse."""
    holder = holder_of(block, address)
    if holder is not None:
        raise AddressInUse(
            f"cannot assign {address}: Address already assigned in block {block.cidr}",
            details=f"it is held under {holder.handle_id or 'no handle'} {dict(holder.secondary)}",
        )
    return _assign(block, (ordinal_of(block.cidr, address),), handle_id, attributes)


def _assign(block: Block, ordinals: tuple[int, ...], handle_id: str, attributes: Mapping[str, str]) -> Block:
    index = _index_of(block.attributes, handle_id, attributes)
    known = block.attributes
    if index == len(known):
        known = (*known, Attribute(handle_id, dict(attributes)))
    allocations = list(block.allocations)
    for ordinal in ordinals:
        allocations[ordinal] = index
    return replace(
        block,
        allocations=tuple(allocations),
        unallocated=_without(block.unallocated, ordinals),
        attributes=known,
        sequence_for={**block.sequence_for, **dict.fromkeys(ordinals, block.sequence_number)},
    )


def _without(free: tuple[int, ...], ordinals: tuple[int, ...]) -> tuple[int, ...]:
    if free[: len(ordinals)] == ordinals:
        return free[len(ordinals) :]
    gone = frozenset(ordinals)
    return tuple(o for o in free if o not in gone)


def _index_of(known: tuple[Attribute, ...], handle_id: str, attributes: Mapping[str, str]) -> int:
    """The index of an attribute with the same meaning, or the index after the last one."""
    for i, attribute in enumerate(known):
        if attribute.handle_id == handle_id and attribute.secondary == attributes and not attribute.extra:
            return i
    return len(known)


# -- releasing --------------------------------------------------------------------------------------------------------


def release_handle(
    block: Block, handle_id: str, keep: AbstractSet[Address] = frozenset()
) -> tuple[Block, tuple[Address, ...]]:
    """The block without what a handle holds in it (except ``keep``), and the addresses that became free."""
    ordinals = _ordinals_of(block, handle_id)
    if keep:
        ordinals = [o for o in ordinals if block.cidr[o] not in keep]
    return _free(block, ordinals), tuple(block.cidr[o] for o in ordinals)


def release_addresses(block: Block, releases: Iterable[Release]) -> tuple[Block, tuple[Address, ...]]:
    """The block without these addresses, and those that became free (the others were free already).

    Raises AddressMismatch if a guard of any of them does not match: then none is released.
    """
    ordinals: dict[int, None] = {}
    for release in releases:
        ordinal = ordinal_of(block.cidr, release.address)
        index = block.allocations[ordinal]
        if index is not None:
            _require_match(block, ordinal, block.attributes[index], release)
            ordinals[ordinal] = None
    return _free(block, list(ordinals)), tuple(block.cidr[o] for o in ordinals)


def _require_match(block: Block, ordinal: int, holder: Attribute, release: Release) -> None:
    if release.handle_id is not None and holder.handle_id != release.handle_id:
        raise AddressMismatch(
            f"cannot release {release.address}: it is held under handle {holder.handle_id}, not {release.handle_id}",
            details="the address has been assigned to somebody else since; nothing of its block was released",
        )
    since = block.sequence_for.get(ordinal)
    if release.sequence_number is not None and since != release.sequence_number:
        raise AddressMismatch(
            f"cannot release {release.address}: it was assigned at sequence number {since}, "
            f"not {release.sequence_number}",
            details="the address has been released and assigned again since; nothing of its block was released",
        )


def _free(block: Block, ordinals: list[int]) -> Block:
    if not ordinals:
        return block
    allocations = list(block.allocations)
    for ordinal in ordinals:
        allocations[ordinal] = None
    used = sorted({index for index in allocations if index is not None})
    if len(used) != len(block.attributes):
        moved: dict[int | None, int | None] = {old: new for new, old in enumerate(used)}
        moved[None] = None
        allocations = [moved[index] for index in allocations]
    gone = frozenset(ordinals)
    return replace(
        block,
        allocations=tuple(allocations),
        unallocated=(*block.unallocated, *ordinals),
        attributes=tuple(block.attributes[index] for index in used),
        sequence_for={o: number for o, number in block.sequence_for.items() if o not in gone},
    )
