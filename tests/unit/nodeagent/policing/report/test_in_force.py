"""Who listens hears of what has come into force, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cni_calico.nodeagent.policing.report.in_force import RulesInForce
from cni_calico.policy.wanted import Wanted, WantedChanges

ONE, OTHER = WantedChanges(sets_removed=frozenset({"a"})), WantedChanges(sets_removed=frozenset({"b"}))


class Listener:
    def __init__(self) -> None:
        self.is_there = True
        self.heard: list[Sequence[WantedChanges] | str | None] = []

    def listens(self) -> bool:
        return self.is_there

    def tell(self, changes: Sequence[WantedChanges] | None, wanted: Callable[[], Wanted]) -> None:
        self.heard.append(changes)
        assert wanted() == Wanted()

    def tell_lifted(self) -> None:
        self.heard.append("lifted")


def heard_by(listener: Listener | None) -> RulesInForce:
    """Everything has been told."""
    rules = RulesInForce()
    rules.listeners = () if listener is None else (listener,)
    rules.applied(Wanted)
    if listener is not None:
        listener.heard.clear()
    return rules


def test_changes_wait_until_a_round_succeeds() -> None:
    listener = Listener()
    rules = heard_by(listener)
    for change in (ONE, WantedChanges(), OTHER):
        rules.note(change)
    assert listener.heard == []
    rules.applied(Wanted)
    rules.applied(Wanted)
    assert listener.heard == [[ONE, OTHER], []]


def test_what_was_lifted_is_not_told_later() -> None:
    listener = Listener()
    rules = heard_by(listener)
    rules.note(ONE)
    rules.lifted()
    rules.applied(Wanted)
    assert listener.heard == ["lifted", []]


def test_more_changes_than_are_kept_are_everything() -> None:
    listener = Listener()
    rules = heard_by(listener)
    for _ in range(101):
        rules.note(ONE)
    rules.applied(Wanted)
    rules.note(ONE)
    rules.applied(Wanted)
    assert listener.heard == [None, [ONE]]


def test_nothing_is_kept_for_nobody() -> None:
    listener = Listener()
    listener.is_there = False
    for rules in (heard_by(listener), heard_by(None)):
        rules.note(ONE)
        rules.lifted()
        rules.applied(Wanted)
        listener.is_there = not listener.is_there
        rules.applied(Wanted)
    assert listener.heard == [[]]


def test_an_engine_that_begins_anew_tells_everything() -> None:
    listener = Listener()
    rules = heard_by(listener)
    rules.note(ONE)
    rules.begin()
    rules.note(OTHER)
    rules.applied(Wanted)
    assert listener.heard == [None]
