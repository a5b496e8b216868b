"""Spans against sets of numbers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.policy.judge.spans import Spans, difference, intersection, spans_of, union

PIECES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda p: (p[0], p[0] + p[1])), max_size=8)


def numbers(spans: Spans) -> set[int]:
    return {number for low, high in spans for number in range(low, high + 1)}


def require_spans(spans: Spans) -> None:
    """Sorted, and no two of them touch."""
    assert all(low <= high for low, high in spans)
    assert all(one[1] + 1 < other[0] for one, other in pairwise(spans))


@given(PIECES, PIECES)
def test_as_sets_of_numbers(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    one, other = spans_of(some), spans_of(others)
    assert numbers(one) == numbers(tuple(some))
    for found, expected in (
        (union(one, other), numbers(one) | numbers(other)),
        (intersection(one, other), numbers(one) & numbers(other)),
        (difference(one, other), numbers(one) - numbers(other)),
    ):
        assert numbers(found) == expected
        require_spans(found)
    require_spans(one)
