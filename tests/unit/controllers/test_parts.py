"""The controllers' threads: ended together, the leader last, none waited for without limit."""

from __future__ import annotations

import threading

import pytest

from cni_calico.controllers import parts as module
from cni_calico.controllers.parts import LEADER, ControllerParts
from cni_calico.log import Log


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def parts(failures) -> ControllerParts:
    return ControllerParts(Log("none"), lambda: failures.append(threading.current_thread().name))


def test_all_are_told_before_any_is_waited_for(parts, monkeypatch):
    """Each ends only when the others have been told too: one after the other none of them would."""
    monkeypatch.setattr(module, "PARTS_S", 60.0)
    together, ended = threading.Barrier(3), []

    def work(stopping):
        stopping.wait()
        together.wait(50)
        ended.append(threading.current_thread().name)

    for name in ("node", "policy", "health"):
        parts.start(name, work)
    parts.end(parts.names())
    assert sorted(ended) == ["health", "node", "policy"] and parts.names() == []


def test_the_leader_leads_until_the_others_have_ended(parts, monkeypatch):
    monkeypatch.setattr(module, "PARTS_S", 60.0)
    monkeypatch.setattr(module, "LEADER_S", 60.0)
    led, ended = {}, []
    leading = threading.Event()

    def lead(stopping):
        leading.set()
        stopping.wait()
        leading.clear()
        ended.append(LEADER)

    def work(stopping):
        stopping.wait()
        led[threading.current_thread().name] = leading.is_set()
        ended.append("node")

    parts.start(LEADER, lead)
    parts.start("node", work)
    assert leading.wait(60)
    parts.end(parts.names())
    assert led == {"node": True} and ended == ["node", LEADER]


def test_one_that_hangs_is_left_behind_and_the_leader_is_still_told(parts, monkeypatch):
    monkeypatch.setattr(module, "PARTS_S", 0.0)
    monkeypatch.setattr(module, "LEADER_S", 60.0)
    never, resigned = threading.Event(), threading.Event()

    def lead(stopping):
        stopping.wait()
        resigned.set()

    parts.start("stuck", lambda stopping: never.wait())
    parts.start(LEADER, lead)
    parts.end(parts.names())
    assert resigned.is_set()
    never.set()


def test_one_part_can_be_ended_by_itself_and_started_again(parts, monkeypatch):
    monkeypatch.setattr(module, "PARTS_S", 60.0)
    runs = []

    def work(stopping):
        runs.append("begun")
        stopping.wait()

    parts.start("node", work)
    parts.start("policy", work)
    parts.end(["node"])
    assert parts.names() == ["policy"] and "node" not in parts
    parts.start("node", work)
    parts.end(parts.names())
    assert runs == ["begun"] * 3


def test_one_that_fails_is_told(parts, failures, monkeypatch):
    monkeypatch.setattr(module, "PARTS_S", 60.0)

    def work(stopping):
        raise ValueError("unexpected")

    parts.start("node", work)
    parts.end(["node"])
    assert failures == ["node"]
