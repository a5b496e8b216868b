"""Large network sets that get other labels, or go, do so in portions: nothing is missing, and the end is the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cni_calico.model.keys import ResourceKey
from cni_calico.model.selectors import parse_selector
from cni_calico.policy import moving, sets
from cni_calico.policy.records import Labelled
from cni_calico.policy.sets import Sets
from cni_calico.policy.sources import SelectorSource

KEYS = [ResourceKey("NetworkSet", name, "ns") for name in ("a", "b")] + [ResourceKey("GlobalNetworkSet", "a")]
SELECTORS = ["has(x)", "has(y)", "x == '1'", "!has(y)"]
LABELS = st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"))
NETS = st.integers(0, 30).map(lambda i: bytes((10, 0, 0, i)) if i % 2 else (bytes((10, i, 0, 0)), 16))


def item_of(labels: dict[str, str], members: list[object]) -> Labelled:
    addresses = tuple(one for one in members if isinstance(one, bytes))
    return Labelled(
        frozenset(labels.items()), (), addresses, tuple(one for one in members if not isinstance(one, bytes))
    )


ITEMS = st.none() | st.builds(item_of, LABELS, st.lists(NETS, unique=True, max_size=20))
CHANGES = st.lists(st.tuples(st.sampled_from(KEYS), ITEMS, st.integers(0, 4)), min_size=1, max_size=12)


class Told:
    """The sets as the flushes tell them."""

    def __init__(self) -> None:
        self.sets = Sets()
        self.members: dict[str, set[object]] = {}
        for number, text in enumerate(SELECTORS):
            self.sets.need(SelectorSource(str(number), parse_selector(text)))

    def flush(self, most_removed: int | None) -> None:
        changes = self.sets.flush(most_removed)
        for name, made in changes.made.items():
            self.members[name] = {*made.addresses, *made.nets}
        for name, change in changes.changed.items():
            added, removed = ({*one.addresses, *one.nets} for one in (change.added, change.removed))
            assert removed <= self.members[name] and not added & self.members[name]
            self.members[name] = self.members[name] - removed | added


def covered(members: set[object]) -> set[int]:
    """The addresses of NETS that are in these members, by themselves or in a network."""
    contains = (bytes((10, 0, 0, 0)), 16) in members
    return {i for i in range(1, 31, 2) if contains or bytes((10, 0, 0, i)) in members}


def matched(item: Labelled | None) -> dict[str, set[object]]:
    found = {}
    for number, text in enumerate(SELECTORS):
        if item is not None and parse_selector(text).matches(dict(item.labels)):
            found[str(number)] = {*item.addresses, *item.nets}
    return found


@pytest.fixture(scope="module", autouse=True)
def small_portions() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sets, "AT_ONCE", 3)
        patched.setattr(moving, "AT_ONCE", 3)
        patched.setattr(sets, "_LOOKED_AT_ONCE", 3)
        yield


@settings(max_examples=60, deadline=None)
@given(CHANGES)
@example(  # a network with other labels comes for its address
    [
        (KEYS[1], item_of({}, [bytes((10, 0, 0, 3))]), 1),
        (KEYS[1], item_of({"x": "1"}, [(bytes((10, 0, 0, 0)), 16), bytes((10, 0, 0, 1))]), 1),
    ]
)
@example(  # one with the same labels does, while others are still to come
    [
        (KEYS[1], item_of({}, [bytes((10, 0, 0, i)) for i in (3, 5, 7)]), 1),
        (KEYS[1], item_of({"x": "1"}, [bytes((10, 0, 0, i)) for i in (3, 5, 7)]), 1),
        (KEYS[1], item_of({"x": "1"}, [bytes((10, 0, 0, 1)), bytes((10, 0, 0, 9)), (bytes((10, 0, 0, 0)), 16)]), 1),
    ]
)
def test_the_end_is_the_same_and_what_counts_all_the_time_is_never_missing(changes) -> None:
    told, stored = Told(), dict[ResourceKey, Labelled | None]()
    told.flush(None)
    before = dict[ResourceKey, Labelled | None]()  # when everything had last moved
    since = dict[ResourceKey, list[Labelled | None]]()  # and the versions since then
    for key, item, flushes in changes:
        told.sets.set_item(key, item)
        stored[key] = item
        since.setdefault(key, [before.get(key)]).append(item)
        assert told.sets.held(key) == item
        for _ in range(flushes):
            told.flush(1)
            for versions in since.values():
                for name, members in matched(versions[0]).items():
                    kept = members.intersection(*(matched(one).get(name, set()) for one in versions))
                    assert {one for one in kept if isinstance(one, bytes)} <= told.members.get(name, set())
                    always = set.intersection(*(covered(matched(one).get(name, set())) for one in versions))
                    assert always <= covered(told.members.get(name, set()))
            if not told.sets.is_behind:
                before, since = dict(stored), {}
    for _ in range(1000):
        told.flush(1)
        if not told.sets.is_behind:
            break
    scratch = Told()
    for key, item in stored.items():
        scratch.sets.set_item(key, item)
    scratch.flush(None)
    assert told.members == scratch.members == {n: {*m.addresses, *m.nets} for n, m in told.sets.all_members().items()}


def test_each_flush_moves_a_portion_and_each_set_has_its_turn() -> None:
    told = Told()
    for i, key in enumerate(KEYS[:2]):
        told.sets.set_item(key, item_of({"x": "1"}, [bytes((10 + i, 0, 0, n)) for n in range(200)]))
    told.flush(1)
    assert len(told.members["0"]) == len(told.members["2"]) == 400
    for key in KEYS[:2]:
        told.sets.set_item(key, None)
    left = []
    while told.sets.is_behind:
        told.flush(1)
        left.append([sum(address[0] == 10 + i for address in told.members["0"]) for i in range(2)])
    assert len(left) > 100 and all(abs(one - other) <= 2 for one, other in left) and left[-1] == [0, 0]
    assert told.sets.held(KEYS[0]) is None


def test_networks_of_many_sets_come_and_go_set_by_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of adjoining networks one goes: the few that contain the others are found anew for each of the sets."""
    monkeypatch.setattr(sets, "_LOOKED_AT_ONCE", 1000)
    told, nets = Sets(), [(bytes((10, 0, i // 128, i % 128 * 2)), 31) for i in range(512)]
    for number in range(20):
        told.need(SelectorSource(str(number), parse_selector(f"has(x) || y == '{number}'")))
    told.set_item(KEYS[0], item_of({"x": "1"}, nets))
    told.flush(1)
    told.set_item(KEYS[0], item_of({"x": "1"}, nets[:100] + nets[101:]))
    told.set_item(KEYS[1], item_of({"x": "1"}, [bytes((10, 9, 9, 9))]))
    flushes = [told.flush(1)]
    assert len(flushes[0].changed) == 20  # the address waits for no networks
    while told.is_behind:
        flushes.append(told.flush(1))
    divided = [{name for name, change in one.changed.items() if change.removed.nets} for one in flushes]
    assert sum(map(len, divided)) == 20 == len(set.union(*divided)) and all(1 <= len(one) <= 3 for one in divided)


def test_whoever_changes_labels_all_the_time_leaves_no_more_than_there_is() -> None:
    """Each version has other members: what is left of the versions before goes, too."""
    told = Told()
    for version in range(100):
        members = [bytes((10, version, 0, i)) for i in range(50)]
        told.sets.set_item(KEYS[0], item_of({"x": str(version % 2)}, members))
        told.flush(1)
    assert len(told.sets._items) < 100
    told.flush(None)
    assert told.members["0"] == set(members)
