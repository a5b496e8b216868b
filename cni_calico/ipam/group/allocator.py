"""The allocator of the resident server: requests that arrive together are computed together and written in one commit.

Rule: the ordinary case is served from memory (the node's own blocks, the pools), and the commit's comparison detects
when memory is wrong. Any other case (no block with room, a handle that exists, a repeated conflict, any error) is left
to the plain allocator, which reads. So what is wrong in memory costs time, never an address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni_calico.batching import Batcher
from cni_calico.datastore.interface import Datastore, has_transactions
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreError, TryAgain
from cni_calico.ipam.allocator import UNDO_TIMEOUT_S, Allocator
from cni_calico.ipam.assign import AssignRequest, Companion
from cni_calico.ipam.batch import Assigned, Assignment, BatchPlan, plan_batch
from cni_calico.ipam.block import NOTHING, Release, count_free, holder_of, ordinal_of, reserved_ordinals
from cni_calico.ipam.group.companion import AccompaniedStore
from cni_calico.ipam.group.giving import Giving
from cni_calico.ipam.group.items import ATTEMPTS, HANDLE_BLOCKS_MAX, SLOW, Ending, GroupOutcome, Item
from cni_calico.ipam.group.known import ClusterFacts, KnownRecords, KnownView, LearningLedger
from cni_calico.ipam.group.spare import SpareBlocks, is_short
from cni_calico.ipam.ledger import Ledger
from cni_calico.ipam.pools import pool_of, reserved_networks
from cni_calico.ipam.share import Share
from cni_calico.ipam.view import Facts, View
from cni_calico.model.keys import BlockKey, HandleKey
from cni_calico.model.resources import Address, Block, IPPool, Network
from cni_calico.model.timestamps import stamped

BATCH_MAX = 48  # with its blocks well below the limit of one etcd transaction
ALONE_S = 5.0  # how long a batch waits for the one request that is carried out before the others


@dataclass(slots=True)
class GroupStatistics:
    """``sizes[n]``: the number of batches of n requests."""

    fast: int = 0
    slow: int = 0
    sizes: list[int] = field(default_factory=list)


class GroupAllocator(Allocator):
    """An Allocator whose ``assign`` and ``release_handle`` share commits between threads."""

    def __init__(self, store: Datastore, snapshot: ClusterFacts, **options: Any) -> None:
        super().__init__(store, **options)
        self._snapshot = snapshot
        self.known = KnownRecords()
        self._known_view = KnownView(store, self.known, snapshot)
        limit = max(1, min(BATCH_MAX, store.max_commit - HANDLE_BLOCKS_MAX)) if has_transactions(store) else BATCH_MAX
        self._batcher: Batcher[Item, GroupOutcome] = Batcher(self._run, limit=limit)
        self.spares = SpareBlocks(self)
        self.statistics = GroupStatistics(sizes=self._batcher.sizes)

    def ledger(self, deadline: Deadline, view: View | None = None) -> Ledger:
        return LearningLedger(self.known, self.store, view or self.view, deadline, self._patience)

    @property
    def waiting(self) -> int:
        """How many requests wait for the batch that is under way."""
        return self._batcher.waiting

    # -- the allocator's interface ------------------------------------------------------------------------------------

    def assign(
        self, request: AssignRequest, deadline: Deadline, companion: Companion | None = None
    ) -> tuple[Assigned, ...]:
        """``companion`` is created in the same commit as the addresses where that is possible; its fields say whether
        it was.
        """
        if request.addresses:
            return super().assign(request, deadline)
        item = Item(deadline, request.handle_id, request, companion=companion)
        found: GroupOutcome = SLOW
        if has_transactions(self.store) or self._make_handle(item):
            found = self._submit(item)
        if not isinstance(found, tuple):
            self.statistics.slow += 1
            return self._assign_alone(item, deadline)
        self.statistics.fast += 1
        return found

    def _submit(self, item: Item) -> GroupOutcome:
        try:
            return self._batcher.submit(item, item.deadline, "request addresses")
        except CalicoError as e:
            self._cancel(item, e)
            raise

    def _make_handle(self, item: Item) -> bool:
        """On a store with one request per record: create the handle while the previous batch is under way.

        It is made for the block that the addresses will probably come from. False: the outcome of the attempt must be
        checked.
        """
        assert item.request is not None
        facts, key = self._snapshot.facts(item.request.node), HandleKey(item.handle_id)
        if facts is None or facts.config is None or not self._remembers_blocks(item.request):
            return True
        ledger = self._batch_ledger(item.deadline)
        ledger.presume_absent(key)
        try:
            planned = self._plan(ledger, facts, {0: item})
            steps = [step for step in planned[0].steps if step.key == key] if planned else []
            if steps and not ledger.apply(steps):
                return False
        except CalicoError:
            return False
        finally:
            item.begun = ledger.wrote
        item.handle = ledger.known()[key]
        return True

    def _remembers_blocks(self, request: AssignRequest) -> bool:
        """Whether a request can be planned without reading."""
        families = [family for family, count in ((4, request.num4), (6, request.num6)) if count]
        found = [self._snapshot.affinities(request.node, family) for family in families]
        return all(cidr in self.known.blocks for own in found for cidr, item in own.items() if item.confirmed)

    def release_handle(self, handle_id: str, deadline: Deadline, share: Share | None = None) -> tuple[Address, ...]:
        item = Item(deadline, handle_id, share=share)
        self._settle(item, self._batcher.submit(item, deadline, "release addresses"))
        return tuple(item.freed)

    def _settle(self, item: Item, outcome: GroupOutcome) -> None:
        """Carry out the part of a release that the batch leaves to its caller."""
        if outcome is SLOW or (isinstance(outcome, Ending) and not self._end(outcome, item.deadline)):
            self.statistics.slow += 1
            self._release_alone(item)

    def _end(self, ending: Ending, deadline: Deadline) -> bool:
        """Remove the handle; returns whether that is done. If not, it has changed meanwhile or could not be written."""
        ledger = self.ledger(deadline)
        ledger.learn(ending.step.key, ending.stored)
        try:
            return ledger.apply((ending.step,))
        except CalicoError:
            return False  # an error will show when the release is carried out alone

    def _release_alone(self, item: Item) -> None:
        item.freed.update(dict.fromkeys(super().release_handle(item.handle_id, item.deadline, item.share)))

    def _assign_alone(self, item: Item, deadline: Deadline) -> tuple[Assigned, ...]:
        assert item.request is not None
        try:
            return super().assign(item.request, deadline)
        except CalicoError as e:
            self._cancel(item, e)
            raise

    def _cancel(self, item: Item, error: CalicoError) -> None:
        """Release what the request's batch may have stored: the plain allocator, which did not store it, leaves it."""
        if not item.planned and not item.begun:
            return
        deadline = Deadline.after(UNDO_TIMEOUT_S)
        try:
            for assigned, attributes in item.planned.items():
                release = self._find_planned(item.handle_id, assigned, attributes, deadline)
                if release is not None:
                    super().release_addresses((release,), deadline)
            super().drop_idle_handle(item.handle_id, deadline)
        except CalicoError as e:
            taken = ", ".join(str(assigned.address) for assigned in item.planned) or "nothing"
            error.details += f"; {taken} may still be held under {item.handle_id}: {e.message}"

    def _find_planned(
        self, handle_id: str, planned: Assigned, attributes: Mapping[str, str], deadline: Deadline
    ) -> Release | None:
        """How to release exactly what was planned; None if that was not stored."""
        block = self.ledger(deadline).block(planned.block)
        holder = None if block is None else holder_of(block, planned.address)
        if block is None or holder is None or holder.handle_id != handle_id or holder.secondary != attributes:
            return None
        return Release(planned.address, handle_id, block.sequence_for.get(ordinal_of(block.cidr, planned.address)))

    # -- a batch ------------------------------------------------------------------------------------------------------

    def _run(self, items: Sequence[Item]) -> Sequence[GroupOutcome]:
        outcomes: list[GroupOutcome] = [SLOW] * len(items)
        groups: dict[object, list[int]] = {}
        for i, item in enumerate(items):
            groups.setdefault(_scope_of(item), []).append(i)
        # an assignment may need an address that is released here
        for scope in sorted(groups, key=lambda scope: scope is not None):
            members = groups[scope]
            unique = _first_of_each(items, members)
            group = [items[i] for i in unique]
            ledger = self._batch_ledger(Deadline(min(item.deadline.at for item in group)), group)
            try:
                for i, outcome in zip(unique, self._serve(group, ledger), strict=True):
                    outcomes[i] = outcome
            except CalicoError:
                pass  # when each request is carried out alone, it shows which one has the problem
            finally:
                self.known.learn(ledger.known())
        return outcomes

    def _batch_ledger(self, deadline: Deadline, items: Sequence[Item] = ()) -> Ledger:
        accompanied = has_transactions(self.store) and any(item.companion is not None for item in items)
        store = AccompaniedStore(self.store, items) if accompanied else self.store
        return Ledger(store, self._known_view, deadline, self._patience)

    def _serve(self, items: Sequence[Item], ledger: Ledger) -> list[GroupOutcome]:
        if items[0].request is None:
            return Giving(self.store, self.known, ledger, self.clock).run(items)
        return self._assign(items, ledger)

    # -- assigning ----------------------------------------------------------------------------------------------------

    def _assign(self, items: Sequence[Item], ledger: Ledger) -> list[GroupOutcome]:
        outcomes: list[GroupOutcome] = [SLOW] * len(items)
        assert items[0].request is not None
        facts = self._snapshot.facts(items[0].request.node)
        if facts is None or facts.config is None:
            return outcomes
        waiting = dict(enumerate(items))
        for item in items:
            ledger.learn(HandleKey(item.handle_id), item.handle)
        alone = False
        for _ in range(ATTEMPTS):
            known = ledger.known()
            waiting = {i: item for i, item in waiting.items() if known[HandleKey(item.handle_id)] is item.handle}
            assigned = self._assign_once(ledger, facts, waiting)
            if assigned is None:
                continue
            for i, outcome in assigned.items():
                outcomes[i] = outcome
                del waiting[i]
            if alone or not waiting:
                break
            alone = True  # one request is carried out first, and may claim the block that the others need
            i, first = waiting.popitem()
            outcomes[i] = self._outcome_alone(first, ledger)
            if not isinstance(outcomes[i], tuple):
                break
        return outcomes

    def _outcome_alone(self, item: Item, ledger: Ledger) -> GroupOutcome:
        try:
            given = self._assign_alone(item, ledger.deadline.sooner(ALONE_S))
        except CalicoError as e:
            return SLOW if isinstance(e, TryAgain | DatastoreError) else e
        for assigned in given:
            ledger.forget(BlockKey(assigned.block))
        return given

    def _assign_once(self, ledger: Ledger, facts: Facts, items: Mapping[int, Item]) -> dict[int, GroupOutcome] | None:
        """What each request got; requests for which there was no room are left out. None after a conflict."""
        planned = self._plan(ledger, facts, items)
        if planned is None:
            return {}
        plan, assignments = planned
        given: dict[int, GroupOutcome] = {}
        for i, wanted, out in zip(items, assignments, plan.outcomes, strict=True):
            if isinstance(out, tuple):
                given[i] = items[i].given = out
                items[i].planned |= dict.fromkeys(out, wanted.attributes)
        if given and not ledger.apply(plan.steps):
            return None
        return given

    def _plan(
        self, ledger: Ledger, facts: Facts, items: Mapping[int, Item]
    ) -> tuple[BatchPlan, Sequence[Assignment]] | None:
        """None if there is no room for any request."""
        requests = [item.request for item in items.values() if item.request is not None]
        sources = self._sources(ledger, facts, requests) if requests else []
        if not sources:
            return None
        now_ns = self.clock()
        assignments = [
            Assignment(r.handle_id, stamped(r.attributes, now_ns), num4=r.num4, num6=r.num6) for r in requests
        ]
        handles = {each.handle_id: ledger.handle(each.handle_id) for each in assignments}
        # if the block that a handle was made for is full now, the handle's count for it must be removed
        counted = {cidr for handle in handles.values() if handle is not None for cidr in handle.blocks}
        withheld = {cidr: frozenset(range(cidr.num_addresses)) for cidr in counted.difference(sources)}
        reserved = reserved_networks(facts.reservations)
        withheld |= {cidr: frozenset(reserved_ordinals(cidr, reserved)) for cidr in sources}
        return plan_batch({cidr: ledger.block(cidr) for cidr in withheld}, handles, assignments, withheld), assignments

    def _sources(self, ledger: Ledger, facts: Facts, requests: Sequence[AssignRequest]) -> list[Network]:
        """The node's own blocks with room for all these requests of one scope; [] if there is not enough for any."""
        first = requests[0]
        chosen: list[Network] = []
        for family, count in ((4, first.num4), (6, first.num6)):
            if not count:
                continue
            pools = first.select_pools(facts, family)
            found, left = self._own_blocks(ledger, facts, first.node, family, pools, count * len(requests))
            if not found:
                return []
            if is_short(pools, left):
                self.spares.request(first.node, family, pools)
            chosen += found
        return chosen

    def _own_blocks(
        self, ledger: Ledger, facts: Facts, node: str, family: int, pools: tuple[IPPool, ...], wanted: int
    ) -> tuple[list[Network], int]:
        """The node's own blocks with ``wanted`` free addresses in total, or as many as there are; and how many free
        addresses remain after the request (negative: how many are missing).
        """
        reserved = reserved_networks(facts.reservations)
        affinities = self._snapshot.affinities(node, family)
        own = {cidr: None for cidr, affinity in affinities.items() if affinity.confirmed}
        own |= {cidr: None for cidr, found in list(self.known.blocks.items()) if _is_own(found.record, node, family)}
        own = {cidr: None for cidr in own if pool_of(pools, cidr) is not None}
        ledger.load_blocks(own)
        chosen: list[Network] = []
        free = 0
        for cidr in own:
            block = ledger.block(cidr)
            if block is None or block.node != node:
                continue
            room = count_free(block, reserved_ordinals(cidr, reserved) if reserved else NOTHING)
            if room and free < wanted:
                chosen.append(cidr)
            free += room
        return chosen, free - wanted


def _scope_of(item: Item) -> object:
    """Requests of one scope can be served from the same blocks; None for a release."""
    request = item.request
    if request is None:
        return None
    labels = request.namespace_labels
    return (
        request.node,
        request.num4,
        request.num6,
        request.pools4,
        request.pools6,
        request.use,
        None if labels is None else tuple(sorted(labels.items())),
    )


def _first_of_each(items: Sequence[Item], members: Iterable[int]) -> list[int]:
    """One item per handle; a second one of the same handle is carried out alone."""
    first: dict[str, int] = {}
    for i in members:
        first.setdefault(items[i].handle_id, i)
    return list(first.values())


def _is_own(record: object, node: str, family: int) -> bool:
    return isinstance(record, Block) and record.node == node and record.cidr.version == family
