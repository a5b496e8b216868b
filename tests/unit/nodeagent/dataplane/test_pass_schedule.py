"""When the data plane's next pass is due: at first, after a failure, for a full resync; how long it rests before."""

from __future__ import annotations

import pytest

from cni_calico.nodeagent.dataplane.pass_schedule import (
    CREDIT_S,
    GATHER_S,
    MAX_INTERVAL_S,
    MIN_INTERVAL_S,
    PENDING_S,
    RETRY_FIRST_S,
    RETRY_LAST_S,
    SHARE,
    PassRest,
    PassSchedule,
)

NEVER, HEARTBEAT_S = float("inf"), 10.0


class Timed:
    def __init__(self) -> None:
        self.schedule = PassSchedule()

    def end(self, now: float, *, resync_s: float = 90, failed: bool = False, pending: bool = False) -> bool:
        """Returns whether the pass was a full one."""
        full = self.schedule.is_full(now)
        self.schedule.ended(now, full=full, resync_s=resync_s, failed=failed, pending=pending)
        return full

    def patience_s(self, now: float, longest_s: float = NEVER) -> float:
        return self.schedule.patience_s(now, longest_s)


@pytest.fixture
def timed_passes() -> Timed:
    return Timed()


def test_the_first_pass_is_full_and_due_at_once(timed_passes: Timed) -> None:
    assert timed_passes.schedule.is_due(1000) and not timed_passes.schedule.has_begun
    assert 0 < timed_passes.patience_s(1000) < 1
    assert timed_passes.end(1000) and timed_passes.schedule.has_begun
    assert not timed_passes.schedule.is_due(1000)


def test_a_full_resync_comes_in_an_interval(timed_passes: Timed) -> None:
    timed_passes.end(1000)
    assert timed_passes.patience_s(1000) == 90 and timed_passes.patience_s(1000, HEARTBEAT_S) == HEARTBEAT_S
    assert not timed_passes.end(1060), "a pass for a change is none"
    assert timed_passes.patience_s(1060) == 30 and not timed_passes.schedule.is_due(1089)
    assert timed_passes.schedule.is_due(1090) and timed_passes.patience_s(1100) == 0
    assert timed_passes.end(1090, resync_s=0) and timed_passes.patience_s(1090) == NEVER


def test_a_failed_pass_is_tried_again_less_and_less_often(timed_passes: Timed) -> None:
    timed_passes.end(1000)
    pauses = []
    for _ in range(8):
        timed_passes.end(1001, failed=True)
        pauses.append(timed_passes.patience_s(1001))
    assert pauses == [min(RETRY_FIRST_S * 2**i, RETRY_LAST_S) for i in range(8)]
    timed_passes.end(1002)
    assert timed_passes.patience_s(1002) == 88
    timed_passes.end(1003, failed=True, pending=True)
    assert timed_passes.patience_s(1003) == RETRY_FIRST_S


def test_what_is_pending_is_looked_at_soon(timed_passes: Timed) -> None:
    timed_passes.end(1000, pending=True)
    assert timed_passes.patience_s(1000) == PENDING_S and timed_passes.schedule.is_due(1000 + PENDING_S)
    timed_passes.end(1001)
    assert timed_passes.patience_s(1001) == 89


@pytest.mark.parametrize("used_s", [0.001, 0.0025, 0.012, 0.05, 0.1])
def test_passes_that_go_on_and_on_use_a_tenth_of_a_processor(used_s: float) -> None:
    rest, now, used = PassRest(), 1000.0, 0.0
    while now < 1060:
        now += used_s
        used += used_s
        now += rest.pause_s(now, used_s)
        assert used <= (now - 1000) / 10 + CREDIT_S + used_s + 1e-9


def test_a_change_that_comes_alone_is_not_waited_with() -> None:
    rest = PassRest()
    for i in range(100):
        assert rest.pause_s(1000.0 + i, 0.08) == GATHER_S
    pauses = [rest.pause_s(1100.0 + i * GATHER_S, 0.003) for i in range(100)]
    assert pauses[0] == GATHER_S and pauses[-1] == MIN_INTERVAL_S


@pytest.mark.parametrize("used_s", [0.004, 0.01, 0.02])
def test_passes_that_follow_one_another_on_credit_use_a_fifth_of_a_processor(used_s: float) -> None:
    rest, now, used = PassRest(), 1000.0, 0.0
    while used + used_s < CREDIT_S:
        now, used = now + used_s, used + used_s
        now += rest.pause_s(now, used_s)
    assert used <= (now - 1000) / (SHARE + 1) + used_s


def test_a_full_resync_lets_no_change_wait(timed_passes: Timed) -> None:
    """Its interval is its rest, if it is long enough for what it used."""
    assert timed_passes.end(1000) and timed_passes.schedule.pause_s(1000, 0.9) == GATHER_S
    assert not timed_passes.end(1001) and timed_passes.schedule.pause_s(1001, CREDIT_S) == GATHER_S
    assert not timed_passes.end(1001.1) and timed_passes.schedule.pause_s(1001.1, 0.04) > MIN_INTERVAL_S
    assert timed_passes.end(1090) and timed_passes.schedule.pause_s(1090, 10.0) == MAX_INTERVAL_S
    assert timed_passes.end(2000, resync_s=0) and timed_passes.schedule.pause_s(2000, 60.0) == GATHER_S


def test_a_slow_pass_is_not_followed_by_a_long_absence() -> None:
    assert PassRest().pause_s(1000.0, 60.0) == MAX_INTERVAL_S
