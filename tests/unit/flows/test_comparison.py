"""When connection tracking's list is read: never for connections that have all begun since the last time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cni_calico.flows import comparison as module
from cni_calico.flows.comparison import Comparison
from cni_calico.flows.live import LiveFlows
from cni_calico.flows.records import COUNTED
from cni_calico.kernel.netlink.ended import TrackedConnection
from cni_calico.log import Log
from tests.unit.flows.test_live import KEY, Kept, S


class Lists:
    def close(self) -> None:
        pass


class Node:
    """What connection tracking has, and how often its list was read; a minute passes whenever the test says so."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.there: list[TrackedConnection] = []
        self.read, self.now = 0, 1000.0
        patched.setattr(module, "Nfnetlink", Lists)
        patched.setattr(module, "read_tracked", self.list)
        self.kept = Kept()
        self.live = LiveFlows(self.kept, lambda number: None, lambda address: 0)
        self.comparison = Comparison(self.live, Log("error"), lambda: self.now)

    def list(self, *_: Any) -> Iterator[list[TrackedConnection]]:
        self.read += 1
        yield list(self.there)

    def begins(self, port: int) -> int:
        key = KEY[:-1] + bytes((port,))
        self.there.append(TrackedConnection(key, key[4:8], 80, 5, 500, 4, 400, self.now, 0.0, b""))
        return self.live.decide(key, 300, int(self.now * S), allowed=True)

    def minute(self, overrun: int = 0, missed: int = 0) -> int:
        """How often the list was read in it."""
        self.now += 61
        before = self.read
        self.comparison.go_on(overrun, missed, lambda: int(self.now * S))
        return self.read - before

    def counted(self, number: int) -> bool:
        """Whether packets and bytes of a record are known."""
        record = self.kept.read(number)
        return record is not None and record.packets == 5 and bool(record.flags & COUNTED)


def test_only_what_lasts_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    assert node.minute() == 1  # the start
    lasting = node.begins(1)
    assert node.minute() == 0
    young = node.begins(2)
    assert node.minute() == 1
    assert node.counted(lasting) and not node.counted(young)
    assert node.minute() == 1
    assert node.counted(young)


def test_what_was_lost_is_looked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    assert (node.minute(), node.minute(), node.minute(missed=3), node.minute(missed=3)) == (1, 0, 1, 0)
    assert (node.minute(overrun=1, missed=3), node.minute(overrun=1, missed=3)) == (1, 0)
