"""Large changes in slices: whatever comes between two of them, packets meet what was there before or what is after,
and in the end the tables are those of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.log import SILENT
from cni_calico.model.keys import ResourceKey
from cni_calico.model.netfilter import Immediate, NftTable, SetLookup
from cni_calico.nodeagent.dataplane.policy import parts
from cni_calico.nodeagent.dataplane.policy.goal import Goal
from cni_calico.nodeagent.dataplane.policy.settings import FilterSettings
from cni_calico.nodeagent.dataplane.policy.tables import FILTER
from cni_calico.nodeagent.policing import ahead, shares, turns
from cni_calico.nodeagent.policing.ahead import MadeAhead
from cni_calico.nodeagent.policing.enforcer import Enforcer
from cni_calico.nodeagent.policing.turns import Turns
from cni_calico.policy.decode import reduce_record
from cni_calico.policy.graph import Graph
from tests.deadlines import soon
from tests.fakes.nftables import FakePacketFilter
from tests.unit.nodeagent.dataplane.policy.worlds import goal_of
from tests.unit.policy.cluster import NODE, graph_of, record_of

SETTINGS = FilterSettings(ipv6=False)
Named = tuple[str, str, str]  # kind, namespace, name
TIER = {"metadata": {}, "spec": {"order": 100, "defaultAction": "Deny"}}


@dataclass
class Feed:
    """What waits is decoded already."""

    pending: dict[ResourceKey, Any] = field(default_factory=dict)

    def take(self) -> tuple[dict[ResourceKey, Any], float]:
        taken, self.pending = self.pending, {}
        return taken, 0.0

    def decoded(self, _: ResourceKey, change: Any) -> Any:
        return change

    def decoding(self, _: ResourceKey, change: Any) -> Iterator[None]:
        yield
        return change


class World:
    """The rounds' calculation, with a kernel that refuses what is wrong. ``taken``: the documents in force."""

    def __init__(self) -> None:
        self.kernel = FakePacketFilter()
        self.graph = Graph(lambda endpoint: endpoint.node == NODE)
        self.goal = Goal(SETTINGS)
        self.enforcer = Enforcer(self.kernel, self.goal, SILENT)
        self.ahead = MadeAhead(self.graph, self.goal)
        self.turns = Turns(slice_s=0.0)
        self.feed: Any = Feed()
        self.versions: dict[int, tuple[Named, Any]] = {}
        self.taken: dict[Named, Any] = {}

    def put(self, name: Named, document: Any) -> None:
        key = ResourceKey(name[0], name[2], name[1])
        record = record_of(name, document)
        if record is not None:
            record = reduce_record(key, record)
            self.versions[id(record)] = name, (document, record)
        self.feed.pending[key] = record

    def round(self, *, everything: bool = False) -> list[ResourceKey]:
        taken = self.turns.take(self.feed, self.ahead, everything=everything)
        changes: dict[ResourceKey, Any] = {**taken.changes}
        for key, record in changes.items():
            self.graph.put(key, record)
            name = (key.kind, key.namespace, key.name)
            self.taken.pop(name, None)
            if record is not None:
                self.taken[name] = self.versions[id(record)][1][0]
        self.goal.update(self.graph.flush(1))
        self.enforcer.bring_about(soon())
        self.turns.charge(taken)
        return list(taken.changes)

    def one_step(self) -> dict[Any, NftTable]:
        graph = graph_of(self.taken)
        graph.flush()
        return dict(goal_of(graph.wanted(), SETTINGS).tables.of)

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(1000):
            if holds():
                return
            self.round()
        raise AssertionError("never")

    def settle(self) -> None:
        for _ in range(1000):
            self.round()
            if not self.turns and not self.feed.pending and not self.graph.is_behind:
                self.round()
                return
        raise AssertionError("never settles")


def met(table: NftTable) -> dict[str, Any]:
    """The chains and sets that packets can meet."""
    waiting = [name for name, chain in table.chains.items() if chain.hook is not None]
    found: dict[str, Any] = {}
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        chain = found[name] = table.chains[name]
        for expression in (e for rule in chain.rules for e in rule.expressions):
            if isinstance(expression, Immediate) and expression.chain:
                waiting.append(expression.chain)
            if isinstance(expression, SetLookup):
                members = table.verdicts.get(expression.name, {})
                found[f"set {expression.name}"] = members or frozenset(table.elements.get(expression.name, ()))
                waiting += [verdict.chain for verdict in members.values() if verdict.chain]
    return found


def policy(rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"tier": "default", "selector": "all()", "types": ["Ingress"], "ingress": rules}}


def endpoint(namespace: str, number: int, label: str) -> dict[str, Any]:
    spec = {
        "orchestrator": "k8s",
        "node": NODE,
        "pod": f"w{number}",
        "containerID": "c",
        "endpoint": "eth0",
        "ipNetworks": [f"10.0.0.{number}/32"],
        "profiles": [],
        "interfaceName": f"cali{number}",
    }
    metadata = {"name": f"{NODE}-k8s-w{number}-eth0", "namespace": namespace, "labels": {"x": label}}
    return {"metadata": metadata, "spec": spec}


sides = st.sampled_from(
    [
        {"selector": "x == '1'"},
        {"selector": "x == '2'"},
        {"selector": "has(x)"},
        {"namespaceSelector": "all()"},
        {"notSelector": "x == '1'"},
        {"nets": ["10.1.0.0/16", "10.3.0.0/16"]},
        {"nets": ["10.2.0.1/32"]},
        {"ports": [80, "8000:8010"]},
        {},
    ]
)
rules = st.lists(
    st.builds(
        lambda action, side: {"action": action, "protocol": "TCP", "source": side},
        st.sampled_from(["Allow", "Deny", "Pass", "Log"]),
        sides,
    ),
    max_size=9,
)
namespaces = st.sampled_from(["a", "b"])
puts = st.one_of(
    st.tuples(st.tuples(st.just("NetworkPolicy"), namespaces, st.sampled_from("pq")), st.none() | rules.map(policy)),
    st.builds(
        lambda namespace, name, label: (
            ("NetworkSet", namespace, name),
            {"metadata": {"labels": {"x": label}}, "spec": {"nets": ["10.4.0.0/16", "10.5.0.1/32"]}},
        ),
        namespaces,
        st.sampled_from("st"),
        st.sampled_from("12"),
    ),
    st.tuples(st.tuples(st.just("NetworkSet"), namespaces, st.sampled_from("st")), st.none()),
    st.builds(
        lambda number, label: (
            ("WorkloadEndpoint", "ab"[number % 2], f"{NODE}-k8s-w{number}-eth0"),
            endpoint("ab"[number % 2], number, label) if label else None,
        ),
        st.integers(1, 4),
        st.sampled_from(["1", "2", ""]),
    ),
)


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_RULES", 2)
    monkeypatch.setattr(turns, "LONG", 3)
    monkeypatch.setattr(shares, "ROUND_WEIGHT", 2)


@settings(max_examples=60)
@given(st.lists(st.one_of(puts, st.integers(1, 6)), max_size=25))
def test_any_interleaving_of_slices(steps: list[Any]) -> None:
    world = World()
    world.put(("Tier", "", "default"), TIER)
    world.round(everything=True)
    for step in [*steps, 1]:
        if not isinstance(step, int):
            world.put(*step)
            continue
        for _ in range(step):
            world.round()
            expected = world.one_step()
            for table in FILTER.values():
                assert met(world.kernel.tables[table]) == met(expected[table])
    world.settle()
    assert world.goal.tables.of == world.one_step() and world.kernel.tables == world.goal.tables.of
    assert not world.goal.chains.staged and not world.goal.problems


LARGE = policy([{"action": "Allow", "source": {"selector": f"x == '{number}'"}} for number in range(12)])


def started() -> World:
    world = World()
    world.put(("Tier", "", "default"), TIER)
    world.put(("WorkloadEndpoint", "a", f"{NODE}-k8s-w1-eth0"), endpoint("a", 1, "1"))
    world.put(("WorkloadEndpoint", "b", f"{NODE}-k8s-w2-eth0"), endpoint("b", 2, "1"))
    world.round(everything=True)
    return world


def parts_there(world: World) -> list[str]:
    return [name for name in world.kernel.tables[FILTER[4]].chains if "//" in name]


def test_others_are_served_between_two_slices_of_a_large_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "WEIGHT_S", 1e9)  # nobody pays for time
    world = started()
    world.put(("NetworkPolicy", "a", "large"), LARGE)
    slices = between = 0
    while ("NetworkPolicy", "a", "large") not in world.taken:
        world.round()
        slices += 1
        if slices % 3 == 0:
            name = ("NetworkPolicy", f"n{slices}", "p")
            world.put(name, policy([{"action": "Allow"}]))
            assert [key.namespace for key in world.round()] == [f"n{slices}"]  # in the very next round
            between += bool(parts_there(world))
    assert slices > 12 and between > 1


def test_a_large_policy_that_goes_meanwhile_leaves_nothing() -> None:
    world = started()
    before = world.one_step()
    for count in range(1, 25):
        world.put(("NetworkPolicy", "a", "large"), LARGE)
        for _ in range(count):
            world.round()
        world.put(("NetworkPolicy", "a", "large"), None)
        world.settle()
        assert world.kernel.tables == before


def test_new_versions_all_the_time_do_not_keep_a_large_policy_out() -> None:
    world = started()
    for number in range(200):
        world.put(
            ("NetworkPolicy", "a", "large"), policy([*LARGE["spec"]["ingress"], {"action": "Log"}] * (number % 2 + 1))
        )
        world.round()
        if ("NetworkPolicy", "a", "large") in world.taken:
            return
    raise AssertionError("never in force")


def test_what_a_crash_leaves_is_removed_at_the_next_start() -> None:
    world = started()
    world.put(("NetworkPolicy", "a", "large"), LARGE)
    world.until(lambda: bool(parts_there(world)))
    again = World()
    again.kernel, again.enforcer = world.kernel, Enforcer(world.kernel, again.goal, SILENT)
    for name, document in world.taken.items():
        again.put(name, document)
    again.round(everything=True)
    assert not parts_there(again) and again.kernel.tables == again.one_step()


SET = ("NetworkSet", "a", "s")


def network_set(numbers: range) -> dict[str, Any]:
    return {"metadata": {"labels": {"x": "9"}}, "spec": {"nets": [f"10.4.{i >> 4}.{i & 15}/32" for i in numbers]}}


def test_members_of_a_large_network_set_come_and_go_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "PORTION", 3)
    monkeypatch.setattr("cni_calico.nodeagent.policing.weights._MEMBERS", 1)
    world = started()
    reader = policy([{"action": "Allow", "source": {"selector": "x == '9'"}}])
    world.put(("NetworkPolicy", "a", "p"), reader)
    world.settle()

    def members() -> set[bytes]:
        [found] = [
            one
            for name, one in world.kernel.tables[FILTER[4]].elements.items()
            if name.startswith("s-") and "/" not in name
        ]
        return set(found)

    for numbers in (range(20), range(10, 40), range(12)):
        before = members()
        world.put(SET, network_set(numbers))
        seen = [before]
        for _ in range(100):
            world.round()
            seen.append(members())
            if world.taken.get(SET) == network_set(numbers):
                break
        after = {bytes((10, 4, i >> 4, i & 15)) for i in numbers}
        assert seen[-1] == after and len(seen) > 3
        for earlier, later in pairwise(seen):
            assert len(later - earlier) <= 3 and len(earlier - later) <= 3
            assert later - earlier <= after - before and earlier - later <= before - after
    world.put(SET, None)
    world.settle()
    assert members() == set()


def test_a_set_that_is_being_made_is_complete_before_any_rule_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_RULES", 4)
    monkeypatch.setattr(turns, "LONG", 8)
    monkeypatch.setattr(shares, "WEIGHT_S", 1e9)  # nobody pays for time
    world = started()
    for number in range(3, 9):
        world.put(("WorkloadEndpoint", "a", f"{NODE}-k8s-w{number}-eth0"), endpoint("a", number, str(number)))
    world.settle()
    everybody = {"action": "Allow", "source": {"selector": "has(x)", "namespaceSelector": "all()"}}
    world.put(("NetworkPolicy", "a", "large"), policy([everybody] * 9))
    name = ("NetworkPolicy", "b", "small")

    def sizes() -> list[int]:
        found = world.kernel.tables[FILTER[4]].elements
        return [len(members) for made, members in found.items() if made.startswith("s-")]

    world.until(lambda: any(0 < size < 8 for size in sizes()))
    world.put(name, policy([everybody]))
    world.until(lambda: name in world.taken)
    assert ("NetworkPolicy", "a", "large") not in world.taken
    for table in FILTER.values():
        assert met(world.kernel.tables[table]) == met(world.one_step()[table])
