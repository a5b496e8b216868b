"""Shares against plain order: the newest of each record wins, none overtakes in its namespace, none starves."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.feed.shares import GLOBAL, ROUND_WEIGHT, SMALL_WEIGHT, Shares, share_of

NAMESPACES = ("", "a", "b", "c")


@dataclass(frozen=True)
class Change:
    number: int
    weight: int
    follows: bool = False
    joined: tuple[int, ...] = ()


def _shares() -> Shares[Change]:
    def join(before: Change, after: Change) -> Change:
        return Change(after.number, after.weight, after.follows, (*before.joined, before.number))

    return Shares(join, lambda change: change.weight, lambda change: change.follows)


def _key(name: int, namespace: str) -> ResourceKey:
    return ResourceKey("NetworkPolicy" if namespace else "GlobalNetworkPolicy", f"p{name}", namespace)


put = st.tuples(
    st.integers(0, 3),
    st.sampled_from(NAMESPACES),
    st.sampled_from((1, 1, 5, SMALL_WEIGHT + 1, ROUND_WEIGHT // 2, ROUND_WEIGHT + 1, 10 * ROUND_WEIGHT)),
    st.booleans(),
)
rounds = st.floats(0, 3)  # what it cost really, in seconds


@settings(max_examples=300)
@given(st.lists(st.one_of(put, rounds), max_size=60))
def test_any_order_of_changes_and_rounds(steps: list[tuple[int, str, int, bool] | float]) -> None:
    shares = _shares()
    newest: dict[ResourceKey, int] = {}
    seen: dict[ResourceKey, int] = {}
    last: dict[str, int] = {}
    first_waiting: dict[ResourceKey, int] = {}
    count = 0

    def take(cost: float) -> None:
        taken = shares.take()
        assert bool(taken.changes) == bool(first_waiting)
        for key, change in taken.changes.items():
            place = first_waiting.pop(key)
            name = share_of(key)
            # nothing of its own namespace that came before is left behind
            assert not [at for other, at in first_waiting.items() if share_of(other) == name and at < place]
            assert last.get(name, 0) < place
            last[name] = place
            if change.follows:
                assert not [at for other, at in first_waiting.items() if share_of(other) == GLOBAL and at < place]
            seen[key] = change.number
            assert all(earlier < change.number for earlier in change.joined)
        assert sum(taken.weights.values()) <= ROUND_WEIGHT or len(taken.changes) == 1
        shares.charge(taken.weights, cost)

    for step in steps:
        if isinstance(step, float):
            take(step)
            continue
        name, namespace, weight, follows = step
        count += 1
        key = _key(name, namespace)
        newest[key] = count
        first_waiting.setdefault(key, count)
        shares.put(key, Change(count, weight, follows), float(count))
    for _ in range(count):
        take(0.0)
    assert seen == newest and not first_waiting


def test_a_small_namespace_does_not_wait_for_large_ones() -> None:
    """Fifty tenants with twenty large policies each; another's is in the next round, whatever the others have cost."""
    shares = _shares()
    for tenant in range(50):
        for number in range(20):
            shares.put(_key(number, f"t{tenant}"), Change(number, 40 * ROUND_WEIGHT), 0.0)
    for number in range(100):
        taken = shares.take()
        assert len(taken.changes) == 1
        shares.charge(taken.weights, 2.0)
        if number % 10 == 5:
            shares.put(_key(number, "other"), Change(number, 10), 1.0)
            taken = shares.take()
            assert list(taken.changes) == [_key(number, "other")]
            shares.charge(taken.weights, 0.005)


def test_what_changes_all_the_time_starves_nobody() -> None:
    shares = _shares()
    shares.put(_key(0, "large"), Change(0, 10 * ROUND_WEIGHT), 0.0)
    rounds = 0
    while True:
        for number in range(3):  # new namespaces without end
            shares.put(_key(0, f"n{rounds}-{number}"), Change(0, 100), 0.0)
        taken = shares.take()
        shares.charge(taken.weights, 0.0)
        if _key(0, "large") in taken.changes:
            break
        rounds += 1
        assert rounds < 1000


def test_tenants_get_equal_parts() -> None:
    shares, turns = _shares(), {"a": 0, "b": 0}
    for number in range(100):
        for name in turns:
            shares.put(_key(number, name), Change(number, ROUND_WEIGHT), 0.0)
    for _ in range(60):
        taken = shares.take()
        (name,) = taken.weights
        turns[name] += 1
        shares.charge(taken.weights, 0.9 if name == "a" else 0.3)  # what a costs is three times what it weighs
    assert 2 <= turns["b"] / turns["a"] <= 4


def test_what_is_begun_is_finished_before_others_as_large_are_begun() -> None:
    shares = _shares()
    for tenant in range(5):
        shares.put(_key(0, f"t{tenant}"), Change(tenant, 20 * ROUND_WEIGHT), 0.0)
    served = []
    for _ in range(5):
        for part in range(10):
            taken = shares.take()
            shares.pay_by_time(taken)
            (name,) = taken.weights
            served.append(name)
            if part < 9:
                shares.give_back(taken)
            shares.charge({name: 1}, 0.1)
    assert served == [f"t{number // 10}" for number in range(50)]


def test_small_changes_come_after_each_slice_however_long_large_ones_have_waited() -> None:
    """Those of namespaces that have cost nothing yet while one after the other was made."""
    shares = _shares()
    for number in range(20):
        shares.put(_key(0, f"large{number}"), Change(0, 30 * ROUND_WEIGHT), 0.0)
    left = {f"large{number}": 100 for number in range(20)}  # slices
    turns = waited = 0
    while left:
        if not waited:
            shares.put(_key(0, "small"), Change(0, 1), 0.0)
        taken = shares.take()
        (name,) = taken.weights
        waited = 0 if name == "small" else waited + 1
        assert waited <= 1
        if name != "small":
            shares.pay_by_time(taken)
            left[name] -= 1
            if left[name]:
                shares.give_back(taken)
            else:
                del left[name]
        shares.charge(dict.fromkeys(taken.weights, 1), 0.05)
        turns += 1
    assert turns < 3 * 20 * 100


def test_whose_a_record_is() -> None:
    for kind, name, namespace, share in (
        ("NetworkPolicy", "p", "a", "a"),
        ("GlobalNetworkPolicy", "p", "", GLOBAL),
        ("Profile", "kns.a", "", "a"),
        ("Profile", "ksa.a.default", "", "a"),
        ("Profile", "mine", "", GLOBAL),
        ("WorkloadEndpoint", "n1-k8s-p-eth0", "a", "a"),
    ):
        assert share_of(ResourceKey(kind, name, namespace)) == share
