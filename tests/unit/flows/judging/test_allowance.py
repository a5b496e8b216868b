"""A share of the time is all that judging takes."""

from cni_calico.flows.judging.allowance import Allowance


def test_what_was_taken_too_much_is_waited_for() -> None:
    time = worked = 0.0
    allowance = Allowance(lambda: time, lambda: worked, share=0.1)
    assert allowance.is_left()
    with allowance:
        worked += 1.0
    assert not allowance.is_left()
    time += 8.0
    assert not allowance.is_left()  # 0.8 of the 0.9 that were too much
    time += 2.0
    assert allowance.is_left()
    time += 1e6
    assert allowance.is_left()
    with allowance:
        worked += 0.2
    assert not allowance.is_left()  # what was not used does not add up
