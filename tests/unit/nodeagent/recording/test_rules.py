"""What the recorder is told of the rules in force, and when: everything first, then changes; nobody waits for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cni_calico.flows.judging.encoding import Messages
from cni_calico.flows.judging.known import KnownRules
from cni_calico.nodeagent.recording.rules import RulesTeller
from cni_calico.policy.wanted import Members, SetChange, Wanted, WantedChanges
from tests.unit.flows.judging.test_agreement import ALLOW_80
from tests.unit.policy.judge.test_bounds import ports, tcp, wanted_with

FIRST = wanted_with(ALLOW_80)
SECOND = wanted_with(replace(ALLOW_80, destination=ports((81, 81))))
CHANGE = WantedChanges(policies=SECOND.policies)


class Told:
    """The engine, the keeper and the recorder in one thread."""

    def __init__(self) -> None:
        self.woken = self.wholes = 0
        self.wanted = FIRST
        self.teller = RulesTeller(self.wake, room=64 << 10)
        self.theirs: socket.socket | None = None

    def wake(self) -> None:
        self.woken += 1

    def whole(self) -> Wanted:
        self.wholes += 1
        return self.wanted

    def attach(self) -> None:
        self.theirs = self.teller.attach()
        self.theirs.setblocking(False)
        self.known, self.messages = KnownRules(), Messages()

    def hear(self) -> None:
        """What has been sent; the keeper sends the rest meanwhile."""
        assert self.theirs is not None
        while True:
            more = self.teller.go_on()
            try:
                self.messages.put(self.theirs.recv(1 << 20))
            except BlockingIOError:
                assert not more
                return
            while (message := self.messages.take()) is not None:
                self.known.receive(message.kind, message.changes, 0.0)

    def allows(self, port: int) -> bool:
        packet = tcp(1, port)
        (cell,) = self.known.cells(packet.source.packed, packet.destination.packed, 6, ingress=True)
        decision = cell.find(port, 1).decision
        assert decision is not None
        return decision.verdict == "Allow"


@pytest.fixture
def telling() -> Iterator[Told]:
    one = Told()
    yield one
    one.teller.detach()
    if one.theirs is not None:
        one.theirs.close()


def test_without_a_recorder_nothing_is_asked_or_kept(telling: Told) -> None:
    assert not telling.teller.listens()
    telling.teller.tell([CHANGE], telling.whole)
    assert not telling.teller.go_on() and telling.wholes == 0
    telling.teller.tell_lifted()
    telling.teller.detach()
    assert telling.woken == 0


def test_everything_first_then_changes(telling: Told) -> None:
    telling.attach()
    assert telling.woken == 1 and telling.teller.listens()
    telling.hear()
    assert not telling.known.ready
    telling.teller.tell([], telling.whole)
    telling.hear()
    assert telling.known.ready and telling.allows(80) and not telling.allows(81)
    telling.teller.tell([CHANGE], telling.whole)
    telling.hear()
    assert telling.allows(81) and not telling.allows(80) and telling.wholes == 1
    telling.teller.tell_lifted()
    telling.hear()
    assert not telling.known.ready
    telling.wanted = SECOND
    telling.teller.tell([], telling.whole)
    telling.hear()
    assert telling.known.ready and telling.allows(81) and telling.wholes == 2


def test_a_recorder_that_is_begun_anew_is_told_everything(telling: Told) -> None:
    telling.attach()
    telling.teller.tell([], telling.whole)
    assert telling.theirs is not None
    telling.theirs.close()
    telling.teller.tell([CHANGE], telling.whole)
    assert not telling.teller.go_on() and not telling.teller.listens()
    telling.wanted = SECOND
    telling.attach()
    telling.teller.tell([], telling.whole)
    telling.hear()
    assert telling.allows(81) and telling.wholes == 2


def test_nobody_waits_for_a_recorder_that_is_stopped(telling: Told) -> None:
    """It is told what fits into the socket; more changes than are kept become everything anew."""
    telling.attach()
    large = Members(frozenset(i.to_bytes(4, "big") for i in range(50_000)))
    telling.wanted = replace(FIRST, sets={"s-large": large})
    telling.teller.tell([], telling.whole)
    assert telling.teller.go_on() and telling.teller.go_on()  # it is full, and says so at once
    for _ in range(1100):
        telling.teller.tell([CHANGE], telling.whole)
    assert telling.wholes == 2
    telling.wanted = SECOND
    telling.teller.tell(None, telling.whole)
    telling.hear()
    assert telling.known.ready and telling.allows(81) and telling.wholes == 3


def test_large_changes_are_not_kept_for_long(telling: Told) -> None:
    """Each keeps members that may be nobody's any more."""
    telling.attach()
    telling.teller.tell([], telling.whole)
    large = Members(frozenset(i.to_bytes(4, "big") for i in range(30_000)))
    change = WantedChanges(sets_changed={"s-large": SetChange(added=large)})
    for _ in range(3):
        telling.teller.tell([change], telling.whole)
    assert telling.wholes == 1
    telling.teller.tell([change], telling.whole)
    assert telling.wholes == 2
    telling.hear()
    telling.teller.tell([change, change], telling.whole)  # what was sent is not kept
    assert telling.wholes == 2
