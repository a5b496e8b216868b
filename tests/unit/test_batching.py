"""Batches under several threads: every item is answered exactly once, whoever carries its batch out."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.batching import Batcher
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DeadlineExceeded, KernelError
from tests.deadlines import SOON, until


class Held:
    """A ``run`` that waits for ``release`` in its first batch, so that what comes meanwhile piles up."""

    def __init__(self, run=lambda items: list(items)) -> None:
        self.run = run
        self.batches: list[list] = []
        self.entered = threading.Event()
        self.go = threading.Event()

    def __call__(self, items):
        self.batches.append(list(items))
        if len(self.batches) == 1:
            self.entered.set()
            assert self.go.wait(20)
        return self.run(items)


def pile_up(batcher, held, items, deadline=SOON):
    """Futures of a first item, which is under way, and of ``items``, which wait in this order."""
    pool = ThreadPoolExecutor(16)
    first = pool.submit(batcher.submit, "first", deadline, "test")
    assert held.entered.wait(20)
    futures = []
    for number, item in enumerate(items, 1):
        futures.append(pool.submit(batcher.submit, item, deadline, "test"))
        until(lambda number=number: len(batcher._waiting) == number, "it waits")
    return pool, first, futures


def test_what_arrives_meanwhile_is_the_next_batch():
    held = Held()
    batcher = Batcher(held, limit=10)
    pool, first, futures = pile_up(batcher, held, ["a", "b", "c"])
    held.go.set()
    assert first.result(20) == "first" and [f.result(20) for f in futures] == ["a", "b", "c"]
    assert held.batches == [["first"], ["a", "b", "c"]]
    assert (batcher.sizes[1], batcher.sizes[3]) == (1, 1)
    pool.shutdown()


def test_a_batch_is_never_longer_than_the_limit_and_keeps_the_order():
    held = Held()
    batcher = Batcher(held, limit=2)
    pool, _, futures = pile_up(batcher, held, list("abcde"))
    held.go.set()
    assert [f.result(20) for f in futures] == list("abcde")
    assert held.batches == [["first"], ["a", "b"], ["c", "d"], ["e"]]
    pool.shutdown()


def test_each_gets_its_own_outcome_or_error():
    held = Held(lambda items: [ValueError(item) if item in "bd" else item.upper() for item in items])
    batcher = Batcher(held, limit=10)
    pool, _, futures = pile_up(batcher, held, list("abcd"))
    held.go.set()
    assert [futures[0].result(20), futures[2].result(20)] == ["A", "C"]
    for index, item in ((1, "b"), (3, "d")):
        with pytest.raises(ValueError, match=item):
            futures[index].result(20)
    pool.shutdown()


@pytest.mark.parametrize("wrong", [lambda items: [1], lambda items: [*items, 1]])
def test_too_few_or_too_many_outcomes_are_everybodys_error(wrong):
    held = Held(lambda items: list(items) if items == ["first"] else wrong(items))
    batcher = Batcher(held, limit=10)
    pool, first, futures = pile_up(batcher, held, ["a", "b"])
    held.go.set()
    assert first.result(20) == "first"
    for future in futures:
        with pytest.raises(ValueError, match="zip"):
            future.result(20)
    pool.shutdown()


class Broken(BaseException):
    """Not an Exception: what ends a thread."""


@pytest.mark.parametrize("error", [KernelError("cannot", errno=5, details="hint"), Broken("end")])
def test_when_run_raises_all_of_them_get_it_and_the_next_batch_goes_on(error):
    def run(items):
        if "bad" in items:
            raise error
        return list(items)

    held = Held(run)
    batcher = Batcher(held, limit=2)
    pool, _, futures = pile_up(batcher, held, ["bad", "a", "b"])
    held.go.set()
    raised = [future.exception(20) for future in futures[:2]]
    assert [type(e) for e in raised] == [type(error)] * 2 and raised[0] is not raised[1]
    assert [str(e) for e in raised] == [str(error)] * 2
    if isinstance(error, CalicoError):
        assert [(e.errno, e.details) for e in raised] == [(5, "hint")] * 2
    assert futures[2].result(20) == "b"
    assert batcher.submit("again", SOON, "test") == "again"
    pool.shutdown()


def test_a_deadline_while_waiting_takes_the_item_out():
    held = Held()
    batcher = Batcher(held, limit=10)
    pool, first, _ = pile_up(batcher, held, [])
    with pytest.raises(DeadlineExceeded, match="cannot write it: the deadline passed while others were served"):
        batcher.submit("late", Deadline.after(0.02), "write it")
    held.go.set()
    assert first.result(20) == "first"
    assert batcher.submit("next", SOON, "test") == "next"
    assert held.batches == [["first"], ["next"]]
    pool.shutdown()


def test_an_item_whose_batch_is_under_way_waits_for_its_outcome_past_its_deadline():
    """It may have been done: only the outcome says so."""
    entered, go = threading.Event(), threading.Event()

    def run(items):
        if "slow" in items:
            entered.set()
            assert go.wait(20)
        return list(items)

    held = Held(run)
    batcher = Batcher(held, limit=10)
    pool, _, futures = pile_up(batcher, held, ["slow"])
    deadline = Deadline.after(0.2)
    follower = pool.submit(batcher.submit, "follower", deadline, "test")
    until(lambda: len(batcher._waiting) == 2, "it waits")
    held.go.set()
    assert entered.wait(20)
    until(deadline.expired, "the deadline passes")
    assert not follower.done()
    go.set()
    assert follower.result(20) == "follower" and futures[0].result(20) == "slow"
    pool.shutdown()


def test_an_heir_whose_deadline_has_passed_still_leads_for_the_others():
    held = Held()
    batcher = Batcher(held, limit=10)
    pool, _, _ = pile_up(batcher, held, [])
    taken, given = threading.Event(), threading.Event()
    await_turn = batcher._await

    def late(slot, deadline, doing):
        """The heir is told in the very moment in which its patience ends."""
        if slot.item != "heir":
            return await_turn(slot, deadline, doing)
        taken.set()
        assert given.wait(20)
        return await_turn(slot, Deadline.after(0), doing)

    batcher._await = late
    heir = pool.submit(batcher.submit, "heir", SOON, "test")
    assert taken.wait(20)
    other = pool.submit(batcher.submit, "other", SOON, "test")
    until(lambda: len(batcher._waiting) == 2, "both wait")
    held.go.set()
    until(lambda: batcher._waiting[0].leads, "the heir is told")
    given.set()
    assert heir.result(20) == "heir" and other.result(20) == "other"
    pool.shutdown()


@settings(max_examples=30, deadline=None, database=None)
@given(
    limit=st.integers(1, 5),
    threads=st.integers(1, 8),
    each=st.integers(1, 12),
    bad=st.sets(st.integers(0, 95)),
    broken=st.sets(st.integers(0, 40)),
)
def test_every_item_is_run_and_answered_exactly_once(limit, threads, each, bad, broken):
    ran: Counter = Counter()
    running = threading.Lock()
    batches = [0]

    def run(items):
        assert running.acquire(blocking=False), "two batches at a time"
        try:
            assert 1 <= len(items) <= limit
            ran.update(items)
            batches[0] += 1
            if batches[0] in broken:
                raise RuntimeError("broken")
            return [ValueError(item) if item in bad else -item for item in items]
        finally:
            running.release()

    batcher = Batcher(run, limit=limit)

    def work(number):
        answers = []
        for item in range(number * each, (number + 1) * each):
            try:
                answers.append((item, batcher.submit(item, SOON, "test")))
            except (ValueError, RuntimeError) as e:
                answers.append((item, e))
        return answers

    with ThreadPoolExecutor(threads) as pool:
        answers = [answer for found in pool.map(work, range(threads)) for answer in found]
    assert ran == Counter(range(threads * each))
    assert sum(size * count for size, count in enumerate(batcher.sizes)) == threads * each
    for item, answer in answers:
        if isinstance(answer, RuntimeError):
            assert broken
        elif item in bad:
            assert isinstance(answer, ValueError) and answer.args == (item,)
        else:
            assert answer == -item
    assert not batcher._waiting and not batcher._busy
