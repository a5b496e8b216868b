"""Releases addresses without attributes of this node's containers that are no more: nobody else can know that.

Rule: only what the oldest releases allocated for a container, by a handle that is, or ends with, the container's ID, in
a block of this node. It is released once nothing on this host has shown a trace of container or address, and no
endpoint of any node has had it, whenever it was looked at during the grace period; and only under the sequence number
that was looked at. While something waits, the next look is when the grace period may be over. Unless affinity is
strict, a block's address may be another node's container's, and without attributes nothing says so: where there are
other nodes, only containers that have run on this host are judged (seen_running.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from cni_calico.controllers.janitor.asked import is_ready, read_grace_s
from cni_calico.daemon.keeper import Keeper
from cni_calico.daemon.said import Said
from cni_calico.deadline import Deadline
from cni_calico.errors import AddressMismatch, CalicoError, CorruptRecord, KernelError
from cni_calico.ipam.allocator import Allocator, Release
from cni_calico.ipam.lost.bare import is_container
from cni_calico.ipam.lost.borrowed import may_be_borrowed
from cni_calico.ipam.lost.endpointed import endpointed
from cni_calico.ipam.lost.fresh_facts import list_endpoints
from cni_calico.ipam.lost.leaks import Holding, reduce_block
from cni_calico.ipam.release import leave_emptied, release_in_block
from cni_calico.ipam.view import stored
from cni_calico.kernel.container_traces import find_trace, runs_here, what_is_hidden
from cni_calico.model.keys import (
    AffinityKey,
    AffinityList,
    BlockKey,
    ResourceList,
)
from cni_calico.model.resources import Address, Block
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.keepers.seen_running import SeenRunning

LOOK_S, SOONEST_S = 60.0, 2.0
_READ_S, _TRACE_S = 30.0, 10.0


def container_of(holding: Holding) -> str:
    """The container's ID in a bare handle that certainly names one; "" otherwise."""
    container = holding.handle_id.rpartition(".")[2]
    return container if holding.bare and is_container(container) else ""


class OldestAddresses:
    """``trace`` says where the host shows a container or an address, "" for nowhere; ``hidden`` what it cannot see."""

    def __init__(
        self,
        context: Context,
        node: str,
        now: Callable[[], float] = time.monotonic,
        trace: Callable[[str, Address, Deadline], str] = find_trace,
        hidden: Callable[[], str] = what_is_hidden,
        runs: Callable[[str], bool] = runs_here,
    ) -> None:
        self.context, self.node = context, node
        self.now, self.trace, self.hidden = now, trace, hidden
        self._since: dict[Holding, float] = {}
        self._said = Said(context.log)
        self._seen = SeenRunning(context.files, context.log, context.settings.state_dir, runs)

    def look(self) -> float:
        """Returns in how many seconds to look again. Raises CalicoError; then the grace period begins anew, of all
        addresses or, where only an address's traces could not be looked for, of that one.
        """
        failures: list[str] = []
        try:
            grace_s = self._look(failures)
        except CalicoError:
            self._since.clear()
            raise
        if failures:
            raise KernelError("; ".join(failures[:3]), errno=0)
        return max(SOONEST_S, min(LOOK_S, grace_s)) if self._since else LOOK_S

    def _look(self, failures: list[str]) -> float:
        """Returns the grace period. Adds why traces could not be looked for, for each address."""
        held = list(self._held())
        hidden = self.hidden() if held else ""
        self._said.say("hidden", [f"no address without attributes is released: {hidden}"] if hidden else [])
        if hidden:
            held = []
        # asked only then: clusters may have thousands of nodes
        if held and may_be_borrowed(self.context.store, self.node, self._deadline()):
            seen = self._seen.among({container_of(holding) for holding in held})
            held = [holding for holding in held if container_of(holding) in seen]
        self._since = {holding: self._since[holding] for holding in held if holding in self._since}
        if not held:
            return LOOK_S
        everybody = endpointed(list_endpoints(self.context.store, ResourceList("WorkloadEndpoint"), self._deadline()))
        now, grace_s = self.now(), read_grace_s(self.context.store)
        for holding in held:
            try:
                kept = everybody.may_have(holding) or self._trace(holding)
            except CalicoError as e:
                failures.append(f"{holding.address}: {e.message}")
                kept = True
            if kept or grace_s is None:
                self._since.pop(holding, None)
            elif now - self._since.setdefault(holding, now) >= grace_s and is_ready(self.context.store):
                self._release(holding)
        return LOOK_S if grace_s is None else grace_s

    def _trace(self, holding: Holding) -> str:
        return self.trace(container_of(holding), holding.address, Deadline.after(_TRACE_S))

    def _held(self) -> Iterator[Holding]:
        """Of containers, in this node's blocks."""
        store, deadline = self.context.store, self._deadline()
        for version in (4, 6):
            listed = store.list(AffinityList(self.node, version), deadline).items
            keys = [BlockKey(item.key.cidr) for item in listed if isinstance(item.key, AffinityKey)]
            for item in store.get_many(keys, deadline) if keys else ():
                try:
                    block = None if item is None else stored(item).record
                except CorruptRecord:
                    continue  # status and calicoctl name it
                if isinstance(block, Block) and not block.deleted and block.node == self.node:
                    yield from (holding for holding in reduce_block(block).holdings if container_of(holding))

    def _release(self, holding: Holding) -> None:
        allocator, deadline = Allocator(self.context.store), self._deadline()
        ledger = allocator.ledger(deadline)
        try:
            release = Release(holding.address, holding.handle_id, holding.sequence_number)
            freed = release_in_block(ledger, holding.block, (release,))
        except AddressMismatch:
            return  # it is somebody's again
        leave_emptied(ledger, (holding.block,), allocator.clock())
        self._since.pop(holding, None)
        if freed:
            why = "no runtime of this host knows its container, and nobody has the address"
            self.context.log.info(f"released {holding}: {why}")

    def _deadline(self) -> Deadline:
        return Deadline.after(_READ_S)


def oldest_keeper(context: Context, node: str) -> Keeper:
    """Looks once a minute: without such addresses that is a listing of this node's affinities and blocks."""
    oldest = OldestAddresses(context, node)

    def look() -> None:
        keeper.interval_s = oldest.look()

    keeper = Keeper("addresses without attributes", look, LOOK_S, context.log, context.troubles)
    return keeper
