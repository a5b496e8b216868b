"""Whatever happens to relays, watches and clients: a client ends up with the reduction of what the API server has.

The API server is a model: every event has a resourceVersion, and what happened is remembered until it is forgotten.
Relays lag behind it, lose their watch, and are killed and started again with a list that may be old. Clients read late
or not at all, lose their connection, and resume at any relay. They may list again only if nobody remembers.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cni_calico.datastore.kubernetes.relayed.served import BLOCKS
from cni_calico.relay.reduction import affinity_of, reduce_held_block, reduce_own_block, reduction_of
from cni_calico.relay.snapshots import render
from cni_calico.relay.topics import Interest, Topic
from cni_calico.relay.watch_cache import EXPIRED, READY, WatchCache

NODES = "/api/v1/nodes"
OWN = Topic(BLOCKS, "host:n1")
TOPICS = (Topic(NODES), Topic(BLOCKS), OWN, Topic(BLOCKS, holders=True))
Object = dict[str, Any]


def node(name: str, label: str, beat: int) -> Object:
    return {"metadata": {"name": name, "labels": {"l": label}}, "status": {"conditions": [beat]}}


def block(name: str, owner: str, beat: int) -> Object:
    held = {"handle_id": "h", "secondary": {"namespace": "a", "pod": f"p{beat % 3}"}}
    spec = {"cidr": f"10.0.{name[1:]}.0/26", "allocations": [0] + [None] * 63, "attributes": [held], "unallocated": []}
    return {
        "metadata": {"name": name},
        "spec": {**spec, **({"affinity": owner} if owner else {}), "sequenceNumber": beat},
    }


def reduced(topic: Topic, obj: Object) -> Any:
    reduce = reduce_held_block if topic.holders else reduce_own_block if topic.owner else reduction_of(topic.path)
    found = json.loads(json.dumps(reduce(obj)))
    found["metadata"].pop("resourceVersion", None)
    return found


class Api:
    def __init__(self) -> None:
        self.version = 10
        self.objects: dict[str, dict[str, Object]] = {NODES: {}, BLOCKS: {}}
        self.events: list[tuple[int, str, str, Object]] = []  # version, path, kind, object
        self.forgotten = 0

    def put(self, path: str, obj: Object) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        kind = "MODIFIED" if obj["metadata"]["name"] in self.objects[path] else "ADDED"
        self.objects[path][obj["metadata"]["name"]] = obj
        self.events.append((self.version, path, kind, obj))

    def delete(self, path: str, name: str) -> None:
        found = self.objects[path].pop(name, None)
        if found is not None:
            self.version += 1
            gone = {**found, "metadata": {**found["metadata"], "resourceVersion": str(self.version)}}
            self.events.append((self.version, path, "DELETED", gone))

    def at(self, version: int) -> dict[str, dict[str, Object]]:
        """Everything as it was."""
        found: dict[str, dict[str, Object]] = {NODES: {}, BLOCKS: {}}
        for when, path, kind, obj in self.events:
            if when <= version:
                found[path].pop(obj["metadata"]["name"], None)
                if kind != "DELETED":
                    found[path][obj["metadata"]["name"]] = obj
        return found


class RelayModel:
    """A cache, and how far its watch has come."""

    def __init__(self, api: Api, listed_at: int) -> None:
        self.api = api
        self.asked: list[tuple[str, int, int]] = []
        self.cache = WatchCache(lambda: None, lambda *asked: self.asked.append(asked), (NODES, BLOCKS))
        self.read = listed_at
        self._list(listed_at)

    def _list(self, version: int) -> None:
        for path, objects in self.api.at(version).items():
            listed = self.cache.begin_list(path)
            for obj in objects.values():
                listed.receive(obj)
            listed.finish(version)

    def relist(self) -> None:
        self.read = self.api.version
        self._list(self.read)

    def follow(self, count: int) -> None:
        pending = [event for event in self.api.events if event[0] > self.read]
        for version, path, kind, obj in pending[:count]:
            self.cache.apply(path, kind, obj)
            self.read = version

    def bookmark(self) -> None:
        if all(event[0] <= self.read for event in self.api.events):
            for path in (NODES, BLOCKS):
                self.cache.apply(path, "BOOKMARK", {"metadata": {"resourceVersion": str(self.api.version)}})
            self.read = self.api.version

    def answer(self) -> None:
        """The API server says what happened before."""
        asked, self.asked = self.asked, []
        for path, since, until in asked:
            if since < self.api.forgotten:
                self.cache.no_older(path, since)
            else:
                events = [(kind, obj) for at, p, kind, obj in self.api.events if p == path and since < at <= until]
                self.cache.continue_backwards(path, since, events)


class ClientModel:
    def __init__(self) -> None:
        self.objects: dict[Topic, dict[str, Any]] = {topic: {} for topic in TOPICS}
        self.positions = dict.fromkeys(TOPICS, 0)
        self.relay: RelayModel | None = None
        self.interest: Interest | None = None
        self.place = 0
        self.lists = 0
        self.relists = 0

    def list_at(self, relay: RelayModel, topics: tuple[Topic, ...]) -> bool:
        for topic in topics:
            if relay.cache.history(topic).position < self.positions[topic]:
                return False  # older than what it knows: a relay refuses that
        for topic in topics:
            made = render(relay.cache, topic, compressed=False)
            document = json.loads(unchunked(b"".join(made.pieces)))
            self.objects[topic] = {}
            for item in document["items"]:
                self._take(topic, item)
            self.positions[topic] = int(document["metadata"]["resourceVersion"])
        return True

    def _take(self, topic: Topic, obj: Object) -> None:
        name = obj["metadata"]["name"]
        obj["metadata"].pop("resourceVersion")
        self.objects[topic][name] = {
            field: value for field, value in obj.items() if field not in ("kind", "apiVersion")
        }

    def connect(self, relay: RelayModel) -> bool:
        """Whether it is being told what happens now."""
        self.relay = None
        for _ in range(6):
            standing = {topic: relay.cache.standing(topic, at) for topic, at in self.positions.items() if at}
            gone = tuple(topic for topic, state in standing.items() if state == EXPIRED)
            if gone:
                for topic in gone:
                    assert self.positions[topic] < relay.api.forgotten, "it had to list although it was remembered"
                self.relists += 1
                if not self.list_at(relay, gone):
                    return False
            elif all(state == READY for state in standing.values()):
                self.interest, self.place, missed = relay.cache.begin(self.positions, several=True)
                self.relay = relay
                self.take(missed)
                return True
            relay.cache.ask_older()
            relay.answer()
        return False

    def poll(self) -> None:
        if self.relay is None or self.interest is None:
            return
        data = self.relay.cache.since(self.place, self.interest)
        if data is None:
            self.relay = None
            return
        self.place = self.relay.cache.end
        self.take(data)

    def bookmark(self) -> None:
        if self.relay is not None and self.interest is not None and self.place == self.relay.cache.end:
            self.interest, data = self.relay.cache.bookmarks(self.interest)
            if data is None:
                self.relay = None
            else:
                self.take(data)

    def take(self, data: bytes) -> None:
        names = {topic.name: topic for topic in TOPICS}
        for line in filter(None, data.split(b"\n")):
            event = json.loads(line)
            topic, obj = names[event["path"]], event["object"]
            version = int(obj["metadata"]["resourceVersion"])
            assert version >= self.positions[topic], "it was told something older than what it knows"
            self.positions[topic] = version
            if event["type"] == "DELETED":
                self.objects[topic].pop(obj["metadata"]["name"], None)
            elif event["type"] != "BOOKMARK":
                self._take(topic, obj)


def unchunked(data: bytes) -> bytes:
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        out, data = out + data[:length], data[length + 2 :]
    return out


class RelayMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.api = Api()
        self.beat = 0

    @initialize(seed=st.integers(0, 3))
    def begin(self, seed: int) -> None:
        for number in range(seed):
            self.api.put(NODES, node(f"n{number}", "a", 0))
            self.api.put(BLOCKS, block(f"b{number}", "host:n1", 0))
        self.relays = [RelayModel(self.api, self.api.version) for _ in range(2)]
        self.clients = [ClientModel() for _ in range(2)]
        for client in self.clients:
            assert client.list_at(self.relays[0], TOPICS)
            assert client.connect(self.relays[0])

    @rule(name=st.sampled_from(["n1", "n2", "n3"]), label=st.sampled_from(["a", "b"]))
    def write_node(self, name: str, label: str) -> None:
        self.beat += 1
        self.api.put(NODES, node(name, label, self.beat))

    @rule(name=st.sampled_from(["b1", "b2", "b3"]), owner=st.sampled_from(["", "host:n1", "host:n2"]))
    def write_block(self, name: str, owner: str) -> None:
        self.beat += 1
        self.api.put(BLOCKS, block(name, owner, self.beat))

    @rule(which=st.sampled_from([(NODES, "n1"), (NODES, "n2"), (BLOCKS, "b1"), (BLOCKS, "b2")]))
    def delete(self, which: tuple[str, str]) -> None:
        self.api.delete(*which)

    @rule(which=st.integers(0, 1), count=st.integers(1, 6))
    def relay_follows(self, which: int, count: int) -> None:
        self.relays[which].follow(count)

    @rule(which=st.integers(0, 1))
    def relay_gets_bookmark(self, which: int) -> None:
        self.relays[which].bookmark()

    @rule(which=st.integers(0, 1))
    def relay_lists_again(self, which: int) -> None:
        self.relays[which].relist()

    @rule(which=st.integers(0, 1), back=st.integers(0, 4))
    def relay_is_killed_and_started(self, which: int, back: int) -> None:
        """Its first list may come from an API server's cache, which may be behind."""
        version = max(10, self.api.version - back)
        for client in self.clients:
            if client.relay is self.relays[which]:
                client.relay = None
        self.relays[which] = RelayModel(self.api, version)

    @rule()
    def api_server_forgets(self) -> None:
        self.api.forgotten = self.api.version

    @rule(which=st.integers(0, 1))
    def relay_forgets(self, which: int) -> None:
        """Everything but the last changes is too old."""
        for path in (NODES, BLOCKS):
            for history in self.relays[which].cache._histories[path]:
                last = len(history.changes) - 2
                history.changes = [
                    replace(change, at=-1e9 if i < last else change.at) for i, change in enumerate(history.changes)
                ]
        self.relays[which].cache.trim()

    @rule(client=st.integers(0, 1))
    def client_reads(self, client: int) -> None:
        self.clients[client].poll()

    @rule(client=st.integers(0, 1))
    def client_gets_bookmark(self, client: int) -> None:
        self.clients[client].bookmark()

    @rule(client=st.integers(0, 1))
    def client_loses_connection(self, client: int) -> None:
        self.clients[client].relay = None

    @rule(client=st.integers(0, 1), which=st.integers(0, 1))
    def client_connects(self, client: int, which: int) -> None:
        self.clients[client].connect(self.relays[which])

    @invariant()
    def what_a_client_has_was_once_true(self) -> None:
        if "clients" not in self.__dict__:
            return
        for client in self.clients:
            for topic in TOPICS:
                for name, found in client.objects[topic].items():
                    once = [e[3] for e in self.api.events if e[1] == topic.path and e[3]["metadata"]["name"] == name]
                    assert any(reduced(topic, obj) == found for obj in once)

    def teardown(self) -> None:
        if "clients" not in self.__dict__:
            return
        for relay in self.relays:
            relay.follow(1000)
        for client in self.clients:
            for _ in range(3):
                if client.relay is None and not client.connect(self.relays[0]):
                    self.relays[0].relist()
                    client.connect(self.relays[0])
                client.poll()
            assert client.relay is not None
            for topic in TOPICS:
                expected = {
                    name: reduced(topic, obj)
                    for name, obj in self.api.objects[topic.path].items()
                    if not topic.owner or affinity_of(obj) == topic.owner
                }
                assert client.objects[topic] == expected


TestRelayMachine = RelayMachine.TestCase
TestRelayMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
