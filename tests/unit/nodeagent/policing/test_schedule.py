"""When the next round is due: after a failure, for a full comparison, while something has been begun."""

from __future__ import annotations

import pytest

from cni_calico.nodeagent.policing.schedule import (
    AUDIT_S,
    LOOK_S,
    RETRY_FIRST_S,
    RETRY_LAST_S,
    UNREAD_LAST_S,
    UNREAD_S,
    Pause,
    RoundReason,
    Schedule,
)

NEVER = float("inf")


class Timed:
    """A schedule at a time that is set; all was just compared, and is again after 90 s."""

    def __init__(self) -> None:
        self.time = 100.0
        self.schedule = Schedule(lambda: self.time)
        assert self.compares_all(100, 90)

    def compares_all(self, now: float, interval_s: float, *, at_once: bool = False) -> bool:
        self.time = now
        return self.schedule.compares_all(interval_s, at_once=at_once)

    def pause(self, now: float, next_look: float = NEVER, **begun: bool) -> Pause:
        self.time = now
        return self.schedule.pause(next_look=next_look, **begun)

    def patience_s(self, now: float, next_look: float = NEVER, **begun: bool) -> float:
        return self.pause(now, next_look, **begun).seconds

    def fail(self, now: float) -> None:
        self.time = now
        self.schedule.failed()

    def waits_to_retry(self, now: float) -> bool:
        self.time = now
        return self.schedule.waits_to_retry()


@pytest.fixture
def timed() -> Timed:
    return Timed()


def test_a_failed_round_is_tried_again_less_and_less_often(timed: Timed) -> None:
    now, pauses = 100.0, []
    for _ in range(10):
        timed.fail(now)
        pauses.append(timed.patience_s(now))
        assert timed.waits_to_retry(now) and not timed.waits_to_retry(now + pauses[-1])
        now += pauses[-1]
    assert pauses == pytest.approx([min(RETRY_FIRST_S * 2**i, RETRY_LAST_S) for i in range(10)])
    timed.schedule.succeeded()
    assert not timed.waits_to_retry(now)
    timed.fail(now)
    assert timed.patience_s(now) == pytest.approx(RETRY_FIRST_S)


def test_everything_is_compared_once_in_an_interval(timed: Timed) -> None:
    assert timed.patience_s(100) == 90
    assert not timed.compares_all(189, 90)
    assert timed.compares_all(190, 90) and timed.patience_s(190) == 90
    assert timed.compares_all(200, 90, at_once=True) and timed.patience_s(200) == 90


def test_a_shorter_interval_counts_at_once(timed: Timed) -> None:
    assert not timed.compares_all(101, 10)
    assert timed.patience_s(101) == 10


def test_no_comparison_before_a_failed_round_is_tried_again(timed: Timed) -> None:
    timed.fail(189.9)
    assert not timed.compares_all(190, 90)
    assert timed.compares_all(189.9 + RETRY_FIRST_S, 90)


def test_nothing_is_compared_where_nothing_is_in_force(timed: Timed) -> None:
    timed.schedule.compare_no_more()
    assert timed.patience_s(100) == NEVER
    assert timed.patience_s(100, 130) == 30  # the standing rules


def test_what_was_begun_goes_on_unless_a_failed_round_is_due_before(timed: Timed) -> None:
    assert timed.patience_s(500, audits=True) == pytest.approx(AUDIT_S)
    assert timed.patience_s(500, removes=True) == timed.patience_s(500, slices=True) == 0
    timed.fail(500)
    assert timed.patience_s(500.19, audits=True) == pytest.approx(RETRY_FIRST_S - 0.19)
    assert timed.patience_s(501, audits=True) == 0


def test_why_the_thread_waits(timed: Timed) -> None:
    """The reason is that of the moment that comes first."""
    everything = {"slices": True, "removes": True, "audits": True}
    assert timed.pause(100, 130, **everything).until is RoundReason.SLICE
    assert timed.pause(100, 130, removes=True, audits=True).until is RoundReason.REMOVAL
    assert timed.pause(100, 130, audits=True).until is RoundReason.AUDIT
    assert timed.pause(100, 130).until is RoundReason.STANDING
    assert timed.pause(100, 200).until is RoundReason.COMPARISON
    assert timed.schedule.pause(next_look=130, longest_s=LOOK_S) == Pause(LOOK_S, RoundReason.LOOK)
    timed.fail(100)
    for begun in ({}, {"audits": True}, {"removes": True}):
        assert timed.pause(101, 101, **begun).until is RoundReason.RETRY


def test_a_listing_that_is_needed_from_now_on_is_waited_for_only_so_long(timed: Timed) -> None:
    def may_begin(now: float, *, synced: bool = False, in_force: bool = True) -> bool:
        timed.time = now
        return timed.schedule.may_begin(synced=synced, in_force=in_force)

    assert may_begin(100, synced=True, in_force=False)
    assert not may_begin(101)
    assert timed.schedule.pause_unread(failing=False) == Pause(UNREAD_S, RoundReason.LISTING)
    assert timed.schedule.pause_unread(failing=True) == Pause(LOOK_S, RoundReason.LISTING)
    assert not may_begin(101 + UNREAD_LAST_S - 0.1)
    assert timed.schedule.pause_unread(failing=False).seconds == LOOK_S
    assert may_begin(101 + UNREAD_LAST_S) and not may_begin(1000, in_force=False)
    assert may_begin(1000, synced=True) and not may_begin(1001), "another listing is waited for anew"


def test_the_oldest_change_counts_until_all_is_in_force(timed: Timed) -> None:
    assert timed.schedule.waited_s() is None
    timed.schedule.changed(103)
    timed.schedule.changed(101)
    timed.time = 111
    assert timed.schedule.waited_s() == 10
    assert timed.schedule.waited_s() is None


def test_a_change_counts_from_when_it_could_be_known(timed: Timed) -> None:
    """Not while other listings were being read, nor while no policy was to be in force."""
    timed.schedule.know_now()
    assert timed.schedule.waited_s() is None
    timed.schedule.changed(1)
    timed.time = 300
    timed.schedule.know_now()
    timed.time = 302
    assert timed.schedule.waited_s() == 2
    timed.schedule.changed(303)
    timed.schedule.nothing_waits()
    timed.schedule.changed(400)
    timed.time = 401
    assert timed.schedule.waited_s() == 1
