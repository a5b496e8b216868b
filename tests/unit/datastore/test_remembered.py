"""What is known of a listing ends in the truth, in whatever order it arrives."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Committed, Event, Listing, Versioned, Write
from cni_calico.datastore.remembered import Kept, order_of
from cni_calico.model.keys import HandleKey, HandleList
from tests.fakes.memory_store import MemoryStore


def test_order_of_revisions() -> None:
    assert order_of(7) == 7
    assert [order_of(r) for r in ("12", "12@3,4", '9/["a"]', "", "x")] == [12, 12, 9, 0, 0]


class Still(Cache[int]):
    """Without the thread's work: the test decides in which order things arrive."""

    def _run(self) -> None:
        pass


KEYS = tuple(HandleKey(f"net.{name}") for name in ("one", "two", "three"))


CHANGES = st.lists(st.tuples(st.sampled_from(KEYS), st.booleans(), st.booleans()), min_size=1, max_size=10)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(CHANGES, st.randoms(use_true_random=False))
def test_any_order_of_arrival_ends_in_the_truth(changes, random) -> None:
    """History of one store; each commit may also be applied as ours, early or late; lists may be of any moment."""
    truth: dict = {}
    commits, lists, events = [], [Listing([], 0)], []
    for revision, (key, delete, ours) in enumerate(changes, 1):
        if delete:
            truth.pop(key, None)
            events.append(Event(key, None, revision))
            stored, write = [], Write.remove(key)
        else:
            truth[key] = Versioned(key, {"n": revision}, revision)
            events.append(Event(key, {"n": revision}, revision))
            stored, write = [truth[key]], Write.put(key, {"n": revision})
        if ours:
            commits.append((Committed(revision, stored), [write]))
        lists.append(Listing(list(truth.values()), revision))
    cache = Still(MemoryStore(), Kept(HandleList(), lambda versioned: int(versioned.value["n"])))
    at = random.randrange(len(lists))
    cache._known.replace(lists[at])
    random.shuffle(commits)
    while at < len(changes) or commits:
        step = random.choice(["event", "commit", "list"])
        if step == "commit" and commits:
            cache.apply(*commits.pop())
        elif step == "event" and at < len(changes):
            cache._known.mirror([events[at]])
            at += 1
        elif step == "list":
            at = random.randrange(at, len(lists))
            cache._known.replace(lists[at])
    assert cache.items() == truth
    assert cache.records() == {key: v.value["n"] for key, v in truth.items()}
