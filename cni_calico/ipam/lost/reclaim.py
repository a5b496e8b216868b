"""Releases what is lost: checks it again, then writes over exactly what it has read.

Rule: a suspicion proves nothing: pod, node and records are read again right before the write, and the write succeeds
only if they are unchanged. An address is released only if it is still held under the same handle and sequence number, a
block only if nobody wrote it since it was read, a handle and an endpoint only if unchanged. On a store with
transactions the same transaction also checks that the node is gone. In doubt everything is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cni_calico.datastore.belongings import read_belongings, remove_belongings
from cni_calico.datastore.forwarding import ForwardingStore
from cni_calico.datastore.interface import (
    CommitConflict,
    Committed,
    Datastore,
    Versioned,
    Write,
)
from cni_calico.deadline import Deadline
from cni_calico.errors import AddressMismatch, CorruptRecord, DatastoreDenied, TryAgain
from cni_calico.ipam.allocator import Allocator, Release
from cni_calico.ipam.claims import release_block
from cni_calico.ipam.lasting import LastingAddresses
from cni_calico.ipam.lost import leaks
from cni_calico.ipam.lost.endpointed import Endpointed, endpointed
from cni_calico.ipam.lost.fresh_facts import FreshFacts, Kubernetes, list_endpoints
from cni_calico.ipam.lost.leaks import (
    DepartedNode,
    Holding,
    IdleHandle,
    KeptHolding,
    LostBlock,
    LostEndpoint,
    LostNode,
    Subject,
    SurplusBlock,
)
from cni_calico.ipam.lost.pods import Pod
from cni_calico.ipam.lost.surplus import is_spare, judge_surplus
from cni_calico.ipam.release import drop_idle_handle, leave_emptied, release_in_block
from cni_calico.ipam.view import stored
from cni_calico.model.documents import codec
from cni_calico.model.keys import BlockKey, HandleKey, ResourceKey, ResourceList
from cni_calico.model.lasting import AddressOwners
from cni_calico.model.resources import Block, Network

BELIEVED_S = 2.0  # how long a listing of endpoints counts as the present state
_OF_NO_BLOCK = -1  # used as a sequence number: a block that still exists afterwards was made meanwhile


class Overtaken(TryAgain):
    """Something that a release was based on has changed meanwhile; nothing was released."""


@dataclass(slots=True)
class ReclaimOutcome:
    """What became of the suspects; ``kept`` says why some were kept, ``at`` is the suspect at which an early end
    came.
    """

    at: Subject | None = None
    confirmed: list[tuple[Subject, str]] = field(default_factory=list)
    released: list[Subject] = field(default_factory=list)
    kept: list[tuple[Subject, str]] = field(default_factory=list)


class Reclaimer:
    """Confirms and releases suspects.

    ``store`` is fenced. ``pace`` is called before every check and may wait; if it returns False the work ends. ``make``
    makes an allocator for a store; ``is_kubernetes``: pods are this datastore's endpoints. ``grace_s``: how long every
    suspect has been suspected before it gets here.
    """

    def __init__(
        self,
        store: Datastore,
        kubernetes: Kubernetes | None,
        *,
        is_kubernetes: bool,
        make: Callable[[Datastore], Allocator] = Allocator,
        pace: Callable[[], bool] = lambda: True,
        grace_s: Callable[[], float] = lambda: 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._kubernetes = kubernetes
        self._is_kubernetes = is_kubernetes
        self._make = make
        self._pace = pace
        self._grace_s = grace_s
        self._now = now
        self._listed: tuple[float, Endpointed] | None = None

    # -- asking again -------------------------------------------------------------------------------------------------

    def confirm(self, subject: Subject, deadline: Deadline) -> str:
        """Why it is lost, according to the present state; "" if it is not, or if that is unknown. Raises
        DatastoreError.
        """
        facts = FreshFacts(self._store, self._kubernetes, deadline, self._is_kubernetes, self._everybody)
        try:
            if isinstance(subject, IdleHandle) and not self._is_unchanged(subject, deadline):
                return ""
            if isinstance(subject, DepartedNode) and not self._has_configuration(subject, deadline):
                return ""
            if isinstance(subject, SurplusBlock):
                return self._confirm_surplus(subject, facts)
            return leaks.judge(subject, facts, lambda cidr: self._block_facts(cidr, deadline))
        except (CorruptRecord, ValueError):
            return ""  # unknown

    def _everybody(self, deadline: Deadline) -> Endpointed:
        """One listing of all endpoints for as many suspects as follow one another closely. An address that is given
        to somebody meanwhile has another sequence number, so that releasing it fails.
        """
        begun = self._now()
        if self._listed is None or begun - self._listed[0] > BELIEVED_S:
            found = list_endpoints(self._store, ResourceList("WorkloadEndpoint"), deadline)
            self._listed = begun, endpointed(found)
        return self._listed[1]

    def _confirm_surplus(self, surplus: SurplusBlock, facts: FreshFacts) -> str:
        own = facts.blocks_of(surplus.node, surplus.cidr.version)
        found = own.get(surplus.cidr)
        if found is None or is_spare(found, self._allocator().clock() / 1e9) or not facts.has_node(surplus.node):
            return ""
        return judge_surplus(surplus, own)

    def _is_unchanged(self, idle: IdleHandle, deadline: Deadline) -> bool:
        handle = self._store.get(HandleKey(idle.handle_id), deadline)
        return handle is not None and str(handle.revision) == idle.revision

    def _has_configuration(self, departed: DepartedNode, deadline: Deadline) -> bool:
        """Whether some of its configuration remains; False if we may not read it, because then we cannot remove it
        either.
        """
        try:
            return bool(read_belongings(self._store, departed.name, deadline))
        except DatastoreDenied:
            return False

    def _block_facts(self, cidr: Network, deadline: Deadline) -> leaks.BlockFacts | None:
        found = self._store.get(BlockKey(cidr), deadline)
        record = None if found is None else stored(found).record
        return leaks.reduce_block(record) if isinstance(record, Block) and not record.deleted else None

    # -- releasing ----------------------------------------------------------------------------------------------------

    def reclaim(
        self, subjects: Sequence[Subject], deadline: Deadline, outcome: ReclaimOutcome | None = None
    ) -> ReclaimOutcome:
        """Confirm and release, one after the other. Raises LeaseLost, DatastoreError, DeadlineExceeded.

        ``outcome`` has what was done before an error; the next run finds the rest.
        """
        outcome = outcome if outcome is not None else ReclaimOutcome()
        self._listed = None
        for subject in subjects:
            if not self._pace():
                break
            deadline.require(f"look at {subject}")
            outcome.at = subject
            reason = self.confirm(subject, deadline)
            if not reason:
                outcome.kept.append((subject, "it is in use, or that is unknown"))
                continue
            outcome.confirmed.append((subject, reason))
            try:
                if self._release(subject, deadline):
                    outcome.released.append(subject)
                else:
                    outcome.kept.append((subject, "it has changed meanwhile"))
            except (AddressMismatch, CorruptRecord, Overtaken) as e:
                outcome.kept.append((subject, e.message))
        outcome.at, self._listed = None, None
        return outcome

    def _release(self, subject: Subject, deadline: Deadline) -> bool:
        if isinstance(subject, KeptHolding):
            return self._release_kept(subject, deadline)
        if isinstance(subject, Holding):
            return self._release_address(subject, deadline)
        if isinstance(subject, LostBlock):
            return self._release_block(subject, deadline)
        if isinstance(subject, SurplusBlock):
            return self._release_surplus(subject, deadline)
        if isinstance(subject, LostEndpoint):
            return self._remove_endpoint(subject, deadline)
        if isinstance(subject, LostNode):
            return self._remove_node(subject, deadline)
        if isinstance(subject, DepartedNode):
            return self._remove_configuration(subject, deadline)
        return self._drop_handle(subject, deadline)

    def _allocator(self, node: str = "") -> Allocator:
        """An allocator; ``node``: it writes only while there is no such node, if the store can compare that."""
        absent = Write.expect_absent(ResourceKey("Node", node))
        return self._make(_While(self._store, absent) if node and self._store.max_commit > 2 else self._store)

    def _release_kept(self, kept: KeptHolding, deadline: Deadline) -> bool:
        """Only while the block names the owners that were looked for: a new pod takes the address by that alone."""

        def has_same_owners(owners: AddressOwners) -> bool:
            return tuple((o.get("node", ""), o.get("pod", "")) for o in (owners.active, owners.alternate)) == (
                (kept.node, kept.pod),
                (kept.other_node, kept.other_pod),
            )

        lasting = LastingAddresses(self._store, self._make)
        return lasting.release(kept.handle_id, kept.address, has_same_owners, deadline)

    def _release_address(self, held: Holding, deadline: Deadline) -> bool:
        of_node = held.tunnel or (held.bare and not held.pod)
        allocator = self._allocator(held.node if of_node else "")
        ledger = allocator.ledger(deadline)
        release = Release(held.address, held.handle_id, held.sequence_number)
        freed = release_in_block(ledger, held.block, (release,))
        leave_emptied(ledger, (held.block,), allocator.clock())
        return bool(freed)

    def _release_block(self, lost: LostBlock, deadline: Deadline) -> bool:
        """Read the block again. Release it only in that state, and only if nothing of the node is in it."""
        allocator = self._allocator(lost.node)
        ledger = allocator.ledger(deadline)
        block = ledger.block(lost.cidr)
        if leaks.judge_block(lost, None if block is None else leaks.reduce_block(block), _EveryNodeGone()):
            number = block.sequence_number if block is not None else _OF_NO_BLOCK
            now_ns = allocator.clock()
            return release_block(ledger, lost.node, lost.cidr, now_ns, require_empty=False, sequence_number=number)
        return False

    def _release_surplus(self, surplus: SurplusBlock, deadline: Deadline) -> bool:
        """Nothing is released if the node takes an address of the block meanwhile: that writes the block."""
        allocator = self._allocator()
        ledger = allocator.ledger(deadline)
        block = ledger.block(surplus.cidr)
        if block is None or block.node != surplus.node:
            return False
        number = block.sequence_number
        return release_block(ledger, surplus.node, surplus.cidr, allocator.clock(), sequence_number=number)

    def _remove_endpoint(self, lost: LostEndpoint, deadline: Deadline) -> bool:
        found = self._store.get(lost.key, deadline)
        return found is not None and str(found.revision) == lost.revision and self._delete(found, deadline)

    def _remove_node(self, lost: LostNode, deadline: Deadline) -> bool:
        """Remove it if it is still the node that Kubernetes does not have.

        Its peers, host endpoints and configuration go first; its addresses and blocks are released later.
        """
        key = ResourceKey("Node", lost.name)
        found = self._store.get(key, deadline)
        if found is None or leaks.kubernetes_name(codec.decode_node(key, found.value)) != lost.kubernetes:
            return False
        remove_belongings(self._store, lost.name, deadline)
        return self._delete(found, deadline)

    def _remove_configuration(self, departed: DepartedNode, deadline: Deadline) -> bool:
        """Remove it, except for what was made after the node left, which is meant for a new node of the same name.

        Raises Overtaken, also where this process has no right to delete it.
        """
        try:
            before_s = time.time() - self._grace_s()
            if remove_belongings(self._store, departed.name, deadline, made_before_s=before_s):
                return True
            raise Overtaken("all of it was made after the node had left")
        except DatastoreDenied as e:
            raise Overtaken(f"{e.message}; 'calicoctl delete node {departed.name}' removes it") from e

    def _delete(self, found: Versioned, deadline: Deadline) -> bool:
        try:
            self._store.commit([Write.delete(found)], deadline)
        except CommitConflict:
            return False
        return True

    def _drop_handle(self, idle: IdleHandle, deadline: Deadline) -> bool:
        key = HandleKey(idle.handle_id)
        found = self._store.get(key, deadline)
        if found is None or str(found.revision) != idle.revision:
            return False
        ledger = self._make(self._store).ledger(deadline)
        ledger.learn(key, stored(found))
        return drop_idle_handle(ledger, idle.handle_id)


class _EveryNodeGone:
    """Facts in which every node is gone; the caller has checked that this one is."""

    knows_pods = False

    def has_node(self, name: str) -> bool:
        return False

    def has_kubernetes_node(self, name: str) -> bool:
        return True

    def has_pod(self, namespace: str, name: str, node: str) -> bool:
        return True

    def pod(self, namespace: str, name: str, node: str) -> Pod | None:
        return Pod()

    def has_owner(self, holding: Holding) -> bool:
        return True

    def why_over(self, kept: KeptHolding) -> str:
        return ""


class _While(ForwardingStore):
    """A store that writes only while ``condition`` holds."""

    def __init__(self, store: Datastore, condition: Write) -> None:
        super().__init__(store)
        self._condition = condition
        self.max_commit = store.max_commit - 1

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        try:
            return self.store.commit([*writes, self._condition], deadline)
        except CommitConflict as e:
            if any(failed.index == len(writes) for failed in e.failed):
                raise Overtaken(f"cannot release: {codec.describe(self._condition.key)} is back") from e
            raise
