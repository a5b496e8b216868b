"""Large changes in slices: whatever comes between two of them, packets meet what was there before or what is after,
and in the end the tables are those of one step. While memory is short no version is lost, and none denies for good.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.datastore.interface import Versioned
from cni_calico.log import SILENT
from cni_calico.model.keys import ResourceKey
from cni_calico.netfilter.tables import NftTable
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.feed import ahead, shares, starting, turns
from cni_calico.nodeagent.policing.feed.ahead import MadeAhead
from cni_calico.nodeagent.policing.feed.changes import FedChange, FedRecord, Refusal, Undecoded, Unread, joined
from cni_calico.nodeagent.policing.feed.records import RecordFeed
from cni_calico.nodeagent.policing.feed.sizes import NET_BYTES
from cni_calico.nodeagent.policing.feed.turns import Turns
from cni_calico.nodeagent.policing.tables import groups, parts
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.policy import active
from cni_calico.policy.decode import reduce_record
from cni_calico.policy.graph import Graph
from cni_calico.policy.records import PolicyRecord
from cni_calico.policy.steps import Steps
from tests.deadlines import soon
from tests.fakes.nftables import FakePacketFilter
from tests.unit.nodeagent.policing.feed.test_memory import Host, key_of
from tests.unit.nodeagent.policing.feed.test_memory import policy as sized
from tests.unit.nodeagent.policing.tables.worlds import goal_of
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

    def read(self, _: ResourceKey, change: Any) -> Any:
        return change

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
        flushed = self.graph.flush(1)
        self.is_behind = flushed.facts.is_behind
        self.goal.update(flushed.changes)
        self.enforcer.bring_about(soon())
        self.turns.charge(taken)
        return list(taken.changes)

    def one_step(self) -> dict[Any, NftTable]:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(active, "MANY", 1000)  # every label set's policies are sorted anew
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
            if not self.turns and not self.feed.pending and not self.is_behind:
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
        for rule in chain.rules:
            if rule.verdict is not None and rule.verdict.chain:
                waiting.append(rule.verdict.chain)
            for looked_up in rule.lookups():
                members = table.verdicts.get(looked_up, {})
                found[f"set {looked_up}"] = members or frozenset(table.elements.get(looked_up, ()))
                waiting += [verdict.chain for verdict in members.values() if verdict.chain]
    return found


def policy(rules: list[dict[str, Any]], order: int | None = None) -> dict[str, Any]:
    spec = {"tier": "default", "selector": "all()", "types": ["Ingress"], "ingress": rules, "order": order}
    return {"metadata": {}, "spec": spec}


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
    st.tuples(
        st.tuples(st.just("NetworkPolicy"), namespaces, st.sampled_from("pqrs")),
        st.none() | st.builds(policy, rules, st.none() | st.integers(1, 2)),
    ),
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
    monkeypatch.setattr(parts, "LARGE_RULES", 2)
    monkeypatch.setattr(groups, "GROUPED_FROM", 2)
    monkeypatch.setattr(groups, "ABOUT", 2)
    monkeypatch.setattr(active, "MANY", 2)
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


def test_a_slice_makes_one_part_however_quickly_it_is_made() -> None:
    """Writing it is what takes long."""
    world = started()
    world.turns = Turns(slice_s=3600.0)
    world.put(("NetworkPolicy", "a", "large"), LARGE)
    counts = [0]
    while ("NetworkPolicy", "a", "large") not in world.taken:
        world.round()
        counts.append(sum("//" in name for table in FILTER.values() for name in world.kernel.tables[table].chains))
    assert max(after - before for before, after in pairwise(counts)) == 1 and counts[-1] > 4


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
    monkeypatch.setattr("cni_calico.nodeagent.policing.feed.weights._MEMBERS", 1)
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
    monkeypatch.setattr(parts, "LARGE_RULES", 4)
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


def test_while_anything_waits_collections_pass_over_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "WEIGHT_S", 1e9)  # nobody pays for time
    world = started()
    world.settle()
    gc.unfreeze()
    world.put(("NetworkPolicy", "b", "p"), policy([]))
    world.settle()
    assert not gc.get_freeze_count()  # nothing large: collections are left alone
    try:
        world.put(("NetworkPolicy", "a", "large"), LARGE)
        for _ in range(3):
            world.round()
        assert world.turns and gc.get_freeze_count()
        begun = weakref.ref(next(iter(world.turns._begun.values())))
        world.put(("NetworkPolicy", "a", "large"), None)
        world.settle()
        assert begun() is None  # what is given up is freed all the same
        assert not gc.get_freeze_count()  # and collections look at everything again
    finally:
        gc.unfreeze()


# -- while memory is short, and when something fails -------------------------------------------------------------------

KEY, OTHER = key_of("a"), key_of("b")
EARLIER, BEGUN, NEWER = sized("a", 1), sized("a", 12), sized("a", 13)
STAND_IN = sized("a", 2)


class LimitedWorld:
    """With a limit of memory. What is made ahead takes ten steps. ``graph``: what was taken in of ``KEY``, in order."""

    def __init__(self, path: Path, used: int = 20) -> None:
        self.host = Host(path, used)
        self.turns = Turns(self.host.guard, slice_s=0.0)
        self.pending: dict[ResourceKey, FedChange] = {}
        self.graph: list[FedRecord] = []
        self.ended: list[FedRecord] = []

    def put(self, change: FedChange, key: ResourceKey = KEY) -> None:
        self.pending[key] = joined(self.pending[key], change) if key in self.pending else change

    # -- the feed, and what is made ahead -----------------------------------------------------------------------------

    def take(self) -> tuple[dict[ResourceKey, FedChange], float]:
        taken, self.pending = self.pending, {}
        return taken, 0.0

    def read(self, _: ResourceKey, change: FedChange) -> FedChange:
        return change

    def decoded(self, _: ResourceKey, change: FedChange) -> Any:
        return change.stand_in if isinstance(change, Unread) else change

    def decoding(self, key: ResourceKey, change: FedChange) -> Steps[Any]:
        yield
        return self.decoded(key, change)

    def steps(self, key: ResourceKey, record: FedRecord) -> Iterator[bool]:
        for _ in range(10):
            yield False

    def end(self, record: FedRecord) -> None:
        self.ended.append(record)

    # -- rounds -------------------------------------------------------------------------------------------------------

    def round(self) -> None:
        taken = self.turns.take(cast(RecordFeed, self), cast(MadeAhead, self), everything=False)
        for key, record in taken.changes.items():
            if key == KEY:
                for earlier in record.first if isinstance(record, Refusal) else ():
                    assert not isinstance(earlier, Undecoded | Unread)
                    self.graph.append(earlier)
                self.graph.append(record)
        self.turns.charge(taken)

    def settle(self) -> None:
        for _ in range(100):
            self.round()
            if not self.turns and not self.pending:
                return
        raise AssertionError("never settles")


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LimitedWorld:
    monkeypatch.setattr(turns, "LONG", 50)
    monkeypatch.setattr(shares, "ROUND_WEIGHT", 500)
    return LimitedWorld(tmp_path)


def begin(limited: LimitedWorld, record: PolicyRecord = BEGUN) -> None:
    before = list(limited.graph)
    limited.put(record)
    for _ in range(3):
        limited.round()
    assert limited.graph == before and limited.turns._begun


@pytest.mark.parametrize("newer", [EARLIER, NEWER, None], ids=["small", "larger", "removed"])
def test_what_came_before_a_refusal_is_taken_after_what_was_begun(
    limited: LimitedWorld, newer: PolicyRecord | None
) -> None:
    begin(limited)
    limited.put(newer)
    limited.put(Refusal("garbage"))
    limited.settle()
    valid = [one for one in limited.graph if not isinstance(one, Refusal)]
    assert valid == [BEGUN, newer] and isinstance(limited.graph[-1], Refusal)


def test_a_refusal_of_what_was_begun_does_not_take_it_again(limited: LimitedWorld) -> None:
    begin(limited)
    limited.put(Refusal("garbage"))
    limited.settle()
    assert limited.graph == [BEGUN, Refusal("garbage")]


def test_a_refusal_is_not_admitted_at_each_slice(limited: LimitedWorld) -> None:
    large = sized("a", 100)
    begin(limited, large)
    coming = limited.host.guard._coming
    limited.put(Refusal("garbage"))
    for _ in range(5):
        limited.round()
    assert limited.host.guard._coming == coming > 0
    limited.settle()
    assert limited.graph == [large, Refusal("garbage")]


def test_a_network_set_that_there_was_no_memory_to_read_is_not_taken_for_removed(limited: LimitedWorld) -> None:
    """A policy that denies its members would let them through."""
    key, begun = ResourceKey("NetworkSet", "n", "a"), sized("b", 1)
    limited.put(Unread(100 * NET_BYTES, None), key)
    limited.put(begun)
    taken = limited.turns.take(cast(RecordFeed, limited), cast(MadeAhead, limited), everything=False)
    assert taken.changes == {KEY: begun} and limited.host.guard.take_unread_sets() == {key: 100}
    limited.put(None, key)
    taken = limited.turns.take(cast(RecordFeed, limited), cast(MadeAhead, limited), everything=False)
    assert taken.changes == {key: None} and not limited.host.guard.take_unread_sets()


def test_a_newer_version_that_is_taken_with_others_is_admitted(limited: LimitedWorld) -> None:
    begin(limited)
    limited.put(Unread(1 << 20, STAND_IN))
    limited.put(sized("b", 1), OTHER)
    limited.settle()
    assert limited.graph == [STAND_IN] and limited.host.guard.waiting() == {"a": 1}
    assert limited.host.guard.next_due() == KEY
    limited.put(NEWER)
    limited.settle()
    assert limited.graph[-1] is NEWER and not limited.host.guard.waiting()


def test_what_was_given_up_does_not_count(tmp_path: Path, limited: LimitedWorld) -> None:
    limited = LimitedWorld(tmp_path, 40)
    limited.put(EARLIER)
    limited.settle()
    held = dict(limited.host.guard._held.sizes)
    begin(limited, sized("a", 700))
    limited.put(Unread(1 << 20, STAND_IN))
    limited.put(sized("b", 1), OTHER)
    limited.settle()
    assert limited.graph == [EARLIER] and limited.host.guard._held.sizes[KEY] == held[KEY]
    assert not limited.turns._begun
    limited.put(sized("a", 710))
    limited.settle()
    assert limited.graph == [EARLIER, sized("a", 710)]


def test_what_was_begun_and_is_taken_with_others_is_not_admitted_anew(tmp_path: Path) -> None:
    limited = LimitedWorld(tmp_path, 40)
    large = sized("a", 1000)
    assert limited.turns._admitted({KEY: large}) == {KEY: large}
    limited.turns._begun[KEY] = turns._Begun(large, iter(()))
    assert limited.turns._admitted({KEY: large, OTHER: sized("b", 1)})[KEY] is large
    assert not limited.turns._begun and not limited.host.guard.waiting()


def test_nothing_stays_begun_if_a_newer_version_has_no_room(limited: LimitedWorld) -> None:
    limited.put(EARLIER)
    limited.settle()
    begin(limited)
    limited.host.use(99)
    limited.put(NEWER)
    limited.put(sized("b", 1), OTHER)
    limited.settle()
    assert limited.graph == [EARLIER] and limited.host.guard.waiting()["a"] == 1
    limited.round()
    assert not limited.turns._begun and limited.ended == [BEGUN]


def test_what_cannot_be_made_ahead_is_taken_whole(limited: LimitedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(key: ResourceKey, record: FedRecord) -> Iterator[bool]:
        yield False
        raise AssertionError(str((key, record)))

    monkeypatch.setattr(limited, "steps", steps)
    limited.put(BEGUN)
    limited.settle()
    limited.round()
    assert limited.graph == [BEGUN] and limited.ended == [BEGUN]


def test_a_large_version_before_a_refusal_is_taken_in_slices(limited: LimitedWorld) -> None:
    limited.put(BEGUN)
    limited.put(Refusal("garbage"))
    for _ in range(3):
        limited.round()
    assert not limited.graph and limited.turns._begun
    limited.put(Refusal("other garbage"))
    limited.settle()
    limited.round()
    assert limited.graph == [BEGUN, Refusal("garbage", (BEGUN,)), Refusal("other garbage")] and limited.ended == [BEGUN]


# -- the start ---------------------------------------------------------------------------------------------------------


def undecoded(selectors: int) -> Undecoded:
    rules = [{"action": "Allow", "source": {"selector": f"a == 'b{i}'"}} for i in range(selectors)]
    metadata = {"name": KEY.name, "namespace": KEY.namespace, "uid": "u"}
    spec = {"selector": "all()", "types": ["Ingress"], "ingress": rules}
    document = {"kind": KEY.kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}
    return Undecoded(Versioned(KEY, document, selectors), selectors, 0)


class StartingWorld:
    """``seen``: of each round what was taken of ``KEY``: "stand-in", the revision of what was taken whole, None."""

    def __init__(self) -> None:
        self.turns = Turns(slice_s=0.0)
        self.pending: dict[ResourceKey, FedChange] = {}
        self.seen: list[Any] = []
        self.ended: list[FedRecord] = []

    take, read, decoding = LimitedWorld.take, LimitedWorld.read, LimitedWorld.decoding
    steps, end = LimitedWorld.steps, LimitedWorld.end

    def decoded(self, _: ResourceKey, change: FedChange) -> Any:
        return change.item.revision if isinstance(change, Undecoded) else change

    def round(self, *, starting: bool, synced: bool = True) -> None:
        feed, ahead = cast(RecordFeed, self), cast(MadeAhead, self)
        taken = self.turns.take(feed, ahead, everything=starting, starting=starting, synced=synced)
        for record in taken.changes.values():
            self.seen.append("stand-in" if isinstance(record, PolicyRecord) else record)
        self.turns.charge(taken)

    def settle(self) -> list[Any]:
        for _ in range(100):
            self.round(starting=False)
            if not self.turns and not self.pending:
                return self.seen
        raise AssertionError("never settles")


def at_start(*changes: FedChange) -> StartingWorld:
    world = StartingWorld()
    for change in changes:
        world.pending[KEY] = change
        world.round(starting=True)
    return world


FITS, TOO_LARGE = undecoded(starting.START_SELECTORS), undecoded(starting.START_SELECTORS + 1)
LARGER = undecoded(starting.START_SELECTORS + 2)


def test_what_does_not_fit_into_the_start_has_a_stand_in_until_its_turn() -> None:
    world = at_start(TOO_LARGE)
    assert world.seen == ["stand-in"] and len(world.turns.problems()) == 1
    world.round(starting=True)  # tried again
    assert world.settle() == ["stand-in", TOO_LARGE.item.revision] and not world.turns.problems()


def test_nothing_large_is_taken_before_all_is_read() -> None:
    world = StartingWorld()
    world.pending[KEY] = FITS
    world.round(starting=True, synced=False)
    assert not world.seen
    world.round(starting=True)
    assert world.seen == [FITS.item.revision] and not world.turns.problems()
    assert world.settle() == [FITS.item.revision]


def test_only_the_newest_version_counts_after_the_start() -> None:
    assert at_start(TOO_LARGE, LARGER).settle() == ["stand-in", "stand-in", LARGER.item.revision]
    assert at_start(TOO_LARGE, FITS).settle() == ["stand-in", FITS.item.revision]
    assert at_start(TOO_LARGE, None).settle() == ["stand-in", None]
    assert not at_start(TOO_LARGE, None).turns.problems()


def test_what_becomes_unreadable_during_the_start_keeps_its_version_before() -> None:
    world = at_start(TOO_LARGE, Refusal("garbage"))
    assert world.seen == ["stand-in", Refusal("garbage", (TOO_LARGE,))]
    assert world.settle() == world.seen


def test_where_no_policy_is_to_be_enforced_nothing_has_a_stand_in() -> None:
    world = at_start(TOO_LARGE)
    taken = world.turns.take(cast(RecordFeed, world), cast(MadeAhead, world), everything=True, starting=False)
    assert list(taken.changes.values()) == [TOO_LARGE.item.revision] and not world.turns.problems()
