"""Addresses that outlast their pods: taken, shared during a migration, handed over, given back.

Rule: a handle of this kind has at most one address of each family, and its block says who has it: one active owner, and
while a virtual machine moves one alternate. Every change of owners is a compare-and-swap of the block that says what it
was computed from; nothing is released as long as an owner is named. An allocation made while somebody else made one for
the same handle is withdrawn, and theirs is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, TryAgain
from cni_calico.ipam import explicit
from cni_calico.ipam.allocator import UNDO_TIMEOUT_S, Allocator
from cni_calico.ipam.assign import Assigning, AssignRequest, held_addresses
from cni_calico.ipam.batch import Assigned, Give, Step, plan_batch
from cni_calico.ipam.block import addresses_of, next_write, ordinal_of
from cni_calico.ipam.ledger import Ledger
from cni_calico.ipam.release import leave_emptied
from cni_calico.model.keys import BlockKey, HandleKey
from cni_calico.model.lasting import AddressOwners, is_pod, owners_of, with_owners
from cni_calico.model.resources import Address, Block, Handle, Network
from cni_calico.model.timestamps import stamped

ATTEMPTS = 8
OwnersChange = Callable[[Address, AddressOwners], AddressOwners]
MayTake = Callable[[AddressOwners], None]
Fits = Callable[[Address], bool]


def _anyone(owners: AddressOwners) -> None:
    """Whoever asks may have the address."""


def _everywhere(address: Address) -> bool:
    return True


class LastingAddresses:
    """The addresses kept under handles that outlast pods, in one datastore. ``make`` makes an allocator that asks the
    datastore itself.
    """

    def __init__(self, store: Datastore, make: Callable[[Datastore], Allocator] = Allocator) -> None:
        self._allocator = make(store)

    def owners(self, handle_id: str, deadline: Deadline) -> dict[Address, AddressOwners]:
        """Who has each address of a handle. Raises DatastoreError."""
        ledger = self._allocator.ledger(deadline)
        return {
            item.address: _owners(ledger.block(item.block), item.address) for item in held_addresses(ledger, handle_id)
        }

    # -- taking -------------------------------------------------------------------------------------------------------

    def assign(
        self, request: AssignRequest, deadline: Deadline, *, may_take: MayTake = _anyone, fits: Fits = _everywhere
    ) -> tuple[Assigned, ...]:
        """One address of each family that is asked for; those that are kept are used again, also by a request that
        names others, and whoever asks is their active owner then. ``may_take`` raises if the owners that are named must
        not lose them; a kept address that does not ``fit`` the request any more is released first.

        Raises TryAgain while others take addresses for the same handle, and what ``Allocator.assign`` raises.
        """
        request = replace(request, num4=min(1, request.num4), num6=min(1, request.num6), share=None)
        for _ in range(ATTEMPTS):
            for owners in self.owners(request.handle_id, deadline).values():
                may_take(owners)
            self._release_unfit(request.handle_id, fits, may_take, deadline)
            assigned = self._assign(request, deadline)
            fresh = tuple(item for item in assigned if not item.held)
            if fresh and self._is_contested(request.handle_id, fresh, deadline):
                self._withdraw(request, fresh, deadline)
                continue
            if self._make_active(request, assigned, may_take, deadline):
                return assigned
            if fresh:
                self._withdraw(request, fresh, deadline)
        raise TryAgain(f"cannot take addresses under handle {request.handle_id}: others keep taking them")

    def _assign(self, request: AssignRequest, deadline: Deadline) -> tuple[Assigned, ...]:
        """As an allocator does; but what a failed attempt gives back is only its own, because others may take addresses
        for the same handle at the same time.
        """
        allocator = self._allocator
        ledger = _SharedLedger(allocator.ledger(deadline), request.handle_id)
        facts = allocator.view.facts(request.node, request.handle_id, deadline)
        ledger.learn(HandleKey(request.handle_id), facts.handle)
        there = held_addresses(ledger, request.handle_id)
        held = {item.address for item in there}
        try:
            if not request.addresses:
                return Assigning(ledger, request, facts, allocator.clock()).run()
            families = {address.version for address in held}
            named = (address for address in request.addresses if address.version not in families)
            own = (request.handle_id, request.attributes, facts, allocator.clock())
            return (*there, *(explicit.assign_address(ledger, address, *own) for address in named))
        except CalicoError as e:
            if ledger.wrote:
                self._undo_after(e, request, held)
            raise

    def _undo_after(self, error: CalicoError, request: AssignRequest, held: AbstractSet[Address]) -> None:
        """If that fails too, ``error`` says so."""
        try:
            self.undo(request.handle_id, request.attributes, lambda address: address not in held)
        except CalicoError as e:
            text = f"what was taken under handle {request.handle_id} may still be there: {e.message}"
            error.details = f"{error.details}; {text}" if error.details else text

    def _release_unfit(self, handle_id: str, fits: Fits, may_take: MayTake, deadline: Deadline) -> None:
        def change(address: Address, owners: AddressOwners) -> AddressOwners:
            if fits(address):
                return owners
            may_take(owners)
            return AddressOwners()

        if not all(fits(address) for address in self.owners(handle_id, deadline)):
            self._change(handle_id, change, deadline, release=lambda address: not fits(address))

    def _is_contested(self, handle_id: str, fresh: tuple[Assigned, ...], deadline: Deadline) -> bool:
        """Whether the handle has another address of one of these families; that can only be seen once one's own is
        stored.
        """
        ours = {item.address for item in fresh}
        families = {item.address.version for item in fresh}
        there = self.owners(handle_id, deadline)
        return any(address.version in families and address not in ours for address in there)

    def _withdraw(self, request: AssignRequest, fresh: tuple[Assigned, ...], deadline: Deadline) -> None:
        """Release what this request has just taken, unless somebody uses it already."""
        ours, taken = dict(request.attributes), {item.address for item in fresh}

        def change(address: Address, owners: AddressOwners) -> AddressOwners:
            return AddressOwners() if address in taken and _is_owner(owners.active, ours) else owners

        self._change(request.handle_id, change, deadline, release=lambda address: address in taken)

    def _make_active(
        self, request: AssignRequest, assigned: tuple[Assigned, ...], may_take: MayTake, deadline: Deadline
    ) -> bool:
        """Whether all of them are still there, and now the request's own."""
        wanted = {item.address for item in assigned}
        mine = stamped(request.attributes, self._allocator.clock())

        def change(address: Address, owners: AddressOwners) -> AddressOwners:
            if address not in wanted or _is_owner(owners.active, request.attributes):
                return owners
            may_take(owners)
            alternate = owners.alternate
            return AddressOwners(mine, {} if _is_owner(alternate, request.attributes) else alternate)

        families = {address.version for address in wanted}
        # a withdrawal that was overtaken has left a second one: it goes, unless somebody has it
        surplus = partial(_is_surplus, wanted, families)
        return wanted <= self._change(request.handle_id, change, deadline, release=surplus).keys()

    # -- a migration --------------------------------------------------------------------------------------------------

    def join(self, handle_id: str, owner: Mapping[str, str], deadline: Deadline) -> tuple[Assigned, ...]:
        """Make ``owner`` the alternate one of what the handle has, IPv4 first; nothing, if it has no address. Whoever
        is active already, because the machine has come, stays so.
        """
        mine = stamped(owner, self._allocator.clock())

        def change(address: Address, owners: AddressOwners) -> AddressOwners:
            if _is_owner(owners.active, owner) or _is_owner(owners.alternate, owner):
                return owners
            return AddressOwners(owners.active, mine)

        there = self._change(handle_id, change, deadline)
        found = [Assigned(address, cidr, held=True) for address, (cidr, _) in there.items()]
        return tuple(sorted(found, key=lambda item: (item.address.version, item.address)))

    def swap(self, handle_id: str, namespace: str, pod: str, deadline: Deadline) -> bool:
        """The machine has come to this pod: it is the active owner now, and whoever was before, the alternate one.
        False if it is no owner.
        """

        def change(address: Address, owners: AddressOwners) -> AddressOwners:
            if is_pod(owners.active, namespace, pod) or not is_pod(owners.alternate, namespace, pod):
                return owners
            return AddressOwners(owners.alternate, owners.active)

        there = self._change(handle_id, change, deadline)
        return bool(there) and all(is_pod(owners.active, namespace, pod) for _, owners in there.values())

    # -- giving back --------------------------------------------------------------------------------------------------

    def leave(self, handle_id: str, namespace: str, pod: str, deadline: Deadline, *, is_over: bool) -> bool:
        """Take a pod's name out. With ``is_over`` (nobody of this identity will come again) addresses without an owner
        are released, and what the handle counts although its block does not have it any more: an earlier call may have
        died between the two. Returns whether the handle is gone.
        """

        def change(address: Address, owners: AddressOwners) -> AddressOwners:
            return owners.without(lambda owner: is_pod(owner, namespace, pod))

        return not self._change(handle_id, change, deadline, release=lambda address: is_over, recount=is_over)

    def release(
        self, handle_id: str, address: Address, is_expected: Callable[[AddressOwners], bool], deadline: Deadline
    ) -> bool:
        """Release an address if its owners are those that are expected; whether it is released."""
        taken_out = False

        def change(other: Address, owners: AddressOwners) -> AddressOwners:
            nonlocal taken_out
            if other != address or (owners and not is_expected(owners)):
                return owners
            taken_out = True
            return AddressOwners()

        there = self._change(handle_id, change, deadline, release=lambda other: other == address)
        return taken_out and address not in there

    def undo(self, handle_id: str, owner: Mapping[str, str], is_fresh: Callable[[Address], bool]) -> None:
        """After a failed request: release what it had taken for the first time, and take its name out of the rest."""

        def change(address: Address, owners: AddressOwners) -> AddressOwners:
            return owners.without(lambda there: _is_owner(there, owner))

        self._change(handle_id, change, Deadline.after(UNDO_TIMEOUT_S), release=is_fresh)

    # -- one change ---------------------------------------------------------------------------------------------------

    def _change(
        self,
        handle_id: str,
        change: OwnersChange,
        deadline: Deadline,
        *,
        release: Callable[[Address], bool] = lambda address: False,
        recount: bool = False,
    ) -> dict[Address, tuple[Network, AddressOwners]]:
        """Write the changed owners of everything that the handle holds, block by block; what ``release`` names, and
        has no owner after the change, is released with the same write. ``recount``: the handle counts no more than that
        afterwards. Returns what is there then.
        """
        ledger = self._allocator.ledger(deadline)
        done: dict[Address, tuple[Network, AddressOwners]] = {}
        handle = ledger.handle(handle_id)
        cidrs = () if handle is None else tuple(handle.blocks)
        ledger.load_blocks(cidrs)
        for cidr in cidrs:
            done |= self._change_block(ledger, cidr, handle_id, change, release, recount=recount)
        leave_emptied(ledger, cidrs, self._allocator.clock())
        return done

    def _change_block(
        self,
        ledger: Ledger,
        cidr: Network,
        handle_id: str,
        change: OwnersChange,
        release: Callable[[Address], bool],
        *,
        recount: bool,
    ) -> dict[Address, tuple[Network, AddressOwners]]:
        is_releasing = False  # from the first attempt on: without transactions it may have been carried out in part
        while True:
            block = ledger.block(cidr)
            before = {} if block is None else {a: _owners(block, a) for a in addresses_of(block, handle_id)}
            after = {address: change(address, owners) for address, owners in before.items()}
            free = {address for address, owners in after.items() if not owners and release(address)}
            there = {address: (cidr, owners) for address, owners in after.items() if address not in free}
            changed = {a: owners for a, owners in after.items() if owners != before[a]}
            if changed and block is not None:
                # a release follows as a write of its own, if it is still due then
                if ledger.apply([Step(BlockKey(cidr), next_write(replace_owners(block, changed)))]) and not free:
                    return there
                continue
            handle = ledger.handle(handle_id)
            is_overcounted = recount and handle is not None and handle.blocks.get(cidr, 0) > len(before)
            is_releasing = is_releasing or bool(free) or is_overcounted
            if not is_releasing:
                return there
            give = Give(handle_id, before.keys() - free)
            if ledger.apply(plan_batch({cidr: block}, {handle_id: handle}, (give,)).steps):
                return there


class _SharedLedger(Ledger):
    """The working records of a request whose handle others may change meanwhile.

    No block is written without comparing the handle, even if its counts stay the same. Where the handle counts an
    address that its block does not have, whoever counted it may be about to write that block: it is written again
    first, so that they cannot.
    """

    def __init__(self, own: Ledger, handle_id: str) -> None:
        super().__init__(own._store, own.view, own.deadline, own._patience)
        self._handle_key = HandleKey(handle_id)

    def apply(self, steps: Sequence[Step]) -> bool:
        handle = self.handle(self._handle_key.handle_id)
        blocks = {step.key.cidr for step in steps if isinstance(step.key, BlockKey)}
        if handle is not None and blocks:
            own = next((step.record for step in steps if step.key == self._handle_key), handle)
            left = own.blocks if isinstance(own, Handle) else {}
            dropped = [c for c, count in handle.blocks.items() if left.get(c, 0) < count and c not in blocks]
            counted = ((cidr, self.block(cidr)) for cidr in dropped)
            again = [Step(BlockKey(cidr), next_write(block)) for cidr, block in counted if block is not None]
            guard = [] if any(step.key == self._handle_key for step in steps) else [Step(self._handle_key, handle)]
            steps = [*again, *guard, *steps]
        return super().apply(steps)


def _is_surplus(wanted: AbstractSet[Address], families: AbstractSet[int], address: Address) -> bool:
    return address not in wanted and address.version in families


def _owners(block: Block | None, address: Address) -> AddressOwners:
    index = None if block is None else block.allocations[ordinal_of(block.cidr, address)]
    return AddressOwners() if block is None or index is None else owners_of(block.attributes[index])


def _is_owner(there: Mapping[str, str], owner: Mapping[str, str]) -> bool:
    """Whether what an allocation says of an owner is the same one; when it was written does not matter."""
    return {name: text for name, text in there.items() if name != "timestamp"} == dict(owner)


def replace_owners(block: Block, owners: Mapping[Address, AddressOwners]) -> Block:
    """PURE: the block with other owners of these addresses. Addresses that shared an entry with one of them keep it."""
    attributes, allocations = list(block.attributes), list(block.allocations)
    for address, wanted in owners.items():
        ordinal = ordinal_of(block.cidr, address)
        index = allocations[ordinal]
        assert index is not None, "the caller has found it allocated"
        entry = with_owners(attributes[index], wanted)
        if allocations.count(index) > 1:
            allocations[ordinal] = len(attributes)
            attributes.append(entry)
        else:
            attributes[index] = entry
    return replace(block, attributes=tuple(attributes), allocations=tuple(allocations))
