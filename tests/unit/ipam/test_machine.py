"""Several nodes allocate and release at once, interleaved at every store call, with crashes and lost answers; a naive
model says who must hold what.

CALICO_MACHINE_EXAMPLES=N runs N examples instead of the few that every test run can afford.
"""

from __future__ import annotations

import os
import sys
from itertools import combinations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cni_calico.errors import CalicoError, IPAMError, PoolExhausted
from tests.deadlines import soon
from tests.unit.ipam.interleave import FATES, Crashed, Operation
from tests.unit.ipam.stale import Janitor
from tests.unit.ipam.world import SECOND, World, ip_network, request

EXAMPLES = int(os.environ.get("CALICO_MACHINE_EXAMPLES", "60"))
STEPS = 60 if EXAMPLES < 1000 else 150
NODES = ("n1", "n2", "n3")
POOLS = {
    "a": ("10.77.0.0/30", (30, 31, 32)),
    "b": ("10.78.0.0/29", (30, 31, 32)),
    "c": ("fd00:77::/126", (126, 127, 128)),
    "d": ("10.79.0.0/25", (32,)),
}
CRASHES = FATES[1:]
CALLS = st.sampled_from([0, 2, 5, 6, 7, 8, 20, 20, 20])


class IPAMMachine(RuleBasedStateMachine):
    """``live``: what callers were told they hold; ``dirty``: handles of operations that did not end well, which their
    runtime deletes some day; ``busy``: handles in use by an operation (the attachment's lock).
    """

    @initialize(
        max_commit=st.sampled_from([1, 60]),
        sizes=st.tuples(*(st.sampled_from(sizes) for _, sizes in POOLS.values())),
        pools=st.sampled_from([("a",), ("a", "b"), ("a", "b", "c"), ("b", "c"), ("d",), ("c",)]),
        max_blocks=st.sampled_from([0, 1, 2]),
        strict=st.booleans(),
        host_lock=st.booleans(),
    )
    def begin(self, max_commit, sizes, pools, max_blocks, strict, host_lock):
        self.world = World(max_commit=max_commit)
        self.sizes = dict(zip(POOLS, sizes, strict=True))
        self.pools = pools
        self.max_blocks, self.strict, self.host_lock = max_blocks, strict, host_lock
        self.disabled, self.reserved = set(), ()
        for name in pools:
            self.world.pool(name, POOLS[name][0], self.sizes[name])
        for node in NODES:
            self.world.node(node)
        self.world.config(max_blocks_per_host=max_blocks, strict_affinity=strict)
        self.operations: list[tuple[Operation, object]] = []
        self.live: dict[str, frozenset] = {}
        self.owner: dict[str, str] = {}
        self.dirty: set[str] = set()
        self.busy: set[str] = set()
        self.hosts: set[str] = set()
        self.crashed = False
        self.changes = 0
        self.checked = None
        self.count = 0

    def teardown(self):
        try:
            if hasattr(self, "world") and sys.exc_info()[0] is None:
                self.finish()
        finally:
            for operation, _ in getattr(self, "operations", ()):
                operation.kill()

    # -- operations -----------------------------------------------------------------------------------------------

    def start(self, node, handles, work, after, calls):
        """Begin, and let it make its first store calls; 20 are mostly enough to end."""
        operation = Operation(self.world.store, lambda store: work(self.world.allocator(store)))
        self.busy |= set(handles)
        if self.host_lock:
            self.hosts.add(node)

        def end():
            self.busy -= set(handles)
            self.hosts.discard(node)
            after(operation)

        self.operations.append((operation, end))
        for _ in range(calls):
            if not operation.ended:
                operation.step()
                self.require_held()
        self.reap(operation, end)

    def may(self, node):
        return node not in self.hosts and len(self.operations) < 4

    @rule(
        node=st.sampled_from(NODES),
        num4=st.sampled_from([1, 1, 1, 0, 2, 3]),
        num6=st.sampled_from([0, 0, 1]),
        by_name=st.booleans(),
        again=st.integers(0, 9),
        calls=CALLS,
    )
    def assign(self, node, num4, num6, by_name, again, calls):
        old = [h for h in sorted(self.live) if h not in self.busy and h not in self.dirty and self.owner[h] == node]
        handle = old[again] if again < len(old) and again > 6 else f"net.{self.count}"
        self.count += 1
        families = {ip_network(POOLS[p][0]).version for p in self.pools}
        num4, num6 = num4 * (4 in families), num6 * (6 in families)
        if not self.may(node) or not num4 + num6:
            return
        self.owner[handle] = node
        names = tuple(p for p in self.pools if POOLS[p][0].count(":") == 0)[:1] if by_name and not self.disabled else ()
        wanted = request(handle, node, num4, num6, pools4=names)
        before, alone, changes = self.live.get(handle, frozenset()), not self.operations, self.changes

        def after(operation):
            if operation.error is None:
                given = frozenset(item.address for item in operation.result)
                assert sum(a.version == 4 for a in given) == num4 and sum(a.version == 6 for a in given) == num6
                if before:
                    assert given <= before or before <= given or len(given) <= len(before)
                self.live[handle] = before | given
                if self.strict and changes == self.changes:
                    assert all(self.block_with(a).node == node for a in given - before), "borrowed all the same"
                return
            self.failed(operation, handle)
            if alone and changes == self.changes and not self.crashed and isinstance(operation.error, PoolExhausted):
                self.require_exhausted(node, names, num4, num6, before)

        self.start(node, [handle], lambda a: a.assign(wanted, soon()), after, calls)

    @rule(node=st.sampled_from(NODES), pool=st.sampled_from(list(POOLS)), ordinal=st.integers(0, 7), calls=CALLS)
    def assign_address(self, node, pool, ordinal, calls):
        network = ip_network(POOLS[pool][0])
        handle = f"net.{self.count}"
        self.count += 1
        if pool not in self.pools or not self.may(node) or ordinal >= network.num_addresses:
            return
        self.owner[handle] = node
        address = network[ordinal]

        def after(operation):
            if operation.error is None:
                assert operation.result.address == address
                self.live[handle] = frozenset({address})
            else:
                self.failed(operation, handle)

        take = {"node": node}
        self.start(node, [handle], lambda a: a.assign_address(address, handle, take, node, soon()), after, calls)

    def block_with(self, address):
        return next(b for c, b in self.world.blocks().items() if c.version == address.version and address in c)

    def failed(self, operation, handle):
        """After an error nothing of the request may be left, unless it just died or giving it back failed too."""
        error = operation.error
        assert isinstance(error, CalicoError | Crashed), repr(error)
        if not isinstance(error, IPAMError):
            self.crashed = True  # claims may be half done
        if isinstance(error, Crashed) or operation.faults > 1:
            self.dirty.add(handle)
            return
        assert self.world.held().get(handle, set()) <= self.live.get(handle, frozenset())

    @rule(choice=st.integers(0, 20), by_address=st.booleans(), calls=CALLS)
    def release(self, choice, by_address, calls):
        handles = sorted((set(self.live) | self.dirty) - self.busy)
        if not handles:
            return
        handle = handles[choice % len(handles)]
        node = self.owner[handle]
        if not self.may(node):
            return
        held = self.live.pop(handle, frozenset())
        by_address = by_address and handle not in self.dirty
        self.dirty.add(handle)

        def after(operation):
            if operation.error is None:
                if not operation.disturbed:
                    assert held <= set(operation.result), (held, operation.result)
                self.dirty.discard(handle)
                assert handle not in self.world.held() and handle not in self.world.handles()
            else:
                assert isinstance(operation.error, CalicoError | Crashed), repr(operation.error)
                self.crashed = True

        if by_address:
            self.start(node, [handle], lambda a: a.release_addresses(held, soon(), handle_id=handle), after, calls)
        else:
            self.start(node, [handle], lambda a: a.release_handle(handle, soon()), after, calls)

    @rule(node=st.sampled_from(NODES), calls=CALLS)
    def collect(self, node, calls):
        """GC, which no runtime calls while it adds or deletes on that node."""
        if not self.may(node) or any(self.owner[handle] == node for handle in self.busy):
            return
        stale = {handle for handle in self.dirty if self.owner[handle] == node}
        valid = set(self.live)

        def after(operation):
            if operation.error is None:
                assert operation.result.failures == []
                assert not stale & set(self.world.held())
            else:
                self.crashed = True

        self.hosts.add(node)
        self.start(node, stale, lambda a: Janitor(a).release_stale(node, "net", valid, soon()), after, calls)

    @precondition(lambda self: self.operations)
    @rule(choice=st.integers(0, 3), calls=st.integers(1, 6), fate=st.sampled_from(["go"] * 12 + list(CRASHES)))
    def advance(self, choice, calls, fate):
        operation, end = self.operations[choice % len(self.operations)]
        for _ in range(calls - 1):
            if not operation.ended:
                operation.step()
                self.require_held()
        if not operation.ended:
            operation.step(fate)
        self.reap(operation, end)

    assign_more = assign
    release_more = release

    @precondition(lambda self: self.operations)
    @rule(choice=st.integers(0, 3))
    def complete(self, choice):
        operation, end = self.operations[choice % len(self.operations)]
        while not operation.ended:
            operation.step()
        self.reap(operation, end)

    def reap(self, operation, end):
        if operation.ended:
            self.operations = [item for item in self.operations if item[0] is not operation]
            if operation.disturbed:
                self.crashed = True
            end()

    # -- what administrators do -----------------------------------------------------------------------------------

    @rule(
        what=st.sampled_from(["time", "minute", "strict", "disable", "select", "reserve"]),
        name=st.sampled_from(list(POOLS)),
        on=st.booleans(),
        cidrs=st.lists(st.sampled_from(["10.77.0.0/31", "10.78.0.2/32", "fd00:77::/127"]), max_size=2, unique=True),
    )
    def administer(self, what, name, on, cidrs):
        name = name if name in self.pools else self.pools[0]
        self.changes += what not in ("time", "minute")
        if what in ("time", "minute"):
            self.world.now_ns += (1 if what == "time" else 61) * SECOND
        elif what == "strict":
            self.strict = on
            self.world.config(max_blocks_per_host=self.max_blocks, strict_affinity=on)
        elif what == "reserve":
            self.world.reserve(*cidrs)
            self.reserved = tuple(map(ip_network, cidrs))
        else:
            self.world.pool(name, POOLS[name][0], self.sizes[name], **self.pool_fields(what, on))
            self.disabled.discard(name)
            if what == "disable" and on:
                self.disabled.add(name)

    def pool_fields(self, what, on):
        return {"disabled": on} if what == "disable" else {"node_selector": "all()" if on else "!all()"}

    # -- what must be true ----------------------------------------------------------------------------------------

    def require_held(self):
        """After every single write."""
        if self.checked == (self.world.store.revision, self.live):
            return
        self.checked = (self.world.store.revision, dict(self.live))
        self.world.require_consistent(crashed=True)
        held = self.world.held()
        for handle, addresses in self.live.items():
            assert addresses <= held.get(handle, set()), f"{handle} lost {addresses}"
        for (one, mine), (other, theirs) in combinations(self.live.items(), 2):
            assert not mine & theirs, f"{one} and {other} both have {mine & theirs}"

    @invariant()
    def nothing_is_given_twice_or_lost(self):
        if not hasattr(self, "world"):
            return
        self.require_held()
        if self.host_lock:
            self.require_limit()
        if not self.operations:
            held = self.world.held()
            assert set(held) <= set(self.live) | self.dirty
            for handle, addresses in self.live.items():
                if handle not in self.dirty:
                    assert held[handle] == addresses
            if not self.crashed:
                self.world.require_consistent()

    def require_limit(self):
        for node in NODES:
            for name in self.pools:
                network = ip_network(POOLS[name][0])
                mine = [c for c in self.world.blocks_of(node, network.version) if c.subnet_of(network)]
                assert len(mine) <= (self.max_blocks or 20)

    def require_exhausted(self, node, names, num4, num6, before):
        """The naive search: every address of the pools, one by one. (Reclaiming may add to it, never take away.)"""
        taken = {address for addresses in self.world.held().values() for address in addresses}
        blocks = self.world.blocks()
        pools = [p for p in self.world.allocator().view.pools(soon()) if p.usable]
        pools = [p for p in pools if (p.metadata.name in names if names and p.cidr.version == 4 else True)]
        short = False
        for family, wanted in ((4, num4), (6, num6)):
            free = 0
            for pool in pools:
                if pool.cidr.version != family or (pool.node_selector == "!all()" and not names):
                    continue
                for address in pool.cidr:
                    block = next((b for c, b in blocks.items() if c.version == family and address in c), None)
                    mine = block is None or block.node == node or not self.strict
                    reserved = any(address in r for r in self.reserved if r.version == family)
                    free += mine and not reserved and address not in taken
            short |= free + sum(a.version == family for a in before) < wanted
        assert short, "there was enough"

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self):
        """Everybody deletes what they have, or the janitor does; then nodes go. Nothing may be left."""
        for operation, end in list(self.operations):
            while not operation.ended:
                operation.step()
            self.reap(operation, end)
        self.nothing_is_given_twice_or_lost()
        allocator = self.world.allocator()
        for i, handle in enumerate(sorted(set(self.live) | self.dirty)):
            if i % 2 or handle in self.dirty:
                allocator.release_handle(handle, soon())
        for node in NODES:
            Janitor(allocator, grace_s=0).release_stale(node, "net", (), soon())
        assert self.world.held() == {} and self.world.handles() == {}
        for node in NODES:
            Janitor(allocator, grace_s=0).release_node(node, soon())
        assert self.world.blocks() == {} and self.world.affinities() == {}


IPAMMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    database=None,
    phases=[Phase.generate, Phase.shrink],
)
TestIPAM = IPAMMachine.TestCase
if EXAMPLES > 300:
    TestIPAM = pytest.mark.timeout(0)(TestIPAM)
