"""When the next round is due: after a failure, for a full comparison, while something has been begun."""

from __future__ import annotations

import pytest

from cni_calico.nodeagent.policing.schedule import RETRY_FIRST_S, RETRY_LAST_S, Schedule

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

    def patience_s(self, now: float, next_look: float = NEVER, pause_s: float | None = None) -> float:
        self.time = now
        return self.schedule.patience_s(next_look, pause_s)

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
    assert timed.patience_s(500, NEVER, 0.5) == 0.5
    timed.fail(500)
    assert timed.patience_s(500, NEVER, 0.5) == pytest.approx(RETRY_FIRST_S)
    assert timed.patience_s(501, NEVER, 0.5) == 0


def test_the_oldest_change_counts_until_all_is_in_force(timed: Timed) -> None:
    assert timed.schedule.waited_s() is None
    timed.schedule.changed(103)
    timed.schedule.changed(101)
    timed.time = 111
    assert timed.schedule.waited_s() == 10
    assert timed.schedule.waited_s() is None
