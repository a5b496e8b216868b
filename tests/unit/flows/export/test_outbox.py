"""What is to be sent, has been sent, and was acknowledged: nothing is lost without being counted, or sent in vain."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cni_calico.flows.export.outbox import KEPT_S, QUEUE, UNANSWERED, Outbox


def test_the_newest_are_lost_and_counted() -> None:
    outbox: Any = Outbox()
    outbox.add(range(QUEUE + 7))
    assert outbox.lost == 7 and len(outbox) == QUEUE
    assert outbox.send() == 0
    outbox.add([-1])
    assert outbox.lost == 8  # one without receipt takes room too


def test_so_many_are_sent_before_a_receipt() -> None:
    outbox: Any = Outbox()
    outbox.add(range(UNANSWERED + 2))
    assert [outbox.send() for _ in range(UNANSWERED + 1)] == [*range(UNANSWERED), None]
    outbox.acknowledge(0.0)
    assert outbox.send() == UNANSWERED and outbox.send() is None


def test_what_was_acknowledged_long_ago_is_not_repeated() -> None:
    outbox: Any = Outbox()
    outbox.add(["old", "new", "waiting"])
    for now in (0.0, KEPT_S):
        outbox.send()
        outbox.acknowledge(now)
    outbox.repeat(KEPT_S + 1)
    assert [outbox.send(), outbox.send(), outbox.send()] == ["new", "waiting", None]


def test_a_receipt_for_nothing_is_none() -> None:
    outbox = Outbox()
    outbox.acknowledge(0.0)
    assert outbox.received == 0


class Collectors(RuleBasedStateMachine):
    """A collector as upstream's: it has what it received, until it begins anew."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox: Any = Outbox()
        self.offered: list[int] = []
        self.on_the_way: list[int] = []
        self.has: list[int] = []

    @rule(count=st.integers(1, 6))
    def offer(self, count: int) -> None:
        more = [len(self.offered) + at for at in range(count)]
        self.offered += more
        self.outbox.add(more)

    @rule()
    def send(self) -> None:
        one = self.outbox.send()
        if one is not None:
            self.on_the_way.append(one)

    @rule()
    def receive(self) -> None:
        if self.on_the_way:
            self.has.append(self.on_the_way.pop(0))
            self.outbox.acknowledge(0.0)

    @rule()
    def interrupt(self) -> None:
        """Before the collector has it."""
        self.on_the_way.clear()
        self.outbox.interrupt()

    @rule()
    def begin_anew(self) -> None:
        self.interrupt()
        self.has.clear()
        self.outbox.repeat(0.0)

    @invariant()
    def each_is_in_one_place(self) -> None:
        assert len(self.has) == len(set(self.has))
        waiting = len(self.outbox)
        assert len(self.has) + waiting + self.outbox.lost == len(self.offered)

    def teardown(self) -> None:
        while (one := self.outbox.send()) is not None or self.on_the_way:
            if one is not None:
                self.on_the_way.append(one)
            self.receive()
        assert len(self.has) + self.outbox.lost == len(self.offered)


TestCollectors = Collectors.TestCase
