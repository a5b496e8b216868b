"""The recorder with a collector: what it exports of what it records, and when; nothing of it holds recording up."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cni_calico.flows.deciders import Decider, render_line
from cni_calico.flows.elsewhere import ELSEWHERE, EndElsewhere, render_end
from cni_calico.flows.export.listener import FlowListener
from cni_calico.flows.export.messages import decode_update
from cni_calico.flows.export.wanted import EXPORT, SOCKET, ExportedEnd, Target, render_export
from cni_calico.flows.judging.encoding import StagedName, render_staged, render_whole
from cni_calico.flows.names import ENDS, AddressedEnd, EndName, render_ends
from cni_calico.flows.recorder import DIRECTORY
from cni_calico.kernel.netlink.ended import TrackedConnection
from cni_calico.kernel.ways import KernelWays
from tests.deadlines import until
from tests.fakes.goldmane import FakeCollector
from tests.fakes.stepped_recorder import NOW, SteppedRecorder, arriving_instead_of_the_kernel
from tests.unit.flows.judging.test_agreement import ALLOW_80
from tests.unit.policy.judge.test_bounds import HERE, POLICY, THERE, ports, wanted_with

WEB, DB = bytes((10, 65, 0, 9)), bytes((10, 65, 0, 7))
OUT, IN, NO = 1000, 1001, 1002
DECIDERS = {
    OUT: Decider("Profile", "", "kns.shop", "", False, 0, "Allow"),
    IN: Decider("NetworkPolicy", "shop", "db", "default", True, 0, "Allow"),
    NO: Decider("NetworkPolicy", "shop", "db", "default", True, -1, "Deny"),
}
ENDS_HERE = (("web-7d9-x2k4", WEB), ("db-0", DB))
ENDS_FILE = render_ends("n1", [AddressedEnd(EndName("pod", "shop", name), [at]) for name, at in ENDS_HERE])
EXPORTED = [
    (("shop", "web-7d9-x2k4"), ExportedEnd("web-7d9-*", {"app": "web"})),
    (("shop", "db-0"), ExportedEnd("db-0", {"app": "db"})),
]


def key(sport: int) -> bytes:
    return WEB + DB + b"\6" + sport.to_bytes(2, "big") + (5432).to_bytes(2, "big")


class Exporting(SteppedRecorder):
    def tell(self, target: Target) -> None:
        (self.root / "new").write_bytes(render_export(target, EXPORTED))
        (self.root / "new").rename(self.root / EXPORT)

    def connect(self, sport: int) -> None:
        self.step((True, key(sport), OUT), (True, key(sport), IN))

    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = self.recorder.status().get("export") or {}
        return found


@pytest.fixture
def exporting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exporting]:
    (tmp_path / DIRECTORY).mkdir()
    lines = "".join(render_line(number, decider) for number, decider in DECIDERS.items())
    (tmp_path / DIRECTORY / "numbers").write_text(lines)
    (tmp_path / ENDS).write_bytes(ENDS_FILE)
    made = Exporting(tmp_path, arriving_instead_of_the_kernel(monkeypatch))
    yield made
    made.recorder.close()


def stepping(exporting: Exporting, condition: Callable[[], Any], what: str) -> None:
    def once() -> Any:
        exporting.step(after_s=0)
        return condition()

    until(once, what)


def test_an_interval_has_an_update_for_each_side(exporting: Exporting, collector: FakeCollector) -> None:
    exporting.tell(Target(f"127.0.0.1:{collector.port}", interval_s=15))
    exporting.step(after_s=0)
    for sport in (1, 2, 3):
        exporting.connect(sport)
    exporting.arriving.ended.append(TrackedConnection(key(1), DB, 5432, 4, 240, 3, 900, NOW, NOW + 1, b""))
    exporting.step((False, key(9), NO))
    exporting.step(after_s=15)
    stepping(exporting, lambda: exporting.said()["received"] == 3, "they are acknowledged")
    source, destination, denied = (decode_update(data) for data in collector.updates)
    assert [one.Key.reporter for one in (source, destination, denied)] == [1, 2, 2]
    assert source.start_time == source.end_time == int(NOW)
    assert (source.Key.source_name, source.Key.dest_name, source.Key.dest_port) == ("web-7d9-*", "db-0", 5432)
    assert list(source.source_labels) == ["app=web"] and list(source.dest_labels) == ["app=db"]
    for one in (source, destination):
        counts = one.num_connections_started, one.num_connections_completed, one.num_connections_live
        assert counts == (3, 1, 2)
    assert (source.packets_out, source.bytes_in) == (4, 900) == (destination.packets_in, destination.bytes_out)
    assert denied.Key.action == 2 and denied.packets_in == 1
    assert exporting.said()["plain"] and exporting.said()["connected"] and not exporting.said()["queue"]


def test_what_staged_policies_would_do_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collector: FakeCollector
) -> None:
    """From the agent's messages through a gRPC connection, decoded by the generated messages."""
    (tmp_path / DIRECTORY).mkdir()
    allowed = Decider("GlobalNetworkPolicy", "", "p", "default", True, 0, "Allow")
    (tmp_path / DIRECTORY / "numbers").write_text(render_line(IN, allowed))
    here = AddressedEnd(EndName("pod", "a", "pod"), [HERE.packed])
    (tmp_path / ENDS).write_bytes(render_ends("n1", [here]))
    agent, recorders = socket.socketpair()
    with agent, recorders:
        arriving = arriving_instead_of_the_kernel(monkeypatch)
        exporting = Exporting(tmp_path, arriving, recorders.fileno())
        try:
            for data in render_whole(wanted_with(ALLOW_80)):
                agent.sendall(data)
            stages = [StagedName(POLICY, "StagedGlobalNetworkPolicy", "p")]
            would = wanted_with(replace(ALLOW_80, destination=ports((81, 81))))
            for data in render_staged(render_whole(would), stages):
                agent.sendall(data)
            exporting.tell(Target(f"127.0.0.1:{collector.port}", interval_s=15))
            exporting.step(after_s=0)
            ends = THERE.packed + HERE.packed + b"\6" + (1).to_bytes(2, "big")
            exporting.step((True, ends + (80).to_bytes(2, "big"), IN))
            exporting.step(after_s=15)
            stepping(exporting, lambda: exporting.said()["received"] == 1, "it is acknowledged")
        finally:
            exporting.recorder.close()
    (update,) = map(decode_update, collector.updates)
    (enforced,), (pending,) = update.Key.policies.enforced_policies, update.Key.policies.pending_policies
    assert (enforced.kind, enforced.name, enforced.action, enforced.rule_index) == (2, "p", 1, 0)
    assert (pending.kind, pending.tier, pending.action, pending.rule_index) == (10, "default", 2, -1)
    assert (pending.trigger.kind, pending.trigger.name) == (4, "p")


def test_what_the_host_decides_arrives(
    exporting: Exporting, collector: FakeCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no labels, and no update where that is switched off."""
    host = bytes((192, 168, 0, 1))
    monkeypatch.setattr(KernelWays, "addresses", lambda self: {host: "eth0"})
    exporting.tell(Target(f"127.0.0.1:{collector.port}", interval_s=15, host="worker-1"))
    exporting.step(after_s=0)
    ends = host + bytes((192, 0, 2, 7))
    exporting.step((True, ends + key(1)[8:], OUT))
    exporting.step(after_s=15)
    stepping(exporting, lambda: exporting.said()["received"] == 1, "it is acknowledged")
    (update,) = map(decode_update, collector.updates)
    assert (update.Key.source_name, update.Key.source_namespace, update.Key.source_type) == ("worker-1", "-", 2)
    assert (update.Key.reporter, update.Key.action, list(update.source_labels)) == (1, 1, [])
    exporting.tell(Target(f"127.0.0.1:{collector.port}", interval_s=15))
    exporting.step(after_s=0)
    exporting.step((True, ends + key(2)[8:], OUT))
    exporting.connect(3)
    exporting.step(after_s=15)
    stepping(exporting, lambda: exporting.said()["received"] == 3, "both sides of the pods'")
    assert [decode_update(data).Key.source_type for data in collector.updates] == [2, 1, 1]


def test_another_nodes_pod_has_its_name(exporting: Exporting, collector: FakeCollector) -> None:
    address, there = bytes((10, 65, 1, 1)), EndName("pod", "shop", "cart-5c-9")
    end = EndElsewhere(there, "cart-5c-*", {"app": "cart"}, (address,))
    (exporting.root / ELSEWHERE).write_bytes(render_end("shop/n2-cart", end))
    exporting.tell(Target(f"127.0.0.1:{collector.port}", interval_s=15))
    exporting.step(after_s=0)
    exporting.step((True, address + DB + key(1)[8:], IN))
    exporting.step(after_s=15)
    stepping(exporting, lambda: exporting.said()["received"] == 1, "it is acknowledged")
    (update,) = map(decode_update, collector.updates)
    assert (update.Key.source_name, update.Key.source_namespace, update.Key.source_type) == ("cart-5c-*", "shop", 1)
    assert list(update.source_labels) == ["app=cart"] and update.Key.reporter == 2


def test_a_collector_that_cannot_be_reached_stops_nothing(exporting: Exporting) -> None:
    with FakeCollectorPort() as port:
        exporting.tell(Target(f"127.0.0.1:{port}", interval_s=1))
        for sport in range(1, 4):
            exporting.connect(sport)
            exporting.step(after_s=1.5)
        stepping(exporting, lambda: exporting.said()["trouble"], "there is a reason")
        assert exporting.recorder.status()["allowed"] == 3
        assert exporting.said()["queue"] >= 2 and not exporting.said()["connected"]


class FakeCollectorPort:
    """A port on which nobody listens."""

    def __enter__(self) -> int:
        self._held = socket.socket()
        self._held.bind(("127.0.0.1", 0))
        return int(self._held.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._held.close()


def test_it_ends_with_the_agents_file_and_begins_again(exporting: Exporting, collector: FakeCollector) -> None:
    exporting.tell(Target(f"127.0.0.1:{collector.port}", interval_s=15))
    exporting.step(after_s=0)
    exporting.connect(1)
    (exporting.root / EXPORT).unlink()
    exporting.step(after_s=0)
    assert "export" not in exporting.recorder.status()
    exporting.connect(2)
    exporting.tell(Target(f"127.0.0.1:{collector.port}", interval_s=15))
    exporting.step(after_s=6)
    exporting.connect(3)
    exporting.step(after_s=15)
    stepping(exporting, lambda: exporting.said()["received"] == 2, "they are acknowledged")
    assert decode_update(collector.updates[-1]).num_connections_started == 1
    assert exporting.recorder.status()["allowed"] == 3


def test_another_server_is_used_from_then_on(exporting: Exporting, collector: FakeCollector) -> None:
    second = FakeCollector()
    try:
        for server in (collector, second):
            exporting.tell(Target(f"127.0.0.1:{server.port}", interval_s=1))
            exporting.step(after_s=6)
            exporting.connect(server.port % 60000)
            exporting.step(after_s=1)
            stepping(exporting, partial(len, server.updates), "it has updates")
    finally:
        second.stop()
    assert len(collector.updates) == 2 == len(second.updates)


def test_a_torn_file_changes_nothing(exporting: Exporting, collector: FakeCollector) -> None:
    exporting.tell(Target(f"127.0.0.1:{collector.port}", interval_s=15))
    exporting.step(after_s=0)
    (exporting.root / EXPORT).write_bytes(b"{")
    exporting.step(after_s=0)
    assert exporting.said()["server"] == f"127.0.0.1:{collector.port}"


def test_who_looks_on_this_node_gets_the_updates(exporting: Exporting) -> None:
    exporting.tell(Target("", interval_s=1, local=True))
    exporting.connect(1)
    exporting.step(after_s=1)
    assert exporting.said() == {"server": "", "local": False}
    with FlowListener(str(exporting.root / SOCKET)) as listener:
        stepping(exporting, lambda: exporting.said()["local"], "it is found")
        exporting.connect(2)
        exporting.step(after_s=1)
        shown = listener.flows(lambda: False)
        assert {next(shown).Key.reporter for _ in range(2)} == {1, 2}
    stepping(exporting, lambda: not exporting.said()["local"], "it is gone")


def test_without_a_collector_nothing_of_it_is_loaded() -> None:
    """Neither by the recorder nor by the agent."""
    program = (
        "import sys, cni_calico.flows.recorder, cni_calico.nodeagent.recording.exporting\n"
        "loaded = {name for name in sys.modules if name == 'grpc' or name.startswith('cni_calico.flows.export.')}\n"
        "sys.exit(str(loaded) if loaded - {'cni_calico.flows.export.wanted'} else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
