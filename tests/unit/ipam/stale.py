"""For the machine: one that cleans up addresses of attachments that no longer exist, and all that a deleted node had.

Rule: first find, from one listing of the blocks, then release one by one with the handle as a guard, so what changes
meanwhile is left alone. When it cannot be told whose an address is, it stays. ``pace`` is called before every release
and may wait. What cannot be read or released is reported, the rest is done all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from cni_calico.datastore.interface import Revision, Versioned
from cni_calico.deadline import Deadline
from cni_calico.errors import CorruptRecord, IPAMError
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.block import Release
from cni_calico.ipam.view import stored
from cni_calico.model.documents.codec import describe
from cni_calico.model.keys import AffinityKey, AffinityList, BlockList, HandleKey, HandleList
from cni_calico.model.resources import Address, Attribute, Block, Handle, Network

GRACE_S = 60.0


@dataclass(slots=True)
class Cleanup:
    """What was released; ``failures`` says what was not, and why."""

    addresses: list[Address] = field(default_factory=list)
    blocks: list[Network] = field(default_factory=list)
    handles: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Holding:
    """One address as the listing showed it."""

    address: Address
    block: Block
    holder: Attribute
    sequence_number: int | None


def belongs_to(holding: _Holding, node: str) -> bool:
    """Whether an address is the node's: its attributes say so, or say nothing and the block is the node's."""
    return holding.holder.secondary.get("node", holding.block.node) == node


def is_of_network(handle_id: str, network: str) -> bool:
    """Whether a handle can only be this network's: both parts of ``<network>.<container ID>`` may contain dots."""
    return handle_id.startswith(f"{network}.") and "." not in handle_id[len(network) + 1 :]


class Janitor:
    """Keeps what it learned between runs: a handle without addresses is one that was being used when somebody died, or
    is about to be used; it goes when it has not changed for ``grace_s``.
    """

    def __init__(
        self, allocator: Allocator, *, pace: Callable[[], None] = lambda: None, grace_s: float = GRACE_S
    ) -> None:
        self._allocator = allocator
        self._pace = pace
        self._grace_ns = int(grace_s * 1e9)
        self._suspects: dict[str, tuple[Revision, int]] = {}

    def release_stale(
        self,
        node: str,
        network: str,
        valid: Collection[str],
        deadline: Deadline,
        *,
        is_ours: Callable[[str], bool] | None = None,
    ) -> Cleanup:
        """Release what the node holds for the network under handles that are not in ``valid``.

        ``is_ours`` decides about handles of which the text alone does not (default: keep them).
        Raises DatastoreError when the store cannot be listed or written at all.
        """

        def stale(handle_id: str) -> bool:
            ours = is_of_network(handle_id, network) or (
                is_ours is not None and handle_id.startswith(f"{network}.") and is_ours(handle_id)
            )
            return ours and handle_id not in valid

        return self._clean(node, stale, deadline)

    def release_node(self, node: str, deadline: Deadline) -> Cleanup:
        """Release everything a deleted node had: its addresses of every network, tunnel addresses, blocks, affinities.

        Addresses of other nodes in its blocks stay; such a block then belongs to nobody.
        """
        done = self._clean(node, lambda handle_id: True, deadline)
        for cidr in self._blocks_of(node, deadline, done):
            self._pace()
            try:
                self._allocator.release_node_block(node, cidr, deadline, require_empty=False)
                done.blocks.append(cidr)
            except (IPAMError, CorruptRecord) as e:
                done.failures.append(e.message)
        return done

    # -- finding ------------------------------------------------------------------------------------------------------

    def _blocks(self, deadline: Deadline, done: Cleanup) -> Iterator[Block]:
        listing = self._allocator.store.list(BlockList(), deadline)
        done.failures += [f"cannot read {describe(key)}: {why}" for key, why in listing.unreadable]
        for item in listing.items:
            try:
                record = stored(item).record
            except CorruptRecord as e:
                done.failures.append(e.message)
                continue
            if isinstance(record, Block) and not record.deleted:
                yield record

    def _blocks_of(self, node: str, deadline: Deadline, done: Cleanup) -> list[Network]:
        affinities = self._allocator.store.list(AffinityList(node), deadline).items
        cidrs = dict.fromkeys(item.key.cidr for item in affinities if isinstance(item.key, AffinityKey))
        unread = Cleanup()  # said once already
        return list(cidrs | dict.fromkeys(b.cidr for b in self._blocks(deadline, unread) if b.node == node))

    # -- releasing ----------------------------------------------------------------------------------------------------

    def _clean(self, node: str, stale: Callable[[str], bool], deadline: Deadline) -> Cleanup:
        done = Cleanup()
        handles = self._allocator.store.list(HandleList(), deadline).items  # before the blocks that name them
        blocks = {block.cidr: block for block in self._blocks(deadline, done)}
        holdings = [holding for block in blocks.values() for holding in _holdings(block)]
        mine: dict[str, list[_Holding]] = {}
        for holding in holdings:
            handle_id = holding.holder.handle_id
            if handle_id and belongs_to(holding, node) and stale(handle_id):
                mine.setdefault(handle_id, []).append(holding)
        for handle_id, found in mine.items():
            self._release(handle_id, found, deadline, done)
        used = {holding.holder.handle_id for holding in holdings}
        idle = {i.key.handle_id: i for i in handles if isinstance(i.key, HandleKey) and i.key.handle_id not in used}
        self._suspects = {handle_id: seen for handle_id, seen in self._suspects.items() if handle_id in idle}
        for handle_id, item in idle.items():
            if stale(handle_id):
                self._release_unused(item, handle_id, node, blocks, deadline, done)
        return done

    def _release(self, handle_id: str, found: list[_Holding], deadline: Deadline, done: Cleanup) -> None:
        self._pace()
        releases = [Release(h.address, handle_id, h.sequence_number) for h in found]
        try:
            done.addresses += self._allocator.release_addresses(releases, deadline)
            done.handles.append(handle_id)
        except (IPAMError, CorruptRecord) as e:
            done.failures.append(e.message)

    def _release_unused(
        self,
        listed: Versioned,
        handle_id: str,
        node: str,
        blocks: dict[Network, Block],
        deadline: Deadline,
        done: Cleanup,
    ) -> None:
        """A handle without addresses, if it names only blocks of this node and has been so for a while."""
        try:
            record = stored(listed).record
            if not isinstance(record, Handle) or any(c in blocks and blocks[c].node != node for c in record.blocks):
                return
            now_ns = self._allocator.clock()
            revision, since_ns = self._suspects.get(handle_id, (None, now_ns))
            if revision != listed.revision:
                since_ns = now_ns
            self._suspects[handle_id] = (listed.revision, since_ns)
            if now_ns - since_ns < self._grace_ns:
                return
            self._pace()
            if self._allocator.drop_idle_handle(handle_id, deadline):
                done.handles.append(handle_id)
        except (IPAMError, CorruptRecord) as e:
            done.failures.append(e.message)


def _holdings(block: Block) -> Iterator[_Holding]:
    for ordinal, index in enumerate(block.allocations):
        if index is not None:
            yield _Holding(block.cidr[ordinal], block, block.attributes[index], block.sequence_for.get(ordinal))
