"""A clock that is set is noticed once, one that is adjusted is not."""

from __future__ import annotations

from cni_calico.flows.clock_steps import ClockSteps


def test_a_clock_that_is_set() -> None:
    wall, steady = 1000.0, 5.0
    steps = ClockSteps(lambda: wall, lambda: steady)
    for set_by_s in (0.0, 0.5, -0.9, 3600.0, 0.0, -7.0, 0.2):
        steady += 60.0
        wall += 60.0 + set_by_s
        assert round(steps.take_step(), 3) == (set_by_s if abs(set_by_s) > 1 else 0.0)
        assert steps.take_step() == 0.0
