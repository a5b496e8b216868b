"""calico-typha as a process of its own, on a real API server: probes, metrics, and how it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.kubernetes.relayed.store import RelayedStore
from cni_calico.datastore.kubernetes.relayed.targets import RelayTargets
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.deadline import Deadline
from cni_calico.model.access import RelayAccess
from cni_calico.model.keys import Key, ResourceKey, ResourceList
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.programs import RelayProcess
from tests.e2e.relays import make_certificates, relay_access
from tests.promtool import complaints, undescribed

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def own_certificates(tmp_path: Path) -> Path:
    make_certificates(tmp_path)
    return tmp_path


@pytest.fixture
def relay_process(kube: Cluster, own_certificates: Path) -> Iterator[RelayProcess]:
    found = RelayProcess(kube, own_certificates)
    yield found
    found.stop()


def following(kube: Cluster, own_certificates: Path, port: int, **times: float) -> tuple[RelayedStore, Cache[Any]]:
    store = RelayedStore(kube.access(), relay_access(own_certificates, port), lambda why: None, **times)
    cache = Cache(store, Kept(ResourceList("Node", brief=True), lambda found: dict(found.value)), cached=True)
    cache.wait_synced(Deadline.after(20))
    return store, cache


def test_probes_and_metrics_are_where_upstreams_are(
    kube: Cluster, own_certificates: Path, relay_process: RelayProcess
) -> None:
    relay_process.await_ready()
    assert relay_process.page(relay_process.health, "/liveness") == (200, "ok\n")
    store, cache = following(kube, own_certificates, relay_process.port)
    try:
        kube.create_node("n1")
        until(lambda: len(cache.items()) == 1, "the node", 30)
        text = relay_process.page(relay_process.metrics, "/metrics")[1]
        lines = text.splitlines()
        assert "typha_connections_streaming 1" in lines
        assert 'typha_cache_size{syncer="/api/v1/nodes"} 1' in lines
        assert 'calico_relay_requests_total{kind="watch"} 1' in lines
        assert undescribed(text) == set()
        # upstream's names of counters have no _total
        assert [line for line in complaints(text).splitlines() if not line.startswith("typha_")] in (
            [],
            ["exit status 3"],
        )
    finally:
        cache.stop()
        store.close()


def test_at_its_end_it_sends_its_clients_away(
    kube: Cluster, own_certificates: Path, relay_process: RelayProcess
) -> None:
    relay_process.await_ready()
    store, cache = following(kube, own_certificates, relay_process.port)
    try:
        until(lambda: store.link.used != "", "the watch", 30)
        relay_process.process.send_signal(signal.SIGTERM)
        assert relay_process.process.wait(20) == 0
        until(lambda: store.link.used == "", "the end of the watch", 30)
        assert store.lists == 1
    finally:
        cache.stop()
        store.close()


def test_killed_and_started_again_all_resume_without_listing_again(kube: Cluster, own_certificates: Path) -> None:
    """SIGKILL: nothing of the relay's is left, and what happened meanwhile only the API server knows."""
    first = RelayProcess(kube, own_certificates)
    agents = []
    try:
        first.await_ready()
        for name in ("stays", "goes"):
            kube.create_node(name)
        agents = [following(kube, own_certificates, first.port, direct_after_s=300.0) for _ in range(20)]
        until(lambda: all(len(cache.items()) == 2 and store.link.used for store, cache in agents), "the nodes", 60)
        opened = [store.link.connections for store, _ in agents]
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(20)
        kube.create_node("comes")
        kube.request("DELETE", "/api/v1/nodes/goes")
        second = RelayProcess(kube, own_certificates, first.port)
        try:
            wanted = {"stays", "comes"}
            until(
                lambda: all({key.name for key in cache.items()} == wanted for _, cache in agents), "what happened", 120
            )
            assert [store.lists for store, _ in agents] == [1] * len(agents)
            assert [store.link.connections for store, _ in agents] == [count + 1 for count in opened]
            lines = second.page(second.metrics, "/metrics")[1].splitlines()
            assert not [line for line in lines if line.startswith('calico_relay_requests_total{kind="list"}')]
            assert f"typha_connections_streaming {len(agents)}" in lines
        finally:
            second.stop()
    finally:
        first.stop()
        for _, cache in agents:
            cache.dismiss()
        for store, cache in agents:
            cache.stop()
            store.close()


class Told:
    """An agent that notes every change of the nodes that it is told of, in order."""

    def __init__(self, kube: Cluster, relays: RelayAccess) -> None:
        self.turns: list[int] = []  # of the node that stays
        self.seen: list[str] = []  # "+name" and "-name" of the others
        self.store = RelayedStore(kube.access(), relays, lambda why: None, direct_after_s=300.0)
        kept = Kept(ResourceList("Node", brief=True), lambda found: found.value["metadata"]["labels"]["turn"])
        self.cache = Cache(self.store, kept, Listeners(hand_over=self._receive, gone=self._drop), cached=True)
        self.cache.wait_synced(Deadline.after(20))

    def _receive(self, key: Key, turn: str) -> None:
        assert isinstance(key, ResourceKey)
        if key.name == "stays":
            self.turns.append(int(turn))
        else:
            self.seen.append(f"+{key.name}")

    def _drop(self, key: Key) -> None:
        assert isinstance(key, ResourceKey)
        self.seen.append(f"-{key.name}")

    def close(self) -> None:
        self.cache.stop()
        self.store.close()


def churn(kube: Cluster, stopping: threading.Event) -> tuple[int, list[str]]:
    """Changes one node over and over, and makes and deletes others; returns its last turn, and those."""
    turn, seen = 0, []
    while not stopping.wait(0.01):
        turn += 1
        patch = {"metadata": {"labels": {"turn": str(turn)}}}
        kube.request("PATCH", "/api/v1/nodes/stays", patch, content_type="application/merge-patch+json")
        if turn % 5 == 0:
            kube.create_node(f"short-{turn}", metadata={"labels": {"turn": "0"}})
            kube.request("DELETE", f"/api/v1/nodes/short-{turn}")
            seen += [f"+short-{turn}", f"-short-{turn}"]
    return turn, seen


@pytest.mark.slow
def test_a_rolling_restart_of_three_relays_loses_no_event(
    kube: Cluster, own_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Deployment does it: SIGTERM for one, which sends its agents away; the next one when it is there again."""
    kube.create_node("stays", metadata={"labels": {"turn": "0"}})
    relays = [RelayProcess(kube, own_certificates, TYPHA_SHUTDOWNTIMEOUTSECS="5") for _ in range(3)]
    ready = {relay.port for relay in relays}
    # the API server accepts no endpoint on this machine's loopback
    monkeypatch.setattr(RelayTargets, "_read_endpoints", lambda targets, deadline: [("127.0.0.1", p) for p in ready])
    access = replace(relay_access(own_certificates, 1), address="", service="calico-typha")
    agents: list[Told] = []
    stopping = threading.Event()
    try:
        for relay in relays:
            relay.await_ready()
        agents += [Told(kube, access) for _ in range(9)]
        until(lambda: all(agent.store.link.used for agent in agents), "the watches", 30)
        with ThreadPoolExecutor(1) as pool:
            changes = pool.submit(churn, kube, stopping)
            try:
                for number, relay in enumerate(relays):
                    ready.discard(relay.port)
                    relay.process.send_signal(signal.SIGTERM)
                    assert relay.process.wait(60) == 0
                    relays[number] = RelayProcess(kube, own_certificates, relay.port, TYPHA_SHUTDOWNTIMEOUTSECS="5")
                    relays[number].await_ready()
                    ready.add(relay.port)
            finally:
                stopping.set()
            last, seen = changes.result(60)
        assert last > 50
        until(lambda: all(agent.turns[-1] == last for agent in agents), "the last change", 60)
        until(lambda: all(len(agent.seen) >= len(seen) for agent in agents), "the last node", 60)
        for agent in agents:
            assert agent.turns == list(range(last + 1))
            assert agent.seen == seen
        assert [agent.store.lists for agent in agents] == [1] * len(agents)
        assert sum(agent.store.link.connections for agent in agents) > len(agents)  # agents have moved
    finally:
        for agent in agents:
            agent.close()
        for relay in relays:
            relay.stop()


def test_certificates_that_are_replaced_are_read_again(
    kube: Cluster, own_certificates: Path, relay_process: RelayProcess
) -> None:
    relay_process.await_ready()
    make_certificates(own_certificates)  # another authority
    until(lambda: "have been read again" in relay_process.log.read_text(), "the new certificates", 30)
    store, cache = following(kube, own_certificates, relay_process.port)
    cache.stop()
    store.close()


def test_what_it_cannot_use_it_says(kube: Cluster, own_certificates: Path) -> None:
    (own_certificates / "server.key").write_text("nothing")
    process = RelayProcess(kube, own_certificates)
    try:
        assert process.process.wait(30) == 1
        text = process.log.read_text()
        assert "cannot use the certificates in" in text
        assert "TYPHA_SERVERKEYFILE" in text
    finally:
        process.stop()
