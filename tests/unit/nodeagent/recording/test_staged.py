"""What the recorder is told of the rules as staged policies would make them, through the messages that it gets."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from cni_calico.flows.judging.encoding import AgentMessage, Messages
from cni_calico.flows.judging.known import KnownRules
from cni_calico.log import Log
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.recording.staged import MOST_STAGED, StagedRules
from cni_calico.policy.decode import decode_record
from cni_calico.policy.flushed import OtherNeeds
from cni_calico.policy.graph import Graph
from cni_calico.policy.staged import read_staged
from tests.unit.ctl.policy.shop import pods, policy

WEB, DB, CACHE = (bytes((10, 65, 0, number)) for number in (1, 3, 4))
STAGED = ResourceKey("StagedNetworkPolicy", "database", "shop")
ENFORCED = ResourceKey("NetworkPolicy", "database", "shop")
PROFILE = {"spec": {"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]}}


def document(key: ResourceKey, made: dict[str, Any]) -> dict[str, Any]:
    metadata = {**made.get("metadata", {}), "name": key.name}
    return {
        **made,
        "kind": key.kind,
        "metadata": {**metadata, "namespace": key.namespace} if key.namespace else metadata,
    }


class Agent:
    """The engine, the follower of staged policies, the keeper and the recorder in one thread."""

    def __init__(self, root: Path) -> None:
        self.woken = 0
        self.troubles: dict[str, str] = {}
        log = Log("info", str(root / "log"), stderr=False)
        self.rules = StagedRules("n1", log, self.wake, self.troubles.__setitem__)
        self.graph = Graph(lambda endpoint: endpoint.node == "n1")
        self.known, self.messages, self.heard = KnownRules(), Messages(), list[AgentMessage]()
        self.put(ResourceKey("Profile", "kns.shop"), document(ResourceKey("Profile", "kns.shop"), PROFILE))
        for made in pods():
            self.put(ResourceKey("WorkloadEndpoint", made["metadata"]["name"], "shop"), made)
        self.put(ENFORCED, policy("database", "app == 'db'", [("app == 'web'", [5432])]))

    def wake(self) -> None:
        self.woken += 1

    def put(self, key: ResourceKey, made: dict[str, Any] | None) -> None:
        record = None if made is None else decode_record(key, document(key, made))[0]
        if self.rules.hears:
            self.rules.put(key, record)
        self.graph.put(key, record)

    def stage(self, peers: list[tuple[str, list[int]]], key: ResourceKey = STAGED, **spec: Any) -> None:
        made = policy(key.name, "app == 'db'", peers)
        self.rules.stage(key, read_staged(key, document(key, {**made, "spec": {**made["spec"], **spec}})))

    def go_on(self, *, anew: bool = False) -> int:
        """Returns how many messages there were."""
        if self.rules.wants_all:
            self.graph.flush()
            self.rules.begin(self.graph.records())
        count = 0
        for data in self.rules.go_on(anew=anew) or ():
            self.messages.put(data)
            message = self.messages.take()
            assert message is not None and message.staged
            self.known.receive(message.kind, message.changes, 0.0)
            self.heard.append(message)
            count += 1
        return count

    def allows(self, source: bytes, port: int) -> bool:
        asked = self.known.workload(source, DB, 6, ingress=True)
        assert asked is not None and self.known.ready
        decision = asked.cell.find(port, 1).decision
        assert decision is not None
        return decision.verdict == "Allow"


@pytest.fixture
def told(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def test_without_staged_policies_nothing_is_kept(told: Agent) -> None:
    assert told.go_on() == 0 and not told.rules.hears and told.woken == 0
    assert told.go_on(anew=True) == 1 and not told.known.ready


def test_the_rules_are_as_they_would_be(told: Agent) -> None:
    told.stage([("app == 'cache'", [5432])])
    assert told.go_on() == 0 and told.woken == 1  # the engine has to be asked first
    assert told.go_on() > 2
    assert (told.allows(WEB, 5432), told.allows(CACHE, 5432)) == (False, True)
    assert told.rules.needs == OtherNeeds(endpoints=True, services=False)
    names = [name for message in told.heard for name in message.names]
    assert [(str(name.policy), name.kind) for name in names] == [("NetworkPolicy shop/database", "StagedNetworkPolicy")]
    told.put(ENFORCED, policy("database", "app == 'db'", [("all()", [1])]))  # it stands in its place
    assert told.go_on() == 0
    told.stage([], stagedAction="Delete", selector="", ingress=[], types=[])
    assert told.go_on() and told.allows(WEB, 80)  # the profile allows everything
    told.rules.stage(STAGED, None)
    assert told.go_on() == 1 and not told.known.ready and not told.rules.hears
    assert told.rules.needs == OtherNeeds()


def test_changes_are_told_as_changes_and_all_of_it_to_another_recorder(told: Agent) -> None:
    told.stage([("app == 'cache'", [5432])])
    told.go_on()
    whole = told.go_on()
    told.put(ResourceKey("NetworkPolicy", "other", "shop"), policy("other", "app == 'db'", [("app == 'web'", [7])]))
    assert 0 < told.go_on() < whole and told.allows(WEB, 7)
    told.known = KnownRules()
    assert told.go_on(anew=True) >= whole and told.allows(WEB, 7)
    assert told.go_on() == 0


def test_the_engine_may_begin_anew_at_any_moment(told: Agent) -> None:
    random = Random(7)
    told.stage([("app == 'cache'", [5432])])
    other = ResourceKey("NetworkPolicy", "other", "shop")
    for _ in range(60):
        match random.randrange(5):
            case 0:
                told.rules.forget()
            case 1:
                told.put(other, None)
            case 2:
                told.put(other, policy("other", "app == 'db'", [("app == 'web'", [random.choice((7, 8))])]))
            case 3:
                told.stage([("app == 'cache'", [random.choice((5432, 5433))])])
            case _:
                told.go_on(anew=random.random() < 0.2)
    told.stage([("app == 'cache'", [5432])])
    told.put(other, policy("other", "app == 'db'", [("app == 'web'", [7])]))
    for _ in range(3):
        told.go_on()
    assert [told.allows(CACHE, 5432), told.allows(WEB, 7), told.allows(WEB, 8)] == [True, True, False]


@pytest.mark.parametrize("spec", [{"selector": "app =="}, {"ingress": [{"action": "Explode"}]}])
def test_one_that_cannot_be_used_is_said_and_counts_as_absent(told: Agent, spec: dict[str, Any]) -> None:
    told.stage([("app == 'cache'", [5432])], **spec)
    other = ResourceKey("StagedNetworkPolicy", "more", "shop")
    told.stage([("app == 'cache'", [9])], key=other)
    for _ in range(3):
        told.go_on()
    assert (told.allows(WEB, 5432), told.allows(CACHE, 9), told.allows(CACHE, 5432)) == (True, True, False)
    assert "StagedNetworkPolicy shop/database is left out" in told.troubles["staged policies"]
    told.rules.stage(other, None)
    for _ in range(2):
        told.go_on()
    assert not told.rules.hears and not told.known.ready  # none that can be used is as none
    told.rules.stage(STAGED, None)
    told.go_on()
    assert told.troubles["staged policies"] == ""


def test_any_number_of_them_is_bounded(told: Agent) -> None:
    for number in range(MOST_STAGED + 5):
        told.stage([], key=ResourceKey("StagedNetworkPolicy", f"s{number:04}", "shop"))
    told.go_on()
    told.go_on()
    assert sum(len(message.names) for message in told.heard) == MOST_STAGED
    assert f"only {MOST_STAGED} are looked at" in told.troubles["staged policies"]


def test_many_of_one_namespace_leave_others_theirs(told: Agent) -> None:
    for number in range(MOST_STAGED + 5):
        told.stage([], key=ResourceKey("StagedNetworkPolicy", f"s{number:04}", "another"))
    last = ResourceKey("StagedNetworkPolicy", "z", "shop")
    told.stage([], key=last)
    told.go_on()
    told.go_on()
    names = [one.policy for message in told.heard for one in message.names]
    assert len(names) == MOST_STAGED and [one.name for one in names if one.namespace == "shop"] == [last.name]


def test_what_goes_wrong_ends_nothing_but_this(told: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    told.stage([("app == 'cache'", [5432])])
    told.go_on()
    told.go_on()
    assert told.known.ready
    with monkeypatch.context() as broken:
        broken.setattr(Graph, "put", lambda *_: 1 // 0)
        told.rules.put(ResourceKey("NetworkPolicy", "other", "shop"), None)
        assert told.go_on() == 1 and not told.known.ready
    assert "cannot be worked out: ZeroDivisionError" in told.troubles["staged policies"]
    assert told.go_on() == 0 and not told.rules.hears and not told.rules.wants_all
    told.stage([("app == 'cache'", [5432])])  # it is tried again
    for _ in range(3):
        told.go_on()
    assert told.known.ready and told.allows(CACHE, 5432) and told.troubles["staged policies"] == ""
