"""Calls wait their turn: in the order of arrival, not too many of them, and a stop finishes what was started."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_calico.cni.answer import Answer
from cni_calico.log import SILENT
from cni_calico.plugin.call.client import call_server
from cni_calico.plugin.call.serve import Declined
from cni_calico.server import run as module
from cni_calico.server.run import CniServer
from tests.deadlines import until


class Gate:
    """Stands in for the plugin: notes who comes, lets nobody go on before it is opened."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.opened = threading.Event()

    def __call__(self, call: Any, services: Any) -> Answer:
        self.order.append(call.container_id)
        self.opened.wait(20)
        return Answer(0, "{}")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate()
    monkeypatch.setitem(module.SERVES, "calico", made)
    return made


@pytest.fixture
def queue_server(tmp_path: Path, gate: Gate) -> Iterator[CniServer]:
    made = CniServer(str(tmp_path / "cni.sock"), SILENT, workers=1)
    made.start()
    yield made
    gate.opened.set()
    made.stop()


class Caller:
    def __init__(self, server: CniServer, container: str, command: str = "DEL") -> None:
        self.answer: tuple[int, bytes] | None = None
        self._server = server
        self._environ = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin",
            "CNI_NETNS": "/proc/self/ns/net" if command == "ADD" else "",
        }
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.answer = call_server(self._server.path, "calico", self._environ, b"{}")

    def result(self) -> tuple[int, bytes] | None:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.answer


def test_in_the_order_of_arrival(queue_server: CniServer, gate: Gate):
    callers = []
    for i in range(6):
        callers.append(Caller(queue_server, f"c{i}"))
        until(lambda i=i: len(gate.order) + queue_server._waiting.qsize() == i + 1, "it has arrived")
    assert gate.order == ["c0"], "there is one worker"
    assert "calico_cni_queue 5\n" in queue_server.metrics.render(
        queue_server.resident.add_metrics, queue_server._waiting.qsize()
    )
    gate.opened.set()
    assert all(caller.result() == (0, b"{}") for caller in callers)
    assert gate.order == [f"c{i}" for i in range(6)]
    assert "calico_cni_queue_max 4\n" in queue_server.metrics.render(queue_server.resident.add_metrics, 0), (
        "the last one found four before it"
    )


def test_too_many_are_told_to_come_again(queue_server: CniServer, gate: Gate, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "QUEUE", 2)
    callers = [Caller(queue_server, "c0")]
    until(lambda: gate.order == ["c0"], "the worker is busy")
    for i in (1, 2):
        callers.append(Caller(queue_server, f"c{i}"))
        until(lambda i=i: queue_server._waiting.qsize() == i, "it waits")
    refused = Caller(queue_server, "late").result()
    assert refused is not None and refused[0] == 1
    told = json.loads(refused[1])
    assert told["code"] == 11 and told["msg"] == "cannot serve: 2 calls are waiting already"
    gate.opened.set()
    assert all(caller.result() == (0, b"{}") for caller in callers)
    assert gate.order == ["c0", "c1", "c2"]


def test_a_stop_finishes_what_waits_too(queue_server: CniServer, gate: Gate):
    callers = [Caller(queue_server, f"c{i}") for i in range(4)]
    until(lambda: len(gate.order) + queue_server._waiting.qsize() == 4, "all have arrived")
    stopping = threading.Thread(target=queue_server.stop)
    stopping.start()
    until(lambda: queue_server._stopping.is_set(), "it stops")
    gate.opened.set()
    assert all(caller.result() == (0, b"{}") for caller in callers)
    stopping.join(20)
    assert not stopping.is_alive() and not any(thread.is_alive() for thread in queue_server._threads)


def test_a_stop_does_not_wait_for_ever(queue_server: CniServer, gate: Gate):
    caller = Caller(queue_server, "c0")
    until(lambda: gate.order == ["c0"], "the worker is busy")
    queue_server.stop(drain_s=0.05)
    assert caller.answer is None and any(thread.is_alive() for thread in queue_server._threads)
    gate.opened.set()
    assert caller.result() == (0, b"{}"), "as long as the process lives it is still answered"


class FullListener:
    """accept() as Linux has it at the limit: it looks for a descriptor before it looks whether anybody is there."""

    def __init__(self, failure: OSError) -> None:
        self.failure = failure

    def settimeout(self, timeout: float | None) -> None:
        pass

    def accept(self) -> tuple[socket.socket, str]:
        raise self.failure


@pytest.mark.parametrize("failure", [TimeoutError("timed out"), OSError(errno.EMFILE, "Too many open files")])
def test_the_spare_descriptor_is_opened_again_though_nobody_was_turned_away(failure: OSError):
    spare = module._turn_away(FullListener(failure), module._open_spare())
    assert spare >= 0
    assert os.readlink(f"/proc/self/fd/{spare}") == os.devnull
    os.close(spare)


def test_without_a_spare_descriptor_it_waits_and_tries_to_open_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every pause comes after one attempt to accept, which finds the limit reached."""
    accepted, pauses, given = [], [], []

    class Full(FullListener):
        def accept(self) -> tuple[socket.socket, str]:
            accepted.append(1)
            raise self.failure

    class Stops(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            if len(pauses) == 3:
                self.set()
            return True

    def turn_away(listener: socket.socket, spare: int) -> int:
        given.append(spare)
        return -1

    opened = iter([-1, 7, 8, 9])
    monkeypatch.setattr(module, "_open_spare", lambda: next(opened))
    monkeypatch.setattr(module, "_turn_away", turn_away)
    other = CniServer(str(tmp_path / "cni.sock"), SILENT, workers=1)
    other._stopping = Stops()
    other._accept_from(Full(OSError(errno.EMFILE, "Too many open files")))
    assert given == [7, 8, 9], "each time it tried to open one before"
    assert len(accepted) == 3 and pauses == [module.SHORT_S] * 3


class Wait:
    """Stands in for the plugin: an ADD waits until the server ends or the test lets it, anything else does not."""

    def __init__(self) -> None:
        self.now = 0
        self.opened = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, call: Any, services: Any) -> Answer:
        if call.command != "ADD":
            return Answer(0, "{}")
        with services.waiting() as must_end:
            with self._lock:
                self.now += 1
            while not self.opened.wait(0.01):
                if must_end():
                    raise Declined("the server ends")
        return Answer(0, "{}")


@pytest.fixture
def waiting_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CniServer, Wait]]:
    wait = Wait()
    monkeypatch.setitem(module.SERVES, "calico", wait)
    made = CniServer(str(tmp_path / "cni.sock"), SILENT, workers=4)
    made.start()
    yield made, wait
    wait.opened.set()
    made.stop()


def test_calls_that_wait_leave_workers_for_others(waiting_server: tuple[CniServer, Wait]) -> None:
    """One more than may wait is left to its caller, at once."""
    server, wait = waiting_server
    callers = [Caller(server, f"c{i}", "ADD") for i in range(3)]
    until(lambda: wait.now == 3, "three of four workers wait", 20)
    assert Caller(server, "late", "ADD").result() is None
    assert Caller(server, "gone").result() == (0, b"{}"), "a DEL finds the fourth"
    wait.opened.set()
    assert all(caller.result() == (0, b"{}") for caller in callers)
    assert Caller(server, "next", "ADD").result() == (0, b"{}")


def test_a_stop_leaves_what_waits_to_its_callers(waiting_server: tuple[CniServer, Wait]) -> None:
    server, wait = waiting_server
    callers = [Caller(server, f"c{i}", "ADD") for i in range(2)]
    until(lambda: wait.now == 2, "they wait", 20)
    server.stop()
    assert [caller.result() for caller in callers] == [None, None]
    assert not any(thread.is_alive() for thread in server._threads)
