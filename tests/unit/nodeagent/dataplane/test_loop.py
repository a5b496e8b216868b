"""How much of a processor the agent may take while everything changes all the time."""

from __future__ import annotations

import pytest

from cni_calico.nodeagent.dataplane.loop import MAX_INTERVAL_S, MIN_INTERVAL_S, pause_after


@pytest.mark.parametrize("took_s", [0.0, 0.001, 0.012, 0.05, 0.1])
def test_passes_take_at_most_a_tenth_of_the_time(took_s: float) -> None:
    pause = pause_after(took_s)
    assert took_s <= (took_s + pause) / 10 + 1e-9
    assert pause >= MIN_INTERVAL_S


def test_a_slow_pass_is_not_followed_by_a_long_absence() -> None:
    assert pause_after(60.0) == MAX_INTERVAL_S
