"""The recorder, step by step: what it makes of what arrives, and what it tells those who follow."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_calico.directories import FLOW_SOCKET
from cni_calico.flows.deciders import Decider, render_line
from cni_calico.flows.limits import USUAL_LIMITS, FlowLimits
from cni_calico.flows.losses import DENIED, RATE, Loss
from cni_calico.flows.names import ENDS, render_ends
from cni_calico.flows.network_sets import NETWORK_SETS, NetworkSetLine, render_set
from cni_calico.flows.query import Condition, FlowQuery, parse_query, render_query
from cni_calico.flows.recorder import DIRECTORY
from cni_calico.flows.records import BYTES
from cni_calico.flows.sums import BUCKET_S
from cni_calico.nodeagent.status import flow_metrics
from tests.fakes import stepped_recorder
from tests.fakes.stepped_recorder import NOW, SteppedRecorder, arriving_instead_of_the_kernel

OUT, IN = 1000, 1001
DECIDERS = {
    OUT: Decider("Profile", "", "kns.shop", "", False, 0, "Allow"),
    IN: Decider("NetworkPolicy", "shop", "db", "default", True, -1, "Deny"),
}


def key(sport: int, dport: int = 80, source: int = 1) -> bytes:
    return bytes((10, 0, 0, source, 10, 0, 0, 2, 6)) + sport.to_bytes(2, "big") + dport.to_bytes(2, "big")


class Stepped(SteppedRecorder):
    def connect(self, query: FlowQuery) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.root / FLOW_SOCKET))
        connection.sendall(render_query(query))
        connection.setblocking(False)
        return connection

    def said(self, connection: socket.socket) -> list[dict[str, Any]]:
        """What has come on the connection."""
        self.step()
        self.step()
        try:
            data = connection.recv(1 << 20)
        except BlockingIOError:
            return []
        return [json.loads(line) for line in data.splitlines()]


@pytest.fixture
def stepped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Stepped]]:
    """Starts a recorder, in the place of the one before."""
    arriving, started = arriving_instead_of_the_kernel(monkeypatch), list[Stepped]()
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / "numbers").write_text("".join(render_line(*one) for one in DECIDERS.items()))

    def start() -> Stepped:
        for one in started:
            one.recorder.close()
        started[:] = [Stepped(tmp_path, arriving)]
        return started[0]

    yield start
    for one in started:
        one.recorder.close()


def test_too_many_addresses_are_summed_as_their_network_set(stepped: Callable[[], Stepped]) -> None:
    """Each in the set that it is in for who talks with it; what is in none counts as its network."""
    node = stepped()
    line = NetworkSetLine({}, ((bytes((10, 0, 0, 0)), 26),))
    (node.root / NETWORK_SETS).write_bytes(render_set(("", "partners"), line))
    node.recorder._aggregates.sums._most_addresses = 1
    node.step(after_s=1)
    for source in (1, 5, 6, 70, 71):
        node.step((True, key(1000, source=source), OUT))
    found = {
        (source.kind, source.name): counts.connections
        for part in node.recorder._aggregates.read(0, 1 << 60)
        for _, source, _, counts in part
        if source is not None
    }
    assert found == {("networkset", "partners"): 2, ("network", "10.0.0.0/24"): 2}


def test_who_follows_is_told_of_a_denial_that_comes_a_step_later(stepped: Callable[[], Stepped]) -> None:
    """It left one workload, and the other one's side is heard of later; what is tried again is nothing new."""
    node = stepped()
    with node.connect(FlowQuery(follow=True)) as following:
        assert node.said(following) == []
        node.step((True, key(1000), OUT))
        node.step((False, key(1000), IN))
        told = node.said(following)
        assert [(one["verdict"], len(one["decided"])) for one in told] == [("allowed", 1), ("denied", 2)]
        node.step((True, key(1000), OUT), (False, key(1000), IN), after_s=1)
        assert node.said(following) == []


@pytest.mark.parametrize(("behind_s", "connections"), [(5.0, 2), (60.0, 1)])
def test_ports_that_are_used_again_while_there_is_always_more_to_read(
    stepped: Callable[[], Stepped], behind_s: float, connections: int
) -> None:
    """As long as the second report may be as old as the first one it may be about the same connection."""
    node = stepped()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(node.arriving, "is_behind", True)
        patched.setattr(node.arriving, "behind_s", lambda: behind_s)
        for _ in range(2):
            node.step((True, key(1000), OUT), after_s=30)
        assert node.recorder.status()["allowed"] == connections


def shown(node: Stepped, query: FlowQuery) -> list[dict[str, Any]]:
    return [one for one in node.recorder.documents(query) if one]


def test_what_is_asked_for_is_shown_oldest_first(stepped: Callable[[], Stepped]) -> None:
    node = stepped()
    for begin in range(0, 1200, 150):
        node.step(*((True, key(1000 + i, 80 + i % 3), OUT) for i in range(begin, begin + 150)), after_s=1)
    ports = [one["source"]["port"] for one in shown(node, FlowQuery())]
    assert ports == list(range(1000, 2200))
    to_81 = (Condition("port", ("81",)),)
    assert [one["source"]["port"] for one in shown(node, FlowQuery(to_81, last=2))] == [2195, 2198]
    assert [one["source"]["port"] for one in shown(node, FlowQuery(to_81, last=0))] == []
    assert len(shown(node, FlowQuery(to_81, last=1000))) == 400
    assert [one["source"]["port"] for one in shown(node, FlowQuery(to_81, first=3))] == [1001, 1004, 1007]
    assert shown(node, FlowQuery(first=0)) == [] and len(shown(node, FlowQuery(first=700))) == 700
    since = shown(node, FlowQuery(since=NOW + 2, until=NOW + 3))
    assert [one["source"]["port"] for one in since] == list(range(1150, 1450))
    assert shown(stepped(), FlowQuery(last=1, until=NOW + 3))[0]["source"]["port"] == 1449, "a new one shows it, too"


def test_losses_are_told_for_what_is_shown(stepped: Callable[[], Stepped]) -> None:
    node = stepped()
    node.recorder.losses.add(Loss(NOW - 900, NOW - 900, DENIED, RATE, 5))
    node.step((True, key(1000), OUT))
    node.step((True, key(1001), OUT), after_s=100)
    for last, losses in ((1, 0), (2, 0), (3, 1), (None, 1)):
        with node.connect(FlowQuery(last=last)) as asking:
            said = node.said(asking)
            assert len(said[:-1]) == min(last or 2, 2) and len(said[-1]["lost"]) == losses
    with node.connect(FlowQuery(since=NOW - 1000, until=NOW - 800)) as asking:
        assert [len(one["lost"]) for one in node.said(asking)] == [1]


def test_sums_reach_beyond_the_ring(stepped: Callable[[], Stepped], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of an earlier recorder, and each connection is in one, wherever the ring begins."""
    monkeypatch.setattr(stepped_recorder, "RING_BYTES", 4096 + 100 * BYTES)
    node = stepped()
    for i in range(15):
        flows = ((True, key(1000 + 30 * i + j, 80 + j % 2), OUT) for j in range(30))
        node.step(*flows, *((False, key(1000 + 30 * i + j, 80), IN) for j in (0, 2, 4)), after_s=180)
        if i == 6:
            now = node.now
            node = stepped()
            node.now = now

    def asked(**given: Any) -> dict[tuple[str, int], int]:
        documents = shown(node, FlowQuery(aggregate=True, **given))
        return {(one["verdict"], one["destination"]["port"]): one["connections"] for one in documents}

    assert len(shown(node, FlowQuery())) == 100
    assert asked() == {("allowed", 80): 180, ("allowed", 81): 225, ("denied", 80): 45}
    assert asked(conditions=(Condition("verdict", ("denied",)),)) == {("denied", 80): 45}
    assert asked(conditions=(Condition("port", ("81",)),), until=NOW - 300) == {}
    for since in range(int(NOW) // BUCKET_S * BUCKET_S, int(node.now), BUCKET_S):
        assert sum(asked(since=since).values()) == sum(30 for i in range(1, 16) if NOW + 180 * i >= since), since
    (one,) = shown(node, FlowQuery((Condition("verdict", ("denied",)),), aggregate=True))
    assert one["packets"] == {"in": 45, "out": 0} and one["ended"] and one["decided"][-1]["endOfTier"]
    with node.connect(FlowQuery(aggregate=True)) as asking:
        said = node.said(asking)
        assert [one["connections"] for one in said[:-1]] == [225, 180, 45] and said[-1]["end"]
    status = node.recorder.status()
    assert (
        status["store_bytes"] > 0
        and status["oldest_sums"] == (NOW + 180) // BUCKET_S * BUCKET_S
        and not status["troubles"]
    )


def test_without_its_file_sums_are_those_of_the_ring(stepped: Callable[[], Stepped], tmp_path: Path) -> None:
    (tmp_path / DIRECTORY / "flows.db").mkdir()
    (tmp_path / DIRECTORY / "flows.db.bad").mkdir()
    (tmp_path / DIRECTORY / "flows.db.bad" / "full").touch()
    node = stepped()
    node.step((True, key(1000), OUT), (True, key(1001), OUT))
    assert [one["connections"] for one in shown(node, FlowQuery(aggregate=True))] == [2]
    (trouble,) = node.recorder.status()["troubles"]
    assert "in memory" in trouble and "flows.db" in trouble


def test_a_question_about_any_time_is_answered(stepped: Callable[[], Stepped]) -> None:
    node = stepped()
    node.step((True, key(1000), OUT))
    for since in (None, -1e11, 0.0, 1e11):
        for until in (None, -1e11, 0.0, 1e11):
            for aggregate in (False, True):
                query = parse_query(render_query(FlowQuery(since=since, until=until, aggregate=aggregate)))
                assert len(shown(node, query)) == (since != 1e11 and until in (None, 1e11))


def test_the_status_has_what_metrics_are_made_of(
    stepped: Callable[[], Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = stepped().recorder.status()
    monkeypatch.setattr(flow_metrics, "ask_recorder", lambda run_dir: said)
    assert {family.name for family in flow_metrics.collect_flows("")} >= {
        "calico_flows_live",
        "calico_flows_store_bytes",
    }


def test_what_the_agent_allows_counts_from_the_next_step_on(stepped: Callable[[], Stepped]) -> None:
    """What is followed no more is said to be."""
    node = stepped()
    assert node.arriving.limits == USUAL_LIMITS
    node.step(*[(True, key(port), OUT) for port in range(20)])
    status = node.recorder.status()
    assert (status["live"], status["unfollowed"]) == (20, 0)
    (node.root / ENDS).write_bytes(render_ends("n1", [], limits=FlowLimits(300, 5)))
    node.step()
    status = node.recorder.status()
    assert node.arriving.limits == FlowLimits(300, 5) and node.arriving.limits.denied_rate == 75
    assert (status["live"], status["unfollowed"]) == (5, 15)
    node.step(*[(True, key(port), OUT) for port in range(20, 30)])
    assert node.recorder.status()["live"] == 5
    (node.root / ENDS).write_bytes(render_ends("n1", []))
    node.step(*[(True, key(port), OUT) for port in range(40, 50)])
    assert node.arriving.limits == USUAL_LIMITS and node.recorder.status()["live"] == 15


def test_who_records_only_what_is_denied_rests_until_there_is_something_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving, pauses = arriving_instead_of_the_kernel(monkeypatch), list[float]()
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / "numbers").write_text("".join(render_line(*one) for one in DECIDERS.items()))
    node = Stepped(tmp_path, arriving, allowed=False)
    server = node.recorder._server
    look = server.wait_for_anything

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        if heard := look(0):
            return heard
        node.now += seconds
        return False

    monkeypatch.setattr(server, "wait_for_anything", pause)
    try:
        for _ in range(4):
            node.step()
        assert min(pauses[-2:]) >= 15, "a few times in a minute"
        del pauses[:]
        for port in (1, 2):
            node.step((False, key(port), IN))
        for _ in range(4):
            node.step()
        assert pauses[0] >= 15 and 5 < pauses[1] <= 10, "until the sums are due"
        assert min(pauses[2:]) >= 15, "they are written"
        asking = node.connect(FlowQuery())
        assert [one.get("verdict") for one in node.said(asking)] == ["denied", "denied", None], "at once"
        asking.close()
        (error,) = node.said(node.connect(FlowQuery(staged=True)))
        assert "FELIX_FLOWS is Enabled" in error["error"]
    finally:
        node.recorder.close()
