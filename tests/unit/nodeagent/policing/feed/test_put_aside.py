"""Texts that are read late: whatever comes in which order, of each policy the newest valid version is in force in the
end, none in force gives way to one that cannot be read or has not been, and nobody waits for others' texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.datastore.encoding import read_document
from cni_calico.datastore.interface import Versioned, Write
from cni_calico.datastore.unread import UnreadDocument
from cni_calico.deadline import Deadline
from cni_calico.errors import CorruptRecord
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.feed import decoding, shares, turns
from cni_calico.nodeagent.policing.feed.ahead import MadeAhead
from cni_calico.nodeagent.policing.feed.changes import FedRecord, PutAside, Refusal, Undecoded
from cni_calico.nodeagent.policing.feed.records import RecordFeed
from cni_calico.nodeagent.policing.feed.turns import Turns
from cni_calico.nodeagent.policing.feed.weights import UNREAD_FROM
from cni_calico.policy.records import PolicyRecord
from tests.deadlines import until
from tests.fakes.memory_store import MemoryStore

LARGE, SMALL, WRONG, GARBAGE, GONE = "large", "small", "wrong", "garbage", "gone"
LENGTH = 80  # rules of a policy whose text is not read at once
KINDS = (LARGE, SMALL, WRONG, GARBAGE, GONE)


def policy_key(namespace: str, name: str = "p") -> ResourceKey:
    return ResourceKey("NetworkPolicy", name, namespace)


def text_of(key: ResourceKey, version: int, rules: int, selector: str = "all()") -> bytes:
    rule = {"action": "Allow", "source": {"nets": ["10.0.0.0/8"], "selector": "app == 'somebody or other, whoever'"}}
    spec = {"order": version, "selector": selector, "types": ["Ingress"], "ingress": [rule] * rules}
    metadata = {"name": key.name, "namespace": key.namespace, "uid": "u"}
    document = {"kind": key.kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}
    return json.dumps(document).encode()


def large(key: ResourceKey, version: int) -> bytes:
    return text_of(key, version, LENGTH)


class Ahead:
    """Whatever is made ahead takes three steps."""

    def steps(self, key: ResourceKey, record: FedRecord) -> Iterator[bool]:
        yield from (False, True, False)

    def end(self, record: FedRecord) -> None:
        pass


class World:
    """A feed whose watches are played, and rounds. ``taken``: of each policy what was taken in, in order: the versions'
    numbers, "refused", None for gone.
    """

    def __init__(self) -> None:
        self.feed = RecordFeed(MemoryStore(), "n1", lambda: None)
        self.feed.stop()
        self.begin()

    def begin(self) -> None:
        self.feed.take()
        self.turns = Turns(slice_s=0.0)
        self.turns.take(self.feed, cast(MadeAhead, Ahead()), everything=False)
        self.taken: dict[ResourceKey, list[Any]] = {}
        self.texts_read = 0

    def watch(self, key: ResourceKey, text: bytes | None, revision: int) -> None:
        """What a cache does with an event."""
        if text is None:
            self.feed._drop(key)
            return
        try:
            value: Any = self._unread(key, text) if len(text) >= UNREAD_FROM else read_document(key, text)
            self.feed._hand_over(key, self.feed._decoder.decode(Versioned(key, value, revision)))
        except CorruptRecord as e:
            self.feed._refuse(key, str(e))

    def _unread(self, key: ResourceKey, text: bytes) -> UnreadDocument:
        def read() -> dict[str, Any]:
            self.texts_read += 1
            return read_document(key, text)

        return UnreadDocument(len(text), read)

    def round(self) -> None:
        taken = self.turns.take(self.feed, cast(MadeAhead, Ahead()), everything=False)
        for key, record in taken.changes.items():
            for one in (*(record.first if isinstance(record, Refusal) else ()), record):
                assert not isinstance(one, PutAside)
                version = "refused" if isinstance(one, Refusal) else one
                self.taken.setdefault(key, []).append(int(one.order) if isinstance(one, PolicyRecord) else version)
        self.turns.charge(taken)

    def settle(self) -> None:
        for _ in range(10_000):
            if not self.turns:
                self.round()
                if not self.turns:
                    return
            self.round()
        raise AssertionError("never settles")


@pytest.fixture(scope="module")
def played() -> Iterator[World]:
    """What is large is made ready a rule at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "LARGE", LENGTH)
        patch.setattr(turns, "LONG", LENGTH)
        patch.setattr(shares, "ROUND_WEIGHT", 3 * LENGTH)
        yield World()


STEPS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(KINDS), st.integers(0, 3)), max_size=15)


@settings(max_examples=30, deadline=None)
@given(STEPS)
def test_any_order_of_events(played: World, steps: Sequence[tuple[int, str, int]]) -> None:
    """Of ``steps``: whose policy, what becomes of it, and how many rounds there are before the next."""
    played.begin()
    stored: dict[ResourceKey, list[tuple[int, str]]] = {}
    for version, (whose, kind, rounds) in enumerate(steps):
        key = policy_key(f"ns{whose}")
        texts = {
            LARGE: lambda key=key, version=version: large(key, version),
            SMALL: lambda key=key, version=version: text_of(key, version, 1),
            WRONG: lambda key=key, version=version: text_of(key, version, LENGTH, "app ==== "),
            GARBAGE: lambda: b"{" + b"x" * UNREAD_FROM,
            GONE: lambda: None,
        }
        played.watch(key, texts[kind](), version)
        stored.setdefault(key, []).append((version, kind))
        for _ in range(rounds):
            played.round()
    played.settle()
    for key, history in stored.items():
        taken = played.taken[key]
        version, kind = history[-1]
        assert taken[-1] == {GONE: None, WRONG: "refused", GARBAGE: "refused"}.get(kind, version)
        valid = {version for version, kind in history if kind in (LARGE, SMALL)}
        numbers = [one for one in taken if isinstance(one, int)]
        assert numbers == sorted(set(numbers)) and set(numbers) <= valid  # in their order, each once
        assert taken.count(None) <= sum(kind == GONE for _, kind in history)
        if all(kind != GONE for _, kind in history):
            assert None not in taken


def test_nobody_waits_for_the_texts_of_others(played: World) -> None:
    played.begin()
    for number in range(50):
        played.watch(policy_key(f"tenant{number}"), large(policy_key(f"tenant{number}"), 1), 1)
    assert played.texts_read == 0
    for version in range(10):
        key = policy_key("unrelated")
        before = played.texts_read
        played.watch(key, text_of(key, version, 1), version)
        for _ in range(2):  # a large one's turn, then the small ones'
            played.round()
        assert played.taken[key][-1] == version and played.texts_read <= before + 1
    played.settle()
    assert played.texts_read == 50
    assert all(played.taken[policy_key(f"tenant{number}")] == [1] for number in range(50))


def test_of_one_policys_texts_only_the_newest_is_read(played: World) -> None:
    played.begin()
    for version in range(30):
        played.watch(policy_key("a"), large(policy_key("a"), version), version)
    played.settle()
    assert played.texts_read == 1 and played.taken[policy_key("a")] == [29]


def test_a_policy_that_is_removed_does_not_wait_for_its_text(played: World) -> None:
    played.begin()
    for number in range(20):
        played.watch(policy_key(f"tenant{number}"), large(policy_key(f"tenant{number}"), 1), 1)
    played.watch(policy_key("tenant7"), None, 2)
    for _ in range(2):
        played.round()
    assert played.taken[policy_key("tenant7")] == [None] and played.texts_read <= 1


def test_what_is_written_while_one_text_is_made_ready_is_not_lost(played: World) -> None:
    """A tenant who writes without end sees his policies in force all the same."""
    played.begin()
    for version in range(100):
        played.watch(policy_key("a"), large(policy_key("a"), version), version)
        for _ in range(5):
            played.round()
    assert len(played.taken[policy_key("a")]) > 1
    played.settle()
    assert played.taken[policy_key("a")][-1] == 99


def test_whatever_reading_meets_is_a_refusal(played: World) -> None:
    """The engine's thread is everybody's."""

    def read() -> Any:
        raise AttributeError("'int' object has no attribute 'get'")

    found = played.feed.read(policy_key("a"), PutAside(Versioned(policy_key("a"), UnreadDocument(9000, read), 1), 180))
    assert isinstance(found, Refusal) and "cannot be understood: AttributeError" in found.why
    both = Refusal("later", (PutAside(Versioned(policy_key("a"), UnreadDocument(9000, read), 1), 180),))
    assert played.feed.read(policy_key("a"), both) == Refusal("later")


def test_from_a_store_to_the_turn() -> None:
    """A list is read whole, because nothing is in force before it is; what a watch brings is not read."""
    store, listed, came = MemoryStore(), policy_key("a", "listed"), policy_key("a", "came")
    store.commit([Write.put(listed, json.loads(large(listed, 1)))], Deadline.after(5))
    feed = RecordFeed(store, "n1", lambda: None)
    try:
        until(lambda: feed.synced, "all listings read")
        changes, _ = feed.take()
        assert isinstance(changes[listed], Undecoded)
        store.commit([Write.put(came, json.loads(large(came, 2)))], Deadline.after(5))
        changes = {}
        until(lambda: changes.update(feed.take()[0]) or came in changes, "the second policy")
        assert isinstance(changes[came], PutAside) and feed.count_policies() == 2
        read = feed.read(came, changes[came])
        assert isinstance(read, Undecoded) and read.item.value == json.loads(large(came, 2))
        store.plant(came, b"{" + b"x" * UNREAD_FROM)
        changes = {}
        until(lambda: changes.update(feed.take()[0]) or came in changes, "what is no record")
        assert isinstance(feed.read(came, changes[came]), Refusal) and feed.count_policies() == 2  # it exists
        store.commit([Write.remove(came)], Deadline.after(5))
        until(lambda: changes.update(feed.take()[0]) or changes[came] is None, "its removal")
        assert feed.count_policies() == 1
    finally:
        feed.stop()
