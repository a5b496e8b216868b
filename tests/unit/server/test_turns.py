"""Turns of calls that set up interfaces: one after the other, but nobody waits for one that is stuck."""

from __future__ import annotations

import threading

import pytest

from cni_calico.server.turns import LinkTurn


def test_two_are_not_inside_at_once() -> None:
    turn, inside, most, together = LinkTurn(patience_s=60), [0], [0], threading.Barrier(4)

    def work() -> None:
        together.wait(10)
        for _ in range(200):
            with turn.taken():
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1]


def test_one_that_is_stuck_holds_nobody_up_and_its_turn_stays_its_own() -> None:
    turn = LinkTurn(patience_s=0.01)
    with turn.taken():
        with turn.taken():
            pass
        with turn.taken():  # the one before had no turn to give away
            pass
    with turn.taken():
        pass


def test_an_error_inside_gives_the_turn_back() -> None:
    turn, done = LinkTurn(patience_s=60), threading.Event()
    with pytest.raises(OSError), turn.taken():
        raise OSError

    def work() -> None:
        with turn.taken():
            done.set()

    threading.Thread(target=work, daemon=True).start()
    assert done.wait(30)
