"""Which policies there is no room for in a node's packet filter: never those of a namespace that needs little."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.budget import NO_ROOM, WAITS_FOR_MEMORY, denied
from cni_calico.policy.room import EACH, RECONSIDER_S, FilterRoom, select_without_room
from cni_calico.policy.wanted import PolicyId
from tests.unit.policy.cluster import document, graph_of, record_of

SPACES, BUDGET = "abcd", 163840


def named(namespace: str, number: int = 0) -> PolicyId:
    return PolicyId("NetworkPolicy", f"n{number}", namespace)


POLICIES = st.dictionaries(
    st.builds(named, st.sampled_from(SPACES), st.integers(0, 5)), st.integers(1, 4 * EACH), max_size=20
)


@given(POLICIES, st.integers(1, 20 * EACH), st.sets(st.builds(named, st.sampled_from(SPACES), st.integers(0, 5))))
def test_a_namespace_that_needs_no_more_than_half_of_an_equal_part_has_room(
    counts: dict[PolicyId, int], total: int, held: set[PolicyId]
) -> None:
    without = select_without_room(counts, total, {}, held)
    needs = needed(counts)
    for name in without:
        assert needs[name.namespace] > max(EACH, total / len(needs) / 2)
    small = sum(min(need, EACH) for need in needs.values())
    assert sum(count for name, count in counts.items() if name not in without) <= total + small
    if sum(counts.values()) <= total:
        assert not without


def needed(counts: dict[PolicyId, int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for name, count in counts.items():
        found[name.namespace] += count
    return found


CHANGES = st.lists(st.tuples(st.sampled_from(SPACES), st.integers(0, 5), st.integers(0, 4 * EACH)), max_size=20)


@given(POLICIES, CHANGES)
def test_a_change_takes_room_only_from_those_that_need_more(
    counts: dict[PolicyId, int], changes: list[tuple[str, int, int]]
) -> None:
    room, wanted = FilterRoom(), dict(counts)
    room.total = 4 * EACH
    for name, count in counts.items():
        room.note(name, count)
    room.judge(counts.keys(), {})
    for namespace, number, count in changes:
        name, needs = named(namespace, number), needed(wanted)
        if count:
            wanted[name] = count
        else:
            wanted.pop(name, None)
        room.note(name, count or None)
        pushed = room.judge({name}, {})
        for other in pushed:
            assert other.namespace == namespace or 2 * needs[other.namespace] > count
        assert pushed <= room.without.keys() and room.without.items() <= wanted.items()
        there = {one: size for one, size in wanted.items() if one not in room.without}
        assert sum(there.values()) <= 4 * EACH + sum(min(need, EACH) for need in needed(there).values())


@given(POLICIES, CHANGES)
def test_in_the_end_nobody_goes_without_who_would_have_room(
    counts: dict[PolicyId, int], changes: list[tuple[str, int, int]]
) -> None:
    room = FilterRoom()
    room.total, now = 4 * EACH, 0.0
    for name, count in [*counts.items(), *((named(namespace, number), count) for namespace, number, count in changes)]:
        room.note(name, count or None)
        room.judge({name}, {})
    while (due := room.reconsider(now, {})) is not None:
        assert room.reconsider(now, {}) is None, "not more often than that"
        assert room.admits(due, room.without[due], {})
        room.judge({due}, {})
        assert due not in room.without
        now += RECONSIDER_S
    assert not any(room.admits(name, count, {}) for name, count in room.without.items())


def test_equals_do_not_drive_each_other_out() -> None:
    room = FilterRoom()
    room.total = 4 * EACH
    for namespace, count in (("b", 3000), ("a", 2999)):
        room.note(named(namespace), count)
        assert not room.judge({named(namespace)}, {})
    assert room.without == {named("a"): 2999}
    room.note(named("a"), 2048)
    assert room.judge({named("a")}, {}) == {named("b")}, "it needs much less now"


# -- in the graph -----------------------------------------------------------------------------------------------------


def put(graph, namespace, rules, selector="all()"):
    listed = [{"action": "Allow", "source": {"nets": [f"10.{i >> 8}.{i & 255}.1/32"]}} for i in range(rules)]
    key = ResourceKey("NetworkPolicy", "n0", namespace)
    spec = {"selector": selector, "ingress": listed}
    graph.put(key, None if not rules else record_of((key.kind, namespace, key.name), document(spec)))
    return key


def endpoints():
    spec = {"node": "here", "orchestrator": "k8s", "pod": "p", "endpoint": "eth0", "containerID": "c", "profiles": []}
    return {
        ("WorkloadEndpoint", one, f"here-k8s-{one}-eth0"): document(
            {**spec, "pod": one, "interfaceName": f"cali{one}", "ipNetworks": [f"10.0.0.{i}/32"]}
        )
        for i, one in enumerate(SPACES, 1)
    }


@pytest.fixture
def graph():
    made = graph_of(endpoints())
    made.set_budget(BUDGET, 3000)
    made.flush()
    return made


def test_the_largest_of_the_namespace_that_needs_most_denies_until_there_is_room(graph) -> None:
    put(graph, "a", 2500)
    graph.flush()
    assert not graph.room.without
    put(graph, "b", 1200)
    changes = graph.flush().changes
    assert graph.facts.over.without_room == {named("a"): 2500} and graph.facts.over.total == 3000
    deny = changes.policies[named("a")]
    assert (
        deny == denied(graph.policy(named("a")).wanted, NO_ROOM) and len(changes.policies[named("b")].ingress) == 1200
    )
    assert graph.reconsider(0.0) is None
    put(graph, "b", 0)
    graph.flush()
    assert named("a") in graph.room.without, "what is large comes back in slices"
    assert graph.reconsider(RECONSIDER_S) == ResourceKey("NetworkPolicy", "n0", "a")
    key = put(graph, "a", 2500)
    assert not graph.room.admits(named("a"), 3001, {})
    assert _ahead(graph, key) and len(graph.flush().changes.policies[named("a")].ingress) == 2500
    assert not graph.facts.over.without_room


def _ahead(graph, key) -> bool:
    return _ahead_of(graph, graph.last_valid(key))


def _ahead_of(graph, record) -> bool:
    steps = graph.make_ahead(record)
    while True:
        try:
            next(steps)
        except StopIteration as e:
            return bool(e.value)


def test_what_selects_nothing_here_takes_no_room(graph) -> None:
    put(graph, "a", 2500, "app == 'other'")
    put(graph, "b", 2500)
    graph.flush()
    assert not graph.room.without


def test_what_is_made_ahead_has_its_room_until_it_is_given_up(graph) -> None:
    put(graph, "a", 1990)
    key = put(graph, "b", 1990)
    record = graph.last_valid(key)
    graph.put(key, None)
    graph.flush()
    graph.put(key, record)
    assert not _ahead(graph, key), "a namespace with as much is there already"
    graph.put(key, None)
    small = put(graph, "c", 1024)
    record = graph.last_valid(small)
    graph.put(small, None)
    graph.flush()
    steps = graph.make_ahead(record)
    with pytest.raises(StopIteration) as done:
        next(steps)
    assert done.value.value is True
    put(graph, "d", 1010)
    graph.flush()
    assert graph.room.without.keys() == {named("a")} and graph.reconsider(0.0) is None
    graph.let_go(record.id)
    assert graph.reconsider(RECONSIDER_S) == ResourceKey("NetworkPolicy", "n0", "a")


def test_one_that_was_in_force_before_the_agent_started_is_spared_and_may_not_grow(graph) -> None:
    graph.room.stood.add(named("a"))
    put(graph, "b", 2000)
    put(graph, "a", 2500)
    graph.flush()
    assert graph.spared == {named("a"): 2500} and not graph.room.without and not graph.room.stood
    put(graph, "a", 2501)
    put(graph, "b", 2000)
    graph.flush()
    assert graph.room.without.keys() == {named("a")}


def test_those_that_were_in_force_are_spared_whatever_comes_between(graph) -> None:
    """Here the stand-in is judged once more while its policy is made ready: then nothing is reserved for that."""
    keys = [put(graph, one, 2500) for one in "ab"]
    first, second = (graph.last_valid(key) for key in keys)
    stand_ins = [replace(record, wanted=denied(record.wanted, WAITS_FOR_MEMORY)) for record in (first, second)]
    for key, record in zip(keys, stand_ins, strict=True):
        graph.put(key, record)
    graph.flush()
    graph.room.stood.update(map(named, "ab"))
    assert _ahead_of(graph, first)
    graph.put(keys[0], None)
    graph.put(keys[0], stand_ins[0])
    graph.flush()
    assert _ahead_of(graph, second)
    for key, record in zip(reversed(keys), (second, first), strict=True):
        graph.put(key, record)
        graph.flush()
    assert not graph.room.without and len(graph.spared) == 1 and not graph.room.stood


def test_what_is_deleted_was_in_force_no_more(graph) -> None:
    graph.room.stood.add(named("a"))
    key = put(graph, "a", 1)
    record = graph.last_valid(key)
    graph.put(key, replace(record, wanted=denied(record.wanted, WAITS_FOR_MEMORY)))
    graph.flush()
    assert graph.room.stood
    graph.put(key, None)
    graph.flush()
    assert not graph.room.stood
