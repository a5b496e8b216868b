"""Limits of bandwidth between two passes: a changed one is set, in pieces if there are many, and not too often."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from cni_calico.deadline import Deadline
from cni_calico.log import Log
from cni_calico.model.host import HostInterface
from cni_calico.model.keys import Key, ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.changed_limits import ChangedLimits, with_limits_of
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.pass_schedule import GATHER_S, PassRest
from cni_calico.nodeagent.dataplane.passes import Pass
from tests.unit.nodeagent.fabric import FELIX, workload

POD = workload("w", "calia", "10.65.1.5/32")
MBIT = 10**6
VETHS = (HostInterface(8, "calib", True, 1450, kind="veth"), HostInterface(9, "calia", True, 1450, kind="veth"))


class Kernel:
    """Its interfaces, and what it was told; ``left`` and ``failing`` say how the next looks end."""

    def __init__(self) -> None:
        self.records: dict[Key, WorkloadEndpoint] = {}
        self.rates: list[int] = []
        self.left: list[int] = []
        self.failing = False
        self.changed, self.stopping = threading.Event(), threading.Event()
        self.limits = ChangedLimits(self.changed, lambda: self.records, self, Log("none"))
        self.limits.passed((POD,), VETHS, (Desired(), FELIX))

    def ask(self, mbit: int) -> None:
        self.records[ResourceKey("WorkloadEndpoint", "w", "default")] = limited(mbit)
        self.changed.set()

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, *, full: bool, only: str = "") -> Pass:
        assert not full and only == "bandwidth"
        self.rates += [8 * one.ingress.rate // MBIT for one in desired.bandwidth.wanted.values() if one.ingress]
        left = self.left.pop(0) if self.left else 0
        return Pass(limits_left=left, failed=["refused"] if self.failing else [])


def limited(mbit: int) -> WorkloadEndpoint:
    return replace(POD, qos_controls={"ingressBandwidth": mbit * MBIT})


@pytest.fixture
def shaped() -> Kernel:
    return Kernel()


def test_what_has_not_changed_is_not_looked_at(shaped: Kernel) -> None:
    assert not shaped.limits.bring_changed()
    shaped.records[ResourceKey("WorkloadEndpoint", "w", "default")] = replace(POD, mac="02:00:00:00:00:01")
    shaped.changed.set()
    assert not shaped.limits.bring_changed() and not shaped.changed.is_set()
    shaped.ask(5)
    assert shaped.limits.bring_changed() and shaped.rates == [5]
    shaped.changed.set()
    assert not shaped.limits.bring_changed() and shaped.rates == [5]


def test_what_is_left_comes_at_once_and_a_changed_limit_before_it(shaped: Kernel) -> None:
    taken = Desired()
    shaped.left = [2, 1, 0]
    shaped.limits.passed((limited(1),), VETHS, (taken, FELIX), left=3)
    shaped.ask(7)
    assert not shaped.limits.rest(0, shaped.stopping)
    assert shaped.rates == [7, 7, 7] and shaped.left == []


def test_a_change_ends_the_wait_and_an_end_too(shaped: Kernel) -> None:
    def end() -> None:
        shaped.ask(5)
        while not shaped.rates:
            pass
        shaped.stopping.set()

    other = threading.Thread(target=end)
    other.start()
    assert not shaped.limits.rest(3600, shaped.stopping)
    other.join()
    assert shaped.rates == [5]


def test_who_changes_all_the_time_waits(shaped: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PassRest, "pause_s", lambda rest, now, used_s: 3600)
    shaped.ask(5)
    shaped.limits.rest(0.01, shaped.stopping)
    shaped.ask(6)
    assert not shaped.limits.rest(0.01, shaped.stopping) and not shaped.limits.bring_changed()
    assert shaped.rates == [5] and shaped.changed.is_set()


def test_a_failure_is_the_next_passes(shaped: Kernel) -> None:
    shaped.failing = True
    shaped.ask(5)
    assert shaped.limits.rest(0.01, shaped.stopping), "there must be one"
    shaped.ask(6)
    assert not shaped.limits.rest(0, shaped.stopping) and shaped.rates == [5]
    shaped.failing = False
    shaped.limits.passed((POD,), VETHS, (Desired(), FELIX))
    assert not shaped.limits.rest(0.01, shaped.stopping) and not shaped.changed.is_set() and shaped.rates == [5, 6]


def test_who_changes_his_again_and_again_rests_nine_times_as_long_as_it_took(shaped: Kernel) -> None:
    """And no longer: a changed limit takes a millisecond, and is to be in force within a tenth of a second."""
    rest, now = PassRest(GATHER_S), 0.0
    for _ in range(1000):
        pause_s = rest.pause_s(now, 0.002)
        assert pause_s <= 9 * 0.002
        now += 0.002 + pause_s
    assert pause_s == 9 * 0.002


def test_limits_are_of_the_same_endpoint() -> None:
    other = workload("v", "calib", "10.65.1.6/32")
    key = ResourceKey("WorkloadEndpoint", "w", "default")
    assert with_limits_of((POD, other), {key: limited(5)}) == (limited(5), other)
    assert with_limits_of((limited(5), other), {key: POD}) == (POD, other)
    endpoints = (limited(5), other)
    assert with_limits_of(endpoints, {key: limited(5)}) is endpoints and with_limits_of(endpoints, {}) is endpoints
