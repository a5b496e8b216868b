"""Denied connections that may be tried again: by key, by age, and few bytes of each."""

from __future__ import annotations

import sys

from cni_calico.flows.attempts import DeniedAttempts
from cni_calico.flows.outcomes import NOBODY

S = 1_000_000
NOW = 1_790_000_000 * S


def test_each_has_its_record_and_goes_in_its_second() -> None:
    attempts = DeniedAttempts()
    for number in range(6):
        attempts.put(b"%d" % number, 1 << 40 | number, NOW + number * S + S // 2)
    assert [attempts.get(b"%d" % number) for number in range(6)] == [1 << 40 | number for number in range(6)]
    assert attempts.get(b"-") is None and attempts.pop(b"-") is None and b"-" not in attempts
    assert attempts.among({b"2", b"4", b"-"}) == {b"2", b"4"}
    assert attempts.pop(b"2") == 1 << 40 | 2 and b"2" not in attempts
    attempts.put(b"2", 7, NOW + 6 * S)  # denied again
    assert [*attempts.newest_first(NOW + 4 * S)] == [(b"2", 7), (b"5", 1 << 40 | 5), (b"4", 1 << 40 | 4)]
    attempts.forget(NOW + 3 * S + S // 4)
    assert attempts.among({b"%d" % number for number in range(6)}) == {b"2", b"3", b"4", b"5"}
    attempts.limit(2)
    assert attempts.among({b"%d" % number for number in range(6)}) == {b"2", b"5"}
    attempts.limit(2)
    attempts.forget(NOW + 60 * S)
    assert not attempts.among({b"2", b"5"})
    attempts.put(b"6", 8, NOW)
    attempts.clear()
    assert b"6" not in attempts


def test_what_has_let_one_through_is_forgotten_with_it() -> None:
    attempts = DeniedAttempts()
    for number in range(4):
        attempts.put(b"%d" % number, number, NOW + number * S)
        attempts.let_through(b"%d" % number, (300 + number, 0, 0, 0))
    assert attempts.let_through_by(b"3") == (303, 0, 0, 0) and attempts.let_through_by(b"-") == NOBODY
    attempts.pop(b"3")
    attempts.limit(2)
    attempts.forget(NOW + 2 * S)
    assert [attempts.let_through_by(b"%d" % number) for number in range(4)] == [NOBODY, NOBODY, (302, 0, 0, 0), NOBODY]
    attempts.clear()
    assert attempts.let_through_by(b"2") == NOBODY and not attempts._let_through


def test_a_record_and_a_time_are_one_number_of_32_bytes() -> None:
    """Until a quarter of a billion connections have been recorded; 36 after that."""
    attempts = DeniedAttempts()
    attempts.put(b"0", 200_000_000, NOW)
    assert {sys.getsizeof(number) for number in attempts._kept.numbers()} == {32}
