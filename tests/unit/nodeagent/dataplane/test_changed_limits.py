"""Limits of bandwidth between two passes: a changed one is set, in pieces if there are many, and not too often."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.log import Log
from cni_calico.model.host import HostInterface
from cni_calico.model.keys import Key, ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane import changed_limits
from cni_calico.nodeagent.dataplane.changed_limits import ChangedLimits, with_limits_of
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.pass_schedule import PassRest
from cni_calico.nodeagent.dataplane.passes import Pass
from tests.unit.nodeagent.fabric import FELIX, workload

POD = workload("w", "calia", "10.65.1.5/32")
MBIT = 10**6


class Kernel:
    """Its interfaces, and what it was told; ``left`` and ``failing`` say how the next looks end."""

    def __init__(self) -> None:
        self.records: dict[Key, WorkloadEndpoint] = {}
        self.rates: list[int] = []
        self.left: list[int] = []
        self.failing = False
        self.changed, self.stopping = threading.Event(), threading.Event()
        self.limits = ChangedLimits(self.changed, lambda: self.records, self, Log("none"))
        self.limits.passed((POD,), (Desired(), FELIX))

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
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    interfaces = (HostInterface(9, "calia", True, 1450, kind="veth"),)
    monkeypatch.setattr(changed_limits, "read_interfaces", lambda deadline: interfaces)
    yield Kernel()


def test_what_has_not_changed_is_not_looked_at(kernel: Kernel) -> None:
    assert not kernel.limits.bring_changed()
    kernel.records[ResourceKey("WorkloadEndpoint", "w", "default")] = replace(POD, mac="02:00:00:00:00:01")
    kernel.changed.set()
    assert not kernel.limits.bring_changed() and not kernel.changed.is_set()
    kernel.ask(5)
    assert kernel.limits.bring_changed() and kernel.rates == [5]
    kernel.changed.set()
    assert not kernel.limits.bring_changed() and kernel.rates == [5]


def test_what_is_left_comes_at_once_and_a_changed_limit_before_it(kernel: Kernel) -> None:
    taken = Desired()
    kernel.left = [2, 1, 0]
    kernel.limits.passed((limited(1),), (taken, FELIX), left=3)
    kernel.ask(7)
    assert not kernel.limits.rest(0, kernel.stopping)
    assert kernel.rates == [7, 7, 7] and kernel.left == []


def test_a_change_ends_the_wait_and_an_end_too(kernel: Kernel) -> None:
    def end() -> None:
        kernel.ask(5)
        while not kernel.rates:
            pass
        kernel.stopping.set()

    other = threading.Thread(target=end)
    other.start()
    assert not kernel.limits.rest(3600, kernel.stopping)
    other.join()
    assert kernel.rates == [5]


def test_who_changes_all_the_time_waits(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PassRest, "pause_s", lambda rest, now, used_s: 3600)
    kernel.ask(5)
    kernel.limits.rest(0.01, kernel.stopping)
    kernel.ask(6)
    assert not kernel.limits.rest(0.01, kernel.stopping) and not kernel.limits.bring_changed()
    assert kernel.rates == [5] and kernel.changed.is_set()


def test_a_failure_is_the_next_passes(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.failing = True
    kernel.ask(5)
    assert kernel.limits.rest(0.01, kernel.stopping), "there must be one"
    kernel.ask(6)
    assert not kernel.limits.rest(0, kernel.stopping) and kernel.rates == [5]
    kernel.failing = False
    kernel.limits.passed((POD,), (Desired(), FELIX))

    def refused(deadline: Deadline) -> tuple[HostInterface, ...]:
        raise KernelError("cannot list interfaces: busy")

    monkeypatch.setattr(changed_limits, "read_interfaces", refused)
    assert kernel.limits.rest(0.01, kernel.stopping) and kernel.rates == [5]


def test_limits_are_of_the_same_endpoint() -> None:
    other = workload("v", "calib", "10.65.1.6/32")
    key = ResourceKey("WorkloadEndpoint", "w", "default")
    assert with_limits_of((POD, other), {key: limited(5)}) == (limited(5), other)
    assert with_limits_of((limited(5), other), {key: POD}) == (POD, other)
    endpoints = (limited(5), other)
    assert with_limits_of(endpoints, {key: limited(5)}) is endpoints and with_limits_of(endpoints, {}) is endpoints
