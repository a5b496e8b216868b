"""Numbers of keys by age: after any changes what one dict would have, in its order, and in no more memory than said."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.flows import by_age as module
from cni_calico.flows.by_age import NumbersByAge

SMALL = 4  # keys of a part
WHAT = "put", "put all", "pop", "pop all", "oldest", "among", "first", "clear"
changes = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 40), st.integers(1, 12)), max_size=80)


def key(number: int) -> bytes:
    return number.to_bytes(13, "big")


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_PART", SMALL)
        yield


@given(changes)
def test_it_is_as_one_dict(chosen: list[tuple[str, int, int]]) -> None:
    kept, model, following = NumbersByAge(), dict[bytes, int](), 1
    for what, begin, count in chosen:
        keys = [key(one) for one in range(begin, begin + count)]
        if what == "put":
            assert kept.pop(keys[0]) == model.pop(keys[0], None)
            kept.put(keys[0], following)
            model[keys[0]] = following
            following += 1
        elif what == "put all":
            new = [one for one in keys if one not in kept]
            kept.put_all(new, following)
            model |= zip(new, range(following, following + len(new)), strict=True)
            following += len(new)
        elif what == "pop":
            assert kept.pop(keys[0]) == model.pop(keys[0], None)
        elif what == "pop all":
            kept.pop_all(keys)
            for one in keys:
                model.pop(one, None)
        elif what == "oldest":
            oldest = [*model][:count]
            assert kept.take_oldest(count) == oldest
            for one in oldest:
                del model[one]
        elif what == "among":
            assert kept.among(set(keys)) == model.keys() & keys
            assert kept.numbers_of(keys) == [model.get(one) for one in keys] == [*map(kept.get, keys)]
            assert [one in kept for one in keys] == [one in model for one in keys]
        elif what == "first":
            assert kept.first_number() == next(iter(model.values()), None)
            if model:
                assert kept.first() == next(iter(model))
        else:
            kept.clear()
            model.clear()
        assert [*kept] == [*model] and [*kept.numbers()] == [*model.values()] and len(kept) == len(model)
        assert [*kept.newest_first()] == [*reversed(model.items())] and bool(kept) == bool(model)
        small = [len(part) for part in kept._parts]
        assert all(small[:-1]) and max(small) <= SMALL


def test_neighbours_that_have_become_small_are_put_together() -> None:
    """What lasts is among what does not: one in each part, and every part would have to be looked into."""
    kept = NumbersByAge()
    for number in range(100 * SMALL):
        kept.put(key(number), number)
        if number % SMALL:
            assert kept.pop(key(number)) == number
    assert [*kept.numbers()] == [*range(0, 100 * SMALL, SMALL)]
    assert len(kept._parts) <= 100 // SMALL + 3
    with pytest.raises(StopIteration):
        NumbersByAge().first()


def test_a_table_that_turns_over_takes_little_more_than_what_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times as many come as there are at once: a dict would take 10 MB for them, and twice that at times."""
    monkeypatch.setattr(module, "_PART", (2 << 15) // 3)
    kept, most, count = NumbersByAge(), 0, 100_000
    keys = [key(number) for number in range(5 * count)]
    for begin in range(0, len(keys), 1000):
        kept.put_all(keys[begin : begin + 1000], begin)
        if begin >= count:
            kept.pop_all(keys[begin - count : begin - count + 1000])
        most = max(most, sum(map(sys.getsizeof, kept._parts)))
    assert len(kept) == count and most <= 40 * count
