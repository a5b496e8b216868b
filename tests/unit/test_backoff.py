"""Pauses grow to a limit and begin again."""

from cni_calico.backoff import Backoff


def test_pauses_double_up_to_the_limit_and_begin_again():
    backoff = Backoff(1.0, 5.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert [backoff.next(), backoff.next()] == [1.0, 2.0]
