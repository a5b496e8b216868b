"""PURE: sets of numbers from 0 to 65535 as spans: what ports a rule has, and what is left of them.

Rule: a value is a tuple of (low, high), both included, sorted and disjoint; each function goes through its arguments
once, so that a list of thousands of ports costs what it is long.
"""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]
Spans = tuple[Span, ...]

NO_SPANS: Spans = ()


def spans_of(pieces: Iterable[Span]) -> Spans:
    """Any pieces, in any order, joined where they touch."""
    return _joined(sorted(pieces))


def union(one: Spans, other: Spans) -> Spans:
    return _joined(sorted(one + other))


def _joined(ordered: Iterable[Span]) -> Spans:
    found: list[Span] = []
    for low, high in ordered:
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def intersection(one: Spans, other: Spans) -> Spans:
    found: list[Span] = []
    i = j = 0
    while i < len(one) and j < len(other):
        low, high = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if low <= high:
            found.append((low, high))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def difference(one: Spans, other: Spans) -> Spans:
    """What of ``one`` is not in ``other``."""
    found: list[Span] = []
    j = 0
    for first, last in one:
        low = first
        while j < len(other) and other[j][1] < low:
            j += 1
        k = j
        while k < len(other) and other[k][0] <= last:
            if low < other[k][0]:
                found.append((low, other[k][0] - 1))
            low = other[k][1] + 1
            k += 1
        if low <= last:
            found.append((low, last))
    return tuple(found)
