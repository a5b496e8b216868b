"""The allocator: addresses for handles, from the blocks of this and other nodes, on any datastore.

Rule: a request gets everything it asked for, or an error with nothing allocated; if the wanted state exists already,
that is success. All state is in the datastore: threads may share an allocator, and others may work at the same time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.ipam import explicit, release
from cni_calico.ipam.assign import Assigning, AssignRequest, Companion, held_addresses
from cni_calico.ipam.batch import Assigned
from cni_calico.ipam.block import Release
from cni_calico.ipam.claims import release_block
from cni_calico.ipam.ledger import Ledger, Patience
from cni_calico.ipam.share import Share
from cni_calico.ipam.view import DirectView, Facts, View
from cni_calico.model.keys import HandleKey
from cni_calico.model.resources import Address, Network

__all__ = ["AssignRequest", "Assigned", "Allocator", "Release", "Share"]

UNDO_TIMEOUT_S = 5.0


def _random() -> float:
    return int.from_bytes(os.urandom(4), "big") / 2**32  # the random module takes milliseconds to import


class Allocator:
    """``view`` answers reads (default: the datastore itself), ``clock`` returns Unix nanoseconds, ``rng`` returns
    numbers in [0, 1) that spread retries, ``sleep`` waits.
    """

    def __init__(
        self,
        store: Datastore,
        view: View | None = None,
        *,
        clock: Callable[[], int] = time.time_ns,
        rng: Callable[[], float] = _random,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store = store
        self.view: View = view if view is not None else DirectView(store)
        self.clock = clock
        self._patience = Patience(rng, sleep)

    def ledger(self, deadline: Deadline, view: View | None = None) -> Ledger:
        """The working records of one request."""
        return Ledger(self.store, view or self.view, deadline, self._patience)

    # -- taking -------------------------------------------------------------------------------------------------------

    def assign(
        self, request: AssignRequest, deadline: Deadline, companion: Companion | None = None
    ) -> tuple[Assigned, ...]:
        """The addresses of a request, IPv4 first; addresses that its handle (or its share of the handle) holds already
        are counted.

        Raises NoPool, PoolExhausted, BlockLimit, Contention, DatastoreError, DeadlineExceeded; for named addresses what
        ``assign_address`` raises.
        """
        if request.addresses:
            return self._assign_named(request, deadline)
        ledger, facts = self._begin(request.node, request.handle_id, deadline)
        held = self._held_before(ledger, request.handle_id)
        try:
            return Assigning(ledger, request, facts, self.clock()).run()
        except CalicoError as e:
            self._undo(ledger, request.handle_id, held, e, request.share)
            raise

    def _assign_named(self, request: AssignRequest, deadline: Deadline) -> tuple[Assigned, ...]:
        handle_id, attributes, share = request.handle_id, request.attributes, request.share
        held = {item.address for item in self.addresses_of(handle_id, deadline, share)}
        taken: list[Assigned] = []
        try:
            for address in request.addresses:
                taken.append(self.assign_address(address, handle_id, attributes, request.node, deadline, share))
        except CalicoError:
            fresh = [item.address for item in taken if item.address not in held]
            if fresh:
                self.release_addresses(fresh, Deadline.after(UNDO_TIMEOUT_S), handle_id=handle_id)
            raise
        return tuple(taken)

    def assign_address(
        self,
        address: Address,
        handle_id: str,
        attributes: Mapping[str, str],
        node: str,
        deadline: Deadline,
        share: Share | None = None,
    ) -> Assigned:
        """Exactly this address. Raises AddressInUse, AddressOutsidePools and what ``assign`` raises."""
        ledger, facts = self._begin(node, handle_id, deadline)
        held = self._held_before(ledger, handle_id)
        try:
            return explicit.assign_address(ledger, address, handle_id, attributes, facts, self.clock(), share)
        except CalicoError as e:
            self._undo(ledger, handle_id, held, e, share)
            raise

    def _begin(self, node: str, handle_id: str, deadline: Deadline) -> tuple[Ledger, Facts]:
        ledger = self.ledger(deadline)
        facts = self.view.facts(node, handle_id, deadline)
        ledger.learn(HandleKey(handle_id), facts.handle)
        return ledger, facts

    def _held_before(self, ledger: Ledger, handle_id: str) -> frozenset[Address]:
        return frozenset(item.address for item in held_addresses(ledger, handle_id))

    def _undo(
        self, ledger: Ledger, handle_id: str, held: Collection[Address], error: CalicoError, share: Share | None
    ) -> None:
        """Release what a failed request may have taken; if that fails too, ``error`` says so."""
        if not ledger.wrote:
            return
        again = self.ledger(Deadline.after(UNDO_TIMEOUT_S), DirectView(self.store))
        try:
            release.release_handle(again, handle_id, self.clock(), frozenset(held), share)
        except CalicoError as e:
            text = f"what was taken under handle {handle_id} may still be there: {e.message}"
            error.details = f"{error.details}; {text}" if error.details else text

    # -- what is held -------------------------------------------------------------------------------------------------

    def addresses_of(self, handle_id: str, deadline: Deadline, share: Share | None = None) -> tuple[Assigned, ...]:
        """What a handle holds, or one interface of it, IPv4 first."""
        return held_addresses(self.ledger(deadline), handle_id, share)

    def handles_of(self, addresses: Iterable[Address], deadline: Deadline) -> Mapping[Address, str]:
        """The handle under which each of these addresses is held; free ones are left out. Raises DatastoreError."""
        return release.find_handles(self.ledger(deadline, DirectView(self.store)), addresses)

    # -- giving back --------------------------------------------------------------------------------------------------

    def release_handle(self, handle_id: str, deadline: Deadline, share: Share | None = None) -> tuple[Address, ...]:
        """Release everything that a handle holds, or one interface of it; returns what was released. Absent
        is success.
        """
        return release.release_handle(self.ledger(deadline), handle_id, self.clock(), share=share)

    def release_addresses(
        self, addresses: Iterable[Address | Release], deadline: Deadline, *, handle_id: str | None = None
    ) -> tuple[Address, ...]:
        """Release single addresses; returns what was released. Those that are free already are success.

        ``handle_id`` is the guard for releases that have none of their own. Raises AddressMismatch.
        """
        releases = [item if isinstance(item, Release) else Release(item, handle_id) for item in addresses]
        return release.release_addresses(self.ledger(deadline), releases, self.clock())

    def drop_idle_handle(self, handle_id: str, deadline: Deadline) -> bool:
        """Remove a handle without addresses that a dead process left behind; False if it is in use."""
        return release.drop_idle_handle(self.ledger(deadline), handle_id)

    def release_node_block(self, node: str, cidr: Network, deadline: Deadline, *, require_empty: bool = True) -> bool:
        """Take a block from a node; one with addresses keeps them and has no owner. False: it is not empty."""
        return release_block(self.ledger(deadline), node, cidr, self.clock(), require_empty=require_empty)
