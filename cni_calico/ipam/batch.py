"""PURE: computes several requests together on the same blocks: what each gets, and what must be written.

Rule: the caller passes every block and handle that the requests involve. Each handle's counts are set to what the
blocks hold afterwards, so the next request of a handle corrects a count that a crash left wrong. The steps are ordered
so that no address is ever without its handle, even if they are written one at a time and the writer dies in between:
handles that gain addresses, blocks, handles that lose addresses. Assignments come before requests that release,
so a released address is never assigned again in the same write. A block in which a handle is counted and does not hold
that much is written again before the handle: whoever counted it there may have died with the block's write on its way,
and that write must not be carried out any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from cni_calico.errors import IPAMError
from cni_calico.ipam.block import (
    NOTHING,
    Release,
    allocate,
    allocate_address,
    holder_of,
    holdings,
    next_write,
    release_addresses,
    release_handle,
)
from cni_calico.model.keys import BlockKey, HandleKey, Key
from cni_calico.model.resources import Address, Affinity, Block, Handle, IPAMConfig, Network

Blocks = Mapping[Network, Block | None]
Handles = Mapping[str, Handle | None]
Reserved = Mapping[Network, AbstractSet[int]]


@dataclass(frozen=True, slots=True)
class Assigned:
    """An address and its block; ``held``: its handle already had it before this request."""

    address: Address
    block: Network
    held: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Step:
    """The record behind ``key`` becomes ``record``; None: it is removed."""

    key: Key
    record: Block | Handle | Affinity | IPAMConfig | None


@dataclass(frozen=True, slots=True)
class Assignment:
    """A request for a number of addresses of each family, and for the named ones; all or none. ``attributes`` are
    stored unchanged.
    """

    handle_id: str
    attributes: Mapping[str, str]
    num4: int = 0
    num6: int = 0
    addresses: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True)
class Give:
    """Release everything that a handle holds, except ``keep``."""

    handle_id: str
    keep: AbstractSet[Address] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class GiveAddresses:
    """Release these addresses if their guards match; ``recount`` names handles that may have lost addresses before."""

    releases: tuple[Release, ...]
    recount: AbstractSet[str] = frozenset()


BatchRequest = Assignment | Give | GiveAddresses
BatchOutcome = tuple[Assigned, ...] | IPAMError | None


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """``outcomes`` has one entry per request: what it got or released; the error that concerns only this request; or
    None if the blocks do not have enough addresses. Requests with an error or None change nothing.
    """

    steps: tuple[Step, ...]
    outcomes: tuple[BatchOutcome, ...]


def plan_batch(
    blocks: Blocks, handles: Handles, requests: Sequence[BatchRequest], reserved: Reserved | None = None
) -> BatchPlan:
    """Serve requests from ``blocks``, earlier ones first.

    ``blocks`` must have every block in which a handle of these requests is to be counted (None: it is gone),
    ``handles`` every handle that gains or loses; no handle may gain in one request and lose in another.
    """
    work = _Work(blocks, handles, reserved or {})
    outcomes: list[BatchOutcome] = [None] * len(requests)
    for i in sorted(range(len(requests)), key=lambda i: not isinstance(requests[i], Assignment)):
        request = requests[i]
        if isinstance(request, Assignment):
            outcomes[i] = work.assign(request)
        elif isinstance(request, Give):
            outcomes[i] = work.give(request)
        else:
            outcomes[i] = work.give_addresses(request)
    if not work.gaining.isdisjoint(work.losing):
        raise ValueError("a handle gains and loses in one batch")
    gains = _handle_steps(sorted(work.gaining), handles, work.blocks)
    losses = _handle_steps(sorted(work.losing), handles, work.blocks)
    return BatchPlan((*gains, *_block_steps(blocks, work.blocks), *losses), tuple(outcomes))


class _Work:
    """The blocks while requests are served from them, and the handles whose counts change."""

    def __init__(self, blocks: Blocks, handles: Handles, reserved: Reserved) -> None:
        self.blocks: dict[Network, Block | None] = dict(blocks)
        self.handles = handles
        self.reserved = reserved
        self.gaining: set[str] = set()
        self.losing: set[str] = set()

    def assign(self, request: Assignment) -> BatchOutcome:
        before = dict(self.blocks)
        try:
            given = self._assign_explicit(request)
        except IPAMError as e:
            self.blocks = before
            return e
        for family, count in ((4, request.num4), (6, request.num6)):
            found = self._assign_any(family, count, request)
            if found is None:
                self.blocks = before
                return None
            given += found
        self.gaining.add(request.handle_id)
        return tuple(given)

    def _assign_explicit(self, request: Assignment) -> list[Assigned]:
        given = []
        for address in request.addresses:
            for cidr, block in self.blocks.items():
                if block is not None and address.version == cidr.version and address in cidr:
                    self.blocks[cidr] = allocate_address(block, address, request.handle_id, request.attributes)
                    given.append(Assigned(address, cidr))
                    break
            else:
                raise ValueError(f"{address} is in none of the blocks of this batch")
        return given

    def _assign_any(self, family: int, count: int, request: Assignment) -> list[Assigned] | None:
        given: list[Assigned] = []
        for cidr, block in self.blocks.items():
            if len(given) == count:
                break
            if block is not None and cidr.version == family:
                self.blocks[cidr], found = allocate(
                    block,
                    count - len(given),
                    request.handle_id,
                    request.attributes,
                    self.reserved.get(cidr, NOTHING),
                )
                given += [Assigned(address, cidr) for address in found]
        return given if len(given) == count else None

    def give(self, request: Give) -> BatchOutcome:
        given: list[Assigned] = []
        handle = self.handles.get(request.handle_id)
        for cidr, block in self.blocks.items():
            if block is not None:
                after, found = release_handle(block, request.handle_id, request.keep)
                if after is block and handle is not None and _is_overcounted(handle, block, request.handle_id):
                    after = replace(block)
                self.blocks[cidr] = after
                given += [Assigned(address, cidr) for address in found]
        self.losing.add(request.handle_id)
        return tuple(given)

    def give_addresses(self, request: GiveAddresses) -> BatchOutcome:
        before, losing = dict(self.blocks), set(request.recount)
        given: list[Assigned] = []
        for cidr, block in self.blocks.items():
            mine = [r for r in request.releases if r.address.version == cidr.version and r.address in cidr]
            if block is None or not mine:
                continue
            try:
                after, found = release_addresses(block, mine)
            except IPAMError as e:
                self.blocks = before
                return e
            holders = [holder_of(block, address) for address in found]
            losing |= {holder.handle_id for holder in holders if holder is not None and holder.handle_id}
            self.blocks[cidr] = after
            given += [Assigned(address, cidr) for address in found]
        self.losing |= losing
        return tuple(given)


def _is_overcounted(handle: Handle, block: Block, handle_id: str) -> bool:
    return handle.blocks.get(block.cidr, 0) > holdings(block).get(handle_id, 0)


def _block_steps(before: Blocks, after: Blocks) -> list[Step]:
    steps = []
    for cidr, block in after.items():
        if block is not None and block is not before[cidr]:
            # an empty block without an owner serves no purpose
            leaves = block.empty and block.affinity is None
            steps.append(Step(BlockKey(cidr), None if leaves else next_write(block)))
    return steps


def _handle_steps(handle_ids: Sequence[str], handles: Handles, blocks: Blocks) -> list[Step]:
    if not handle_ids:
        return []
    held = {cidr: {} if block is None else holdings(block) for cidr, block in blocks.items()}
    steps = []
    for handle_id in handle_ids:
        before = handles[handle_id]
        counts = {} if before is None else {c: n for c, n in before.blocks.items() if c not in held}
        counts |= {cidr: found[handle_id] for cidr, found in held.items() if handle_id in found}
        if before is None:
            after = Handle(counts) if counts else None
        else:
            after = replace(before, blocks=counts) if counts else None
        if after != before:
            steps.append(Step(HandleKey(handle_id), after))
    return steps
