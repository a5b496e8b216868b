"""The first of a dict is the one that iterating over it would come to first."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.flows import oldest as module
from cni_calico.flows.oldest import OldestKeys


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from(("put", "take", "first", "drop"))), max_size=120))
def test_it_is_the_first_after_any_changes(changes: list[tuple[int, str]]) -> None:
    kept: dict[int, object] = {}
    oldest = OldestKeys(kept)
    for key, what in changes:
        if what == "put":
            kept.pop(key, None)
            kept[key] = object()
        elif what == "take":
            kept.pop(key, None)
        elif kept:
            first = oldest.first()
            assert first == next(iter(kept))
            if what == "drop":
                del kept[first]


def test_the_begin_is_looked_for_once_for_many() -> None:
    """Of a table in which as many come as go."""
    looks = 0

    class Counting(dict[int, object]):
        def items(self) -> Any:
            nonlocal looks
            looks += 1
            return super().items()

    kept = Counting({number: object() for number in range(1000)})
    oldest = OldestKeys(kept)
    for number in range(1000, 11_000):
        kept[number] = object()
        del kept[oldest.first()]
    assert min(kept) == 10_000 and looks <= 10_000 // module._AT_ONCE + 1
