"""Several commits at a time: each has its own outcome, and no more threads work than are allowed."""

from __future__ import annotations

import threading

import pytest

from cni_calico.datastore.overlapped import run_each
from cni_calico.errors import CalicoError, DatastoreDenied


def test_each_has_its_own_outcome_in_order() -> None:
    def do(n: int) -> int:
        if n % 3 == 0:
            raise DatastoreDenied(f"not {n}")
        return n * 2

    outcomes = run_each(range(20), do)
    assert [str(o) if isinstance(o, CalicoError) else o for o in outcomes] == [
        f"not {n}" if n % 3 == 0 else n * 2 for n in range(20)
    ]
    assert run_each([], do) == [] and run_each([1, 2], do) == [2, 4]


@pytest.mark.parametrize(("items", "width", "workers"), [(12, 4, 4), (5, 8, 5), (2, 8, 1)])
def test_so_many_at_a_time(items: int, width: int, workers: int) -> None:
    all_at_work = threading.Barrier(workers)
    seen: set[int] = set()

    def do(n: int) -> None:
        seen.add(threading.get_ident())
        if n < workers:
            all_at_work.wait(20)  # broken unless that many come at the same time

    assert run_each(range(items), do, width=width) == [None] * items
    assert len(seen) <= workers


def test_what_nobody_expects_is_raised_when_all_are_done() -> None:
    done = []

    def do(n: int) -> None:
        if n == 1:
            raise ZeroDivisionError
        done.append(n)

    with pytest.raises(ZeroDivisionError):
        run_each(range(6), do)
    assert sorted(done) == [0, 2, 3, 4, 5]
