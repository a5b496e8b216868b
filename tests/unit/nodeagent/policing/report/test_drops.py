"""What the standing rules drop is told once for each interface that is there."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.errors import KernelError
from cni_calico.kernel.netlink.nflog import ReportedPacket
from cni_calico.nodeagent.policing.report import drops
from cni_calico.nodeagent.policing.report.drops import DroppedPackets
from cni_calico.nodeagent.policing.tables.stages import SPOOFED
from cni_calico.nodeagent.status.policing import PolicyFigures
from tests.fakes.notes import Notes


class Host:
    """``there``: the interfaces, by index; each of ``reported`` has sent a packet that was dropped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.there: dict[int, str] = {}
        self.reported: list[int] = []
        self.log = Notes()
        self.dropped = DroppedPackets(1, self.log, PolicyFigures(), lambda chains, deadline: {}, lambda: self.now)
        monkeypatch.setattr(drops, "PacketReports", lambda *_: self)
        monkeypatch.setattr("socket.if_indextoname", lambda index: self.there[index])
        monkeypatch.setattr("socket.if_nameindex", lambda: list(self.there.items()))

    def take(self) -> Any:
        return [ReportedPacket(SPOOFED, index, 0) for index in self.reported]

    def told(self) -> int:
        self.log.said.clear()
        self.now += 10
        self.dropped.look()
        return len(self.log.said)


def test_each_interface_is_told_once_as_long_as_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch)
    host.there, host.reported = {1: "cali1"}, [1]
    assert [host.told(), host.told(), host.told()] == [1, 0, 0]
    host.there, host.reported = {}, []
    assert host.told() == 0
    host.there, host.reported = {2: "cali1"}, [2]
    assert [host.told(), host.told()] == [1, 0]


def test_interfaces_that_are_gone_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drops, "_TOLD", 3)
    host = Host(monkeypatch)
    for first in range(1, 20, 3):
        host.there = {index: f"cali{index}" for index in range(first, first + 3)}
        host.reported = []
        host.told()
        host.reported = list(host.there)
        assert host.told() == 3


def test_counters_that_are_slow_to_fail_are_read_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies' changes wait meanwhile."""
    host = Host(monkeypatch)
    tries: list[float] = []

    def fail(chains: object, deadline: object) -> dict[str, int]:
        tries.append(host.now)
        host.now += 5
        raise KernelError("cannot read the counters: too slow", errno=0)

    dropped = DroppedPackets(0, host.log, PolicyFigures(), fail, lambda: host.now, by_iptables=True)
    for _ in range(200):
        dropped.look()
        host.now += 1
    assert len(tries) == 1 and len(host.log.said) == 1
    host.now += 100
    dropped.look()
    assert len(tries) == 2
