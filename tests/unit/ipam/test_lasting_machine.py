"""Pods of a few virtual machines come, migrate and go on several nodes at once, interleaved at every store call, with
crashes and lost answers.

What a machine's pod was told stays its machine's, is nobody else's, and is released only once nobody is named any more.
"""

from __future__ import annotations

import os
import sys
from itertools import combinations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cni_calico.errors import CalicoError, PoolExhausted
from cni_calico.ipam.assign import AssignRequest
from cni_calico.ipam.lasting import LastingAddresses
from tests.deadlines import soon
from tests.unit.ipam.interleave import FATES, Crashed, Operation
from tests.unit.ipam.world import World

NODES = ("n1", "n2", "n3")
HANDLES = ("net.vmi.ns.a", "net.vmi.ns.b", "net.sts.ns.c.0")
CALLS = st.sampled_from([0, 1, 2, 3, 5, 8, 30, 30, 30])


class LastingMachine(RuleBasedStateMachine):
    """``told``: by handle and pod, the addresses that the pod was told, as long as nothing later has taken its place;
    of pods that came at the same time (``promised``), as long as none of them leaves. ``begun``: how many changes of
    owners have begun, by handle; ``under_way``: those that have not ended.
    """

    @initialize(max_commit=st.sampled_from([1, 60]), size=st.sampled_from([30, 31, 32]), both=st.booleans())
    def begin(self, max_commit, size, both):
        self.world = World(max_commit=max_commit)
        self.world.pool("four", "10.77.0.0/29", size)
        self.world.pool("six", "fd00:77::/125", size + 96)
        self.families = 2 if both else 1
        for node in NODES:
            self.world.node(node)
        self.world.config()
        self.operations = []
        self.told = {handle: {} for handle in HANDLES}
        self.promised = {handle: set() for handle in HANDLES}
        self.begun = dict.fromkeys(HANDLES, 0)
        self.under_way = {handle: set() for handle in HANDLES}
        self.leaving = dict.fromkeys(HANDLES, 0)
        self.pods = {handle: set() for handle in HANDLES}  # those whose ADD has ended: its DEL waits for that
        self.disturbed = False
        self.count = 0

    def teardown(self):
        try:
            if hasattr(self, "world") and sys.exc_info()[0] is None:
                while self.operations:
                    self.complete(0)
                self.everybody_keeps_what_it_was_told()
        finally:
            for operation, _ in getattr(self, "operations", ()):
                operation.kill()

    def start(self, handle, work, after, calls, *, leaves=False):
        """``after`` gets the operation, and whether no other pod of the handle has come at the same time."""
        operation = Operation(
            self.world.store, lambda store: work(LastingAddresses(store, lambda s: self.world.allocator(s)))
        )
        alone, number = not self.under_way[handle], self.begun[handle] + (not leaves)
        self.begun[handle] = number
        if leaves:
            self.leaving[handle] += 1
        else:
            self.under_way[handle].add(operation)

        def end():
            assert operation.error is None or isinstance(operation.error, CalicoError | Crashed), operation.error
            self.leaving[handle] -= leaves
            self.under_way[handle].discard(operation)
            after(operation, alone and self.begun[handle] == number)

        self.operations.append((operation, end))
        for _ in range(calls):
            if not operation.ended:
                operation.step()
                self.everybody_keeps_what_it_was_told()
        self.reap(operation, end)

    def attributes(self, pod, node):
        return {"node": node, "namespace": "ns", "pod": pod, "vmi-name": "vm"}

    def may(self):
        return len(self.operations) < 4

    def tell(self, handle, pod, given, *, alone):
        self.pods[handle].add(pod)
        if given and alone:
            self.told[handle][pod] = given
        elif given:
            self.told[handle] = {}
            if not self.leaving[handle]:
                self.promised[handle] |= given

    @rule(handle=st.sampled_from(HANDLES), node=st.sampled_from(NODES), calls=CALLS)
    def take(self, handle, node, calls):
        if not self.may():
            return
        self.count += 1
        pod = f"p{self.count}"
        # whoever comes as the machine's own pod takes its place
        self.told[handle] = {p: a for p, a in self.told[handle].items() if p.startswith("target")}
        wanted = AssignRequest(node, handle, self.attributes(pod, node), num4=1, num6=self.families - 1)

        def after(operation, alone):
            given = set() if operation.error else {item.address for item in operation.result}
            assert operation.error or sorted(a.version for a in given) == [4, 6][: self.families]
            self.tell(handle, pod, given, alone=alone)

        self.start(handle, lambda lasting: lasting.assign(wanted, soon()), after, calls)

    @rule(handle=st.sampled_from(HANDLES), node=st.sampled_from(NODES), calls=CALLS)
    def join(self, handle, node, calls):
        if not self.may():
            return
        self.count += 1
        pod = f"target{self.count}"
        self.told[handle] = {p: a for p, a in self.told[handle].items() if not p.startswith("target")}

        def after(operation, alone):
            given = set() if operation.error else {item.address for item in operation.result}
            if alone and given and not self.disturbed:
                for addresses in self.told[handle].values():
                    assert given == addresses, "the target shares its machine's addresses"
            self.tell(handle, pod, given, alone=alone)

        self.start(handle, lambda lasting: lasting.join(handle, self.attributes(pod, node), soon()), after, calls)

    @rule(handle=st.sampled_from(HANDLES), calls=CALLS)
    def swap(self, handle, calls):
        targets = [p for p in self.told[handle] if p.startswith("target")]
        if not targets or not self.may():
            return
        pod = targets[-1]
        was = self.told[handle].pop(pod)

        def after(operation, alone):
            if operation.error is None and operation.result and alone and not self.leaving[handle]:
                owners = LastingAddresses(self.world.store, self.world.allocator).owners(handle, soon())
                assert all(o.active["pod"] == pod for o in owners.values())
                self.told[handle] = {pod.replace("target", "came"): was}

        # it is an ordinary pod from now on, whose DEL names it as before
        self.start(handle, lambda lasting: lasting.swap(handle, "ns", pod, soon()), after, calls)

    @rule(handle=st.sampled_from(HANDLES), choice=st.integers(0, 9), is_over=st.booleans(), calls=CALLS)
    def leave(self, handle, choice, is_over, calls):
        pods = sorted(self.pods[handle])
        if not pods or not self.may():
            return
        pod = pods[choice % len(pods)]
        self.promised[handle] = set()
        self.told[handle].pop(pod, None)
        self.told[handle].pop(pod.replace("target", "came"), None)

        def after(operation, alone):
            if operation.error is None and operation.result and alone and not self.disturbed:
                assert handle not in self.world.held()

        self.start(
            handle, lambda lasting: lasting.leave(handle, "ns", pod, soon(), is_over=is_over), after, calls, leaves=True
        )

    take_again = take
    leave_again = leave

    @precondition(lambda self: self.operations)
    @rule(choice=st.integers(0, 3), calls=st.integers(1, 6), fate=st.sampled_from(["go"] * 12 + list(FATES[1:])))
    def advance(self, choice, calls, fate):
        operation, end = self.operations[choice % len(self.operations)]
        for _ in range(calls - 1):
            if not operation.ended:
                operation.step()
                self.everybody_keeps_what_it_was_told()
        if not operation.ended:
            operation.step(fate)
        self.reap(operation, end)

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
            self.disturbed |= operation.disturbed
            end()

    @invariant()
    def everybody_keeps_what_it_was_told(self):
        if not hasattr(self, "world"):
            return
        self.world.require_consistent(crashed=True)
        held = self.world.held()
        everybody = {h: self.promised[h].union(*pods.values()) for h, pods in self.told.items()}
        for handle, addresses in everybody.items():
            assert addresses <= held.get(handle, set()), f"{handle} lost {addresses - held.get(handle, set())}"
        for (one, mine), (other, theirs) in combinations(everybody.items(), 2):
            assert not mine & theirs, f"{one} and {other} both have {mine & theirs}"

    @invariant()
    def a_handle_has_one_address_of_a_family(self):
        if hasattr(self, "world") and not self.operations and not self.disturbed:
            self.world.require_consistent()
            for handle, addresses in self.world.held().items():
                families = [a.version for a in addresses]
                assert len(families) == len(set(families)), f"{handle} has {addresses}"


TestLastingMachine = LastingMachine.TestCase
TestLastingMachine.settings = settings(
    max_examples=int(os.environ.get("CALICO_MACHINE_EXAMPLES", "40")),
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


def test_a_full_pool_takes_nothing_from_a_machine():
    world = World()
    world.pool("four", "10.77.0.0/31", 31)
    world.node("n1")
    world.config()
    lasting = LastingAddresses(world.store, world.allocator)
    for name in ("a", "b"):
        lasting.assign(
            AssignRequest("n1", f"net.vmi.ns.{name}", {"node": "n1", "pod": name, "namespace": "ns"}, 1), soon()
        )
    before = world.held()
    try:
        lasting.assign(AssignRequest("n1", "net.vmi.ns.c", {"node": "n1", "pod": "c", "namespace": "ns"}, 1), soon())
        raise AssertionError("there was no address left")
    except PoolExhausted:
        assert world.held() == before
