"""Pods, containers and nodes come and go while janitors with stale caches work, die and follow one another: nobody who
lives ever loses an address, and when everything has been seen nothing is left of what is dead.

CALICO_MACHINE_EXAMPLES=N runs N examples instead of the few that every test run can afford.
"""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cni_calico.errors import CalicoError, LeaseLost
from cni_calico.ipam.lost.reclaim import Reclaimer
from cni_calico.model.keys import HandleKey
from cni_calico.model.resources import Handle
from tests.deadlines import soon
from tests.unit.ipam.cluster import GRACE_S, LISTINGS, Cluster, Janitor
from tests.unit.ipam.interleave import FATES, Crashed, Operation
from tests.unit.ipam.world import SECOND

EXAMPLES = int(os.environ.get("CALICO_MACHINE_EXAMPLES", "50"))
NODES = st.sampled_from(["n1", "n2"])
PODS = st.sampled_from(["a", "b", "c"])
SHELVES = st.sets(st.sampled_from([*LISTINGS, "pods"]))
SECONDS = st.sampled_from([1, 30, GRACE_S // 2, GRACE_S + 1, GRACE_S + 1])


class JanitorMachine(RuleBasedStateMachine):
    """``runs``: janitors in the middle of their work, each held before its next question to the store."""

    @initialize(is_kubernetes=st.booleans())
    def begin(self, is_kubernetes):
        self.cluster = Cluster(is_kubernetes)
        self.world = self.cluster.world
        self.janitor = Janitor(self.cluster)
        self.runs: list[Operation] = []
        self.pending = None

    def teardown(self):
        try:
            if hasattr(self, "cluster") and sys.exc_info()[0] is None:
                self.finish()
        finally:
            for operation in getattr(self, "runs", ()):
                operation.kill()

    # -- what happens in the cluster --------------------------------------------------------------------------------

    @rule(name=PODS, node=NODES, num6=st.integers(0, 1), in_two=st.booleans())
    def pod_starts(self, name, node, num6, in_two):
        """A new pod, or a new sandbox of one that is there. ``in_two``: its ADD is still under way afterwards."""
        self.end_add()
        if ("ns", name) not in self.cluster.pods:
            if not self.cluster.has_node(node):
                return
            self.cluster.create_pod(name, node)
        try:
            container = self.cluster.allocate(name, num6=num6)
        except CalicoError:
            return  # no address is left
        self.pending = container
        if not in_two:
            self.end_add()

    def end_add(self):
        """An ADD ends long before any grace does."""
        container, self.pending = self.pending, None
        if container is not None and container.pod in self.cluster.pods:
            pod = self.cluster.pods[container.pod]
            if pod["spec"]["nodeName"] == container.node:
                self.cluster.record(container)

    @rule(name=PODS, with_del=st.booleans(), first=st.booleans())
    def pod_ends(self, name, with_del, first):
        self.end_add()
        mine = [c for c in self.cluster.live.values() if c.pod == ("ns", name)]
        if first:
            self.cluster.delete_pod(name)
        for container in mine:
            self.cluster.remove(container, forget=not with_del)
        if not first or not mine:
            self.cluster.delete_pod(name)

    @rule(name=PODS, node=NODES)
    def pod_is_replaced(self, name, node):
        """As a StatefulSet's: the same name, at once; the old one's DEL never comes."""
        self.end_add()
        if ("ns", name) in self.cluster.pods and self.cluster.has_node(node):
            self.cluster.delete_pod(name)
            self.pod_starts(name, node, 0, False)

    @rule(node=NODES, kind=st.sampled_from(["podman", "hand", "bare"]))
    def container_starts(self, node, kind):
        attributes = {"podman": None, "hand": {}, "bare": {"node": "n9"}}[kind]
        try:
            self.cluster.run_container("n9" if kind == "bare" else node, attributes, endpoint=kind == "podman")
        except CalicoError:
            return

    @rule(number=st.integers(0, 9), with_del=st.booleans())
    def container_ends(self, number, with_del):
        others = [c for c in self.cluster.live.values() if c.pod is None]
        if number < len(others) and with_del:
            self.cluster.remove(others[number])

    @rule(node=NODES)
    def node_goes(self, node):
        """With its pods, sooner or later, or not."""
        self.end_add()
        self.cluster.delete_node(node)

    @rule(node=NODES)
    def node_comes(self, node):
        if not self.cluster.has_node(node):
            self.cluster.create_node(node)

    @rule(node=NODES)
    def tunnel_is_looked_after(self, node):
        """What the node's agent does from time to time."""
        if self.cluster.has_node(node):
            try:
                self.cluster.take_tunnel(node)
            except CalicoError:
                return

    @rule(number=st.integers(0, 3))
    def handle_is_left(self, number):
        """Somebody died between the handle and the block."""
        blocks = sorted(self.world.blocks(), key=str)
        key = HandleKey(f"net.died{number}")
        if blocks and self.cluster.store.get(key, soon()) is None:
            self.world.put(key, Handle({blocks[0]: 1}))

    @rule(seconds=SECONDS)
    def time_passes(self, seconds):
        self.end_add()
        self.world.now_ns += seconds * SECOND

    # -- what janitors do ---------------------------------------------------------------------------------------------

    @rule(names=SHELVES)
    def caches_see(self, names):
        """Some of them; the others stay behind."""
        if names:
            self.janitor.see(*sorted(names))

    @rule()
    def another_is_elected(self):
        """The one before may still be writing: it does not know yet."""
        self.janitor = Janitor(self.cluster)

    @rule(calls=st.sampled_from([0, 1, 2, 3, 5, 8, 40]), grace_s=st.just(GRACE_S))
    def janitor_runs(self, calls, grace_s):
        if len(self.runs) >= 3:
            return
        janitor = self.janitor
        due = janitor.suspects.due(janitor.now, grace_s)

        def work(store):
            reclaimer = Reclaimer(
                store, self.cluster, is_kubernetes=self.cluster.is_kubernetes, make=self.world.allocator
            )
            return reclaimer.reclaim(due, soon())

        operation = Operation(self.cluster.store, work)
        self.runs.append(operation)
        for _ in range(calls):
            self.step(operation, "go")

    @rule(number=st.integers(0, 2), fate=st.sampled_from(FATES))
    def janitor_goes_on(self, number, fate):
        if number < len(self.runs):
            self.step(self.runs[number], fate)

    def step(self, operation, fate):
        if not operation.ended:
            operation.step(fate)
            self.cluster.require_kept()
        if operation.ended and operation in self.runs:
            self.runs.remove(operation)
            if operation.error is not None and not isinstance(operation.error, (CalicoError, Crashed)):
                raise operation.error
            for subject, _ in operation.result.kept if operation.result is not None else ():
                self.janitor.suspects.put_off(subject, self.janitor.now + 60)

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def who_lives_keeps_their_addresses(self):
        if not hasattr(self, "cluster"):
            return
        self.cluster.require_kept()
        if not self.cluster.is_kubernetes:  # there a node that comes back this very moment takes its address again
            assert set(self.cluster.tunnels.values()) <= set(self.world.held())

    def finish(self):
        self.end_add()
        while self.runs:
            self.step(self.runs[0], "go")
        self.janitor.settle(8)
        cluster = self.cluster
        assert cluster.leaked() <= self.tunnels_that_stay() | self.of_pods_elsewhere(), "something dead is left"
        assert {h for h in self.world.handles() if h.startswith("net.died")} == set()
        for block in self.world.blocks().values():
            assert block.node is None or cluster.has_node(block.node) or self.holds_in(block), block
        for node, cidr in self.world.affinities():
            assert cluster.has_node(node) or self.world.blocks()[cidr].node == node

        for node in ("n1", "n2"):
            for family in (4, 6):
                own = [b for b in self.world.blocks().values() if b.node == node and b.cidr.version == family]
                assert len(own) < 2 or not any(block.empty for block in own), "an empty block that nobody needs"

    def tunnels_that_stay(self):
        """Of nodes that exist: their agent has not looked again yet."""
        return {f"vxlan-tunnel-addr-{node}" for node in ("n1", "n2") if self.cluster.has_node(node)}

    def of_pods_elsewhere(self):
        """Without Kubernetes' name of a node, a pod of the same name on another one may be on this one."""
        if self.cluster.is_kubernetes:
            return set()
        kept = set()
        for block in self.world.blocks().values():
            for attribute in block.attributes:
                said = attribute.secondary
                pod = self.cluster.pods.get((said.get("namespace"), said.get("pod")))
                if pod is not None and pod["spec"]["nodeName"] != said["node"]:
                    kept.add(attribute.handle_id)
        return kept

    def holds_in(self, block):
        return any(attribute.secondary.get("node") == block.node for attribute in block.attributes)


class FencedStore:
    """Loses its lease at the Nth commit and everywhere after it."""

    def __init__(self, store, allowed):
        self._store, self.allowed, self.max_commit, self.identity = store, allowed, store.max_commit, store.identity
        self.round_trips = store.round_trips

    def __getattr__(self, name):
        return getattr(self._store, name)

    def commit(self, writes, deadline):
        if not self.allowed:
            raise LeaseLost("cannot write: scripted")
        self.allowed -= 1
        return self._store.commit(writes, deadline)


@pytest.mark.parametrize("allowed", range(9))
@pytest.mark.parametrize("is_kubernetes", [True, False], ids=["kubernetes", "etcd"])
def test_a_lost_lease_ends_the_work_at_once(is_kubernetes, allowed):
    cluster = Cluster(is_kubernetes)
    cluster.take_tunnel("n1")
    for name in "ab":
        cluster.create_pod(name, "n1")
        cluster.add(name, num6=1)
        cluster.delete_pod(name)
    cluster.delete_node("n1")
    janitor = Janitor(cluster)
    cluster.world.now_ns += (GRACE_S + 1) * SECOND
    fenced = FencedStore(cluster.store, allowed)
    done = len(cluster.store.commits)
    janitor.reclaimer = Reclaimer(
        fenced, cluster, is_kubernetes=is_kubernetes, make=lambda store: cluster.world.allocator(store)
    )
    try:
        janitor.run()
    except LeaseLost:
        assert not fenced.allowed
    assert len(cluster.store.commits) - done <= allowed
    after = Janitor(cluster)
    after.settle(4)
    assert not cluster.world.held() and not cluster.world.handles() and not cluster.world.affinities()


TestJanitorMachine = JanitorMachine.TestCase
TestJanitorMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
