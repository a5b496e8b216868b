"""The allocator of the resident server: requests that arrive together are computed together and written in one commit.

Rule: the ordinary case is served from what is known in memory (the node's own blocks, the pools) and found out by the
commit's comparison; whatever is not ordinary (no block with room, a handle that exists, a conflict that stays) goes
the allocator's own way, which reads. So a cache that is wrong costs time, never an address.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cni_calico.batching import Batcher
from cni_calico.datastore.client import Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, CorruptRecord, DatastoreUnavailable, DeadlineExceeded
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.assign import AssignRequest
from cni_calico.ipam.batch import Assigned, Give, Take, plan_batch
from cni_calico.ipam.block import count_free, reserved_ordinals
from cni_calico.ipam.ledger import Ledger
from cni_calico.ipam.pools import NodeFacts, pool_of, reserved_networks, select_pools
from cni_calico.ipam.release import leave_emptied
from cni_calico.ipam.spare import claim_spare
from cni_calico.ipam.timestamps import allocation_time
from cni_calico.ipam.view import DirectView, Facts, Stored, decode_found, read_each
from cni_calico.model.keys import BlockKey, HandleKey
from cni_calico.model.resources import Address, Affinity, Block, Handle, IPPool, Network

BATCH_MAX = 48  # with its blocks well below what one etcd transaction takes
ATTEMPTS = 4
HANDLE_BLOCKS_MAX = 8
SPARE_BELOW = 16  # a spare block is claimed when fewer addresses than this are left


class Snapshot(Protocol):
    """What the server's caches know, without asking anybody."""

    def facts(self, node: str) -> Facts | None:
        """None before the caches are filled, and for a node that they do not follow."""

    def affinities(self, node: str, family: int) -> Mapping[Network, Affinity]: ...


@dataclass(slots=True)
class _Item:
    """One request in a batch: ``request`` to take, or ``handle_id`` to give back."""

    deadline: Deadline
    request: AssignRequest | None = None
    handle_id: str = ""


class _Slow:
    """The outcome of an item that has to go the allocator's own way."""


SLOW = _Slow()
Outcome = Any  # tuple of Assigned or Address, SLOW, or an exception


@dataclass(slots=True)
class GroupStatistics:
    fast: int = 0
    slow: int = 0
    spares: int = 0
    sizes: list[int] = field(default_factory=list)


class _KnownBlocks(DirectView):
    """The store, but for blocks that the last commits showed, and what the caches know."""

    def __init__(self, store: Datastore, known: Mapping[Network, Stored], snapshot: Snapshot) -> None:
        super().__init__(store)
        self._known = known
        self._snapshot = snapshot

    def pools(self, deadline: Deadline) -> Sequence[IPPool]:
        facts = self._snapshot.facts("")
        return facts.pools if facts is not None else super().pools(deadline)

    def node(self, name: str, deadline: Deadline) -> NodeFacts:
        facts = self._snapshot.facts(name)
        return facts.node if facts is not None else super().node(name, deadline)

    def blocks(self, cidrs: Sequence[Network], deadline: Deadline) -> Sequence[Stored | CorruptRecord | None]:
        missing = [cidr for cidr in cidrs if cidr not in self._known]
        found = dict(zip(missing, super().blocks(missing, deadline), strict=True)) if missing else {}
        return [self._known.get(cidr) or found.get(cidr) for cidr in cidrs]


class GroupAllocator(Allocator):
    """An Allocator whose ``assign`` and ``release_handle`` of several threads share commits."""

    def __init__(self, store: Datastore, snapshot: Snapshot, **options: Any) -> None:
        super().__init__(store, **options)
        self._snapshot = snapshot
        self._blocks: dict[Network, Stored] = {}
        self._handles: dict[str, Stored] = {}
        self._known_view = _KnownBlocks(store, self._blocks, snapshot)
        limit = BATCH_MAX if store.max_commit == 1 else max(1, min(BATCH_MAX, store.max_commit - HANDLE_BLOCKS_MAX))
        self._batcher: Batcher[_Item, Outcome] = Batcher(self._run, limit=limit)
        self._claiming = threading.Lock()
        self.statistics = GroupStatistics(sizes=self._batcher.sizes)

    # -- the allocator's interface ------------------------------------------------------------------------------------

    def assign(self, request: AssignRequest, deadline: Deadline) -> tuple[Assigned, ...]:
        found = self._share(_Item(deadline, request=request), "request addresses")
        if found is SLOW:
            self.statistics.slow += 1
            return super().assign(request, deadline)
        self.statistics.fast += 1
        return found  # type: ignore[no-any-return]

    def release_handle(self, handle_id: str, deadline: Deadline) -> tuple[Address, ...]:
        found = self._share(_Item(deadline, handle_id=handle_id), "release addresses")
        if found is SLOW:
            self._handles.pop(handle_id, None)
            return super().release_handle(handle_id, deadline)
        return found  # type: ignore[no-any-return]

    def _share(self, item: _Item, doing: str) -> Outcome:
        try:
            return self._batcher.submit(item, item.deadline, doing)
        except (DatastoreUnavailable, DeadlineExceeded):
            if item.deadline.expired():
                raise
            return SLOW  # another member had less time, or the answer was lost: look what is stored

    # -- a batch ------------------------------------------------------------------------------------------------------

    def _run(self, items: Sequence[_Item]) -> Sequence[Outcome]:
        outcomes: list[Outcome] = [SLOW] * len(items)
        deadline = Deadline(min(item.deadline.at for item in items))
        groups: dict[object, list[int]] = {}
        for i, item in enumerate(items):
            groups.setdefault(_scope_of(item), []).append(i)
        for scope, members in groups.items():
            serve = self._give if scope is None else self._take
            unique = _first_of_each(items, members)
            try:
                for i, outcome in zip(unique, serve([items[i] for i in unique], deadline), strict=True):
                    outcomes[i] = outcome
            except CalicoError as e:
                for i in unique:
                    outcomes[i] = e
        return outcomes

    def _ledger(self, deadline: Deadline) -> Ledger:
        return self.ledger(deadline, self._known_view)

    # -- taking -------------------------------------------------------------------------------------------------------

    def _take(self, items: Sequence[_Item], deadline: Deadline) -> list[Outcome]:
        requests = [item.request for item in items if item.request is not None]
        facts = self._snapshot.facts(requests[0].node)
        outcomes: list[Outcome] = [SLOW] * len(requests)
        if facts is None or facts.config is None:
            return outcomes
        ledger = self._ledger(deadline)
        open_requests = set(range(len(requests)))
        for handle_id in (request.handle_id for request in requests):
            ledger.presume_absent(HandleKey(handle_id))
        for _ in range(ATTEMPTS):
            open_requests -= {i for i in open_requests if ledger.handle(requests[i].handle_id) is not None}
            taken = self._take_once(ledger, facts, {i: requests[i] for i in sorted(open_requests)})
            if taken is None:
                continue
            for i, outcome in taken.items():
                outcomes[i] = outcome
            break
        self._learn(ledger)
        return outcomes

    def _take_once(
        self, ledger: Ledger, facts: Facts, requests: Mapping[int, AssignRequest]
    ) -> dict[int, Outcome] | None:
        """What each request got; None after a conflict."""
        if not requests:
            return {}
        reserved = reserved_networks(facts.reservations)
        sources = self._sources(ledger, facts, list(requests.values()))
        if not sources:
            return {}
        stamp = allocation_time(self.clock())
        takes = [
            Take(r.handle_id, {**r.attributes, "timestamp": stamp}, num4=r.num4, num6=r.num6) for r in requests.values()
        ]
        plan = plan_batch(
            {cidr: ledger.block(cidr) for cidr in sources},
            {take.handle_id: None for take in takes},
            takes,
            {cidr: reserved_ordinals(cidr, reserved) for cidr in sources},
        )
        given = {i: out for i, out in zip(requests, plan.outcomes, strict=True) if isinstance(out, tuple)}
        if given and not ledger.apply(plan.steps):
            return None
        return given

    def _sources(self, ledger: Ledger, facts: Facts, requests: Sequence[AssignRequest]) -> list[Network]:
        """The node's own blocks with room for all of these alike requests; [] when there is not enough for any."""
        first = requests[0]
        chosen: list[Network] = []
        for family, count in ((4, first.num4), (6, first.num6)):
            if not count:
                continue
            pools = select_pools(
                facts.pools,
                family=family,
                node=facts.node,
                explicit=first.pools4 if family == 4 else first.pools6,
                use=first.use,
                namespace_labels=first.namespace_labels,
            )
            found, left = self._own_blocks(ledger, facts, first.node, family, pools, count * len(requests))
            if left < SPARE_BELOW:
                self._claim_spare(first.node, family, pools)
            if not found:
                return []
            chosen += found
        return chosen

    def _own_blocks(
        self, ledger: Ledger, facts: Facts, node: str, family: int, pools: tuple[IPPool, ...], wanted: int
    ) -> tuple[list[Network], int]:
        """Blocks with at least ``wanted`` free addresses together, as far as there are; how many would be left."""
        reserved = reserved_networks(facts.reservations)
        own = [
            cidr
            for cidr, affinity in self._snapshot.affinities(node, family).items()
            if affinity.confirmed and pool_of(pools, cidr) is not None
        ]
        ledger.load_blocks(own)
        chosen: list[Network] = []
        free = 0
        for cidr in own:
            block = ledger.block(cidr)
            if block is None or block.node != node:
                continue
            room = count_free(block, reserved_ordinals(cidr, reserved) if reserved else frozenset())
            if room and free < wanted:
                chosen.append(cidr)
            free += room
        return chosen, free - wanted

    def _claim_spare(self, node: str, family: int, pools: tuple[IPPool, ...]) -> None:
        """Claim one more block beside the requests, so that none of them has to wait for it."""
        if not self._claiming.acquire(blocking=False):
            return

        def claim() -> None:
            try:
                claim_spare(self, node, family, pools)
                self.statistics.spares += 1
            except CalicoError:
                pass  # a request that needs the block will say why there is none
            finally:
                self._claiming.release()

        threading.Thread(target=claim, name="spare-block", daemon=True).start()

    # -- giving back --------------------------------------------------------------------------------------------------

    def _give(self, items: Sequence[_Item], deadline: Deadline) -> list[Outcome]:
        ledger = self._ledger(deadline)
        self._load_handles(ledger, [item.handle_id for item in items], deadline)
        outcomes: list[Outcome] = [SLOW] * len(items)
        for _ in range(ATTEMPTS):
            given = self._give_once(ledger, [item.handle_id for item in items])
            if given is not None:
                outcomes = given
                break
        self._learn(ledger)
        return outcomes

    def _load_handles(self, ledger: Ledger, handle_ids: Sequence[str], deadline: Deadline) -> None:
        unknown = []
        for handle_id in handle_ids:
            known = self._handles.get(handle_id)
            if known is None:
                unknown.append(HandleKey(handle_id))
            else:
                ledger.learn(HandleKey(handle_id), known)
        for key, found in zip(unknown, read_each(self.store, unknown, deadline), strict=True):
            decoded = decode_found(found)
            if isinstance(decoded, CorruptRecord):
                raise decoded
            ledger.learn(key, decoded)

    def _give_once(self, ledger: Ledger, handle_ids: Sequence[str]) -> list[Outcome] | None:
        """What each handle gave back; None after a conflict."""
        handles = {handle_id: ledger.handle(handle_id) for handle_id in handle_ids}
        outcomes: list[Outcome] = [() if handles[handle_id] is None else SLOW for handle_id in handle_ids]
        held = {i: handle for i, h in enumerate(handle_ids) if (handle := handles[h]) is not None}
        held = {i: handle for i, handle in held.items() if 0 < len(handle.blocks) <= HANDLE_BLOCKS_MAX}
        cidrs = list(dict.fromkeys(cidr for handle in held.values() for cidr in handle.blocks))
        ledger.load_blocks(cidrs)
        while held:
            gives = [Give(handle_ids[i]) for i in held]
            blocks = {cidr: ledger.block(cidr) for cidr in cidrs}
            plan = plan_batch(blocks, {give.handle_id: handles[give.handle_id] for give in gives}, gives)
            given = dict(zip(held, plan.outcomes, strict=True))
            # a count that does not fit says that the block we know is not the one that is stored
            doubtful = [i for i, out in given.items() if not _accounts_for(held[i], out)]
            if not doubtful:
                if not ledger.apply(plan.steps):
                    return None
                for i, out in given.items():
                    outcomes[i] = tuple(item.address for item in out)  # type: ignore[union-attr]
                leave_emptied(ledger, cidrs, self.clock())
                break
            for i in doubtful:
                del held[i]
        return outcomes

    # -- what is known ------------------------------------------------------------------------------------------------

    def _learn(self, ledger: Ledger) -> None:
        for key, found in ledger.known().items():
            if isinstance(key, BlockKey):
                _remember(self._blocks, key.cidr, found, Block)
            elif isinstance(key, HandleKey):
                _remember(self._handles, key.handle_id, found, Handle)


def _remember(known: dict[Any, Stored], name: Any, found: Stored | None, kind: type) -> None:
    if found is not None and isinstance(found.record, kind):
        known[name] = found
    else:
        known.pop(name, None)


def _scope_of(item: _Item) -> object:
    """Requests of one scope can be served from the same blocks; None: to give back."""
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


def _first_of_each(items: Sequence[_Item], members: Iterable[int]) -> list[int]:
    """One item per handle; a second one of the same handle goes its own way."""
    first: dict[str, int] = {}
    for i in members:
        request = items[i].request
        first.setdefault(request.handle_id if request is not None else items[i].handle_id, i)
    return list(first.values())


def _accounts_for(handle: Handle, outcome: object) -> bool:
    return isinstance(outcome, tuple) and len(outcome) == sum(handle.blocks.values())
