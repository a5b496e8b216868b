"""Which of the connections with one key an end belongs to."""

from __future__ import annotations

import pytest

from cni_calico.flows.reuse import ReusedKeys


def test_the_oldest_has_the_first_end() -> None:
    keys = ReusedKeys()
    assert keys.take_waiting(b"a") is None
    for record, key in enumerate((b"a", b"b", b"a"), 1):
        keys.wait_for_end(key, record, record)
    assert [keys.take_waiting(b"a") for _ in range(3)] == [1, 3, None]
    assert keys.take_overdue(2) == [] and keys.take_overdue(3) == [2] and keys.take_waiting(b"b") is None


def test_what_decided_again_is_as_many_connections_as_there_are_ends() -> None:
    keys = ReusedKeys()
    for number in (1, 2, 1, 2):
        keys.note_repeat(b"a", number, 100)
    assert keys.take_repeats(b"b", 50) == []
    assert keys.take_repeats(b"a", 50) == [1, 2] and keys.take_repeats(b"a", 60) == [1, 2]
    assert keys.take_repeats(b"a", 70) == []
    for number in range(100):
        keys.note_repeat(b"a", number, 100)
    assert keys.take_repeats(b"a", 50) == list(range(92, 100))


def test_a_later_connection_is_not_what_decided_again_before() -> None:
    keys = ReusedKeys()
    for began in (0, 101):  # unknown, later
        keys.note_repeat(b"a", 1, 100)
        assert keys.take_repeats(b"a", began) == []
    keys.note_repeat(b"a", 1, 100)
    keys.forget_repeats(b"a")
    assert keys.take_repeats(b"a", 50) == []


def test_only_so_many_keys_are_remembered() -> None:
    keys = ReusedKeys()
    for i in range(10_001):
        keys.note_repeat(i.to_bytes(4, "big"), 1, 100)
    assert keys.take_repeats(bytes(4), 50) == [] and keys.take_repeats((10_000).to_bytes(4, "big"), 50) == [1]


def test_of_too_many_that_wait_the_oldest_are_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within the time: who makes connections fast enough must not fill the memory."""
    monkeypatch.setattr("cni_calico.flows.reuse._MOST", 2)
    reused = ReusedKeys()
    for number in range(5):
        reused.wait_for_end(bytes([number]), number, 100 + number)
    assert reused.take_overdue(101) == [0, 1, 2]
    assert reused.take_overdue(101) == [] and reused.take_waiting(b"\3") == 3
