"""Acts that nobody waits for."""

from __future__ import annotations

import threading

import pytest

from cni_calico.daemon.unattended import Unattended


def test_acts_are_carried_out_in_order_and_one_that_fails_harms_none() -> None:
    done: list[int] = []
    unattended = Unattended("test")
    for number in range(5):
        unattended.submit(lambda number=number: done.append(10 // (number - 2)))
    assert unattended.stop(30)
    assert done == [10 // -2, 10 // -1, 10, 5]


def test_stopping_waits_for_what_is_left_but_not_for_ever() -> None:
    hanging, may_end = threading.Event(), threading.Event()
    unattended = Unattended("test")
    unattended.submit(lambda: (hanging.set(), may_end.wait(30)))
    assert hanging.wait(30)
    try:
        assert not unattended.stop(0.01)
        unattended.submit(hanging.clear)
    finally:
        may_end.set()
    assert unattended.stop(30)
    assert hanging.is_set(), "what comes after the end is dropped"


def test_an_act_for_which_there_is_no_thread_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[str] = []
    short, starting = Unattended("short"), Unattended("starting")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        short.submit(lambda: done.append("never"))
        starting.submit(lambda: done.append("never"))
        assert short.stop(0)
    starting.submit(lambda: done.append("later"))
    assert starting.stop(30) and done == ["later"]


def test_without_acts_there_is_no_thread() -> None:
    before = threading.active_count()
    assert Unattended("test").stop(0) and threading.active_count() == before
