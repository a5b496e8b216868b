"""Attempts of a controller, with a clock and a lease in the test's hand."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from cni_calico.controllers.attempts import Attempts, Leading, Sight
from cni_calico.controllers.counters import LoopNumbers
from cni_calico.controllers.due import FIRST_PAUSE_S
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied, DatastoreUnavailable
from cni_calico.model.keys import ResourceKey
from tests.fakes.memory_store import MemoryStore
from tests.fakes.notes import Notes

GOOD, BAD = (ResourceKey("Profile", name) for name in ("good", "bad"))


class World:
    """``broken`` keys fail; ``tried`` are the attempts; we lead for ``lead`` more questions."""

    def __init__(self) -> None:
        self.now, self.lead = 0.0, 100
        self.broken, self.tried = {BAD}, list[ResourceKey]()
        self.numbers, self.log = LoopNumbers(), Notes()
        self.attempts = Attempts(lambda key: key.name, self.leads, self.numbers, self.log, lambda: self.now)

    def leads(self) -> bool:
        self.lead -= 1
        return self.lead >= 0

    def reconcile(self, key: ResourceKey, deadline: Deadline) -> int:
        self.tried.append(key)
        if key in self.broken:
            raise DatastoreUnavailable("no answer")
        return 2

    def round(self) -> list[ResourceKey]:
        self.tried.clear()
        self.attempts.round(self.reconcile)
        return list(self.tried)


def test_a_failure_is_said_once_counted_and_tried_again() -> None:
    world = World()
    world.attempts.tasks.note((BAD, GOOD), world.now)
    assert world.round() == [BAD, GOOD] and world.round() == []
    assert (world.numbers.writes, world.numbers.failures, world.numbers.failing, world.numbers.waiting) == (2, 1, 1, 1)
    world.now += FIRST_PAUSE_S
    assert world.round() == [BAD]
    assert world.log.said == [f"bad: no answer; next try in {FIRST_PAUSE_S:g} s"]
    world.broken.clear()
    world.now += 2 * FIRST_PAUSE_S
    assert world.round() == [BAD]
    assert (world.numbers.writes, world.numbers.failures, world.numbers.failing, world.numbers.waiting) == (4, 2, 0, 0)


def test_nothing_is_tried_without_the_lease_and_the_next_leader_begins_anew() -> None:
    world = World()
    world.attempts.tasks.note((BAD, GOOD), world.now)
    world.lead = 1
    assert world.round() == [BAD]
    world.attempts.forget()
    world.lead = 100
    assert world.round() == [] and (world.numbers.failing, world.numbers.waiting) == (0, 0)


def test_work_is_begun_only_while_we_lead() -> None:
    stopping, asked, worked = threading.Event(), list[bool](), list[int]()

    def remaining_s() -> float:
        asked.append(len(asked) % 2 == 1)
        if len(asked) == 2:
            stopping.set()
        return 1.0 if asked[-1] else 0.0

    leading = Leading(MemoryStore(), remaining_s, lambda: 60.0, Notes(), LoopNumbers())
    leading.work(lambda: worked.append(len(asked)), stopping)
    assert worked == [2]


def test_why_nothing_can_be_read_is_said_once_and_its_end_too() -> None:
    numbers, log = LoopNumbers(), Notes()
    sight = Sight("policy", numbers, log)
    denied = DatastoreDenied("cannot list policies: may not list", details="the manifests' role allows it")
    well, blind = (SimpleNamespace(error=error, healthy=error is None) for error in (None, denied))
    starting = SimpleNamespace(error=None, healthy=False)
    assert sight.is_clear((well, well)) and not sight.is_clear((well, starting))
    assert (numbers.error, log.said) == ("", [])
    assert not sight.is_clear((well, blind)) and not sight.is_clear((well, blind))
    assert numbers.error == "cannot list policies: may not list (the manifests' role allows it)"
    assert log.said == [f"policy does nothing before it can read what it needs: {numbers.error}"]
    assert sight.is_clear((well, well)) and numbers.error == ""
    assert not sight.is_clear((blind,)) and len(log.said) == 2
