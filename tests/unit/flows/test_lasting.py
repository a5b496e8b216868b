"""Connections that are followed: for any course of them, as many as there is room for, and nobody at others' cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.flows.lasting import LastingConnections, owner_of

MOST = 8
steps = st.lists(st.tuples(st.sampled_from("abc-"), st.integers(0, 20), st.booleans()), max_size=60)


def key(owner: str, port: int) -> bytes:
    return owner.encode() * 4 + b"\7" * 4 + b"\6" + port.to_bytes(2, "big") + b"\0\1"


@given(steps)
def test_a_flood_costs_nobody_else(chosen: list[tuple[str, int, bool]]) -> None:
    lasting, there = LastingConnections(MOST), dict[bytes, int]()
    for number, (owner, port, begins) in enumerate(chosen):
        one = key(owner, port)
        if not begins or one in there:
            assert lasting.pop(one) == there.pop(one, None)
            continue
        before = {who: sum(owner_of(other) == who.encode() * 4 for other in there) for who in "abc"}
        dropped = lasting.add(one, number, b"" if owner == "-" else owner.encode() * 4)
        there[one] = number
        assert dropped == (len(there) > MOST)
        if dropped:
            (gone,) = there.keys() - lasting.everything()
            del there[gone]
            flooding = [who for who, count in before.items() if count + (who == owner) > MOST // 2]
            if flooding:  # only one can have more than half
                assert owner_of(gone) == flooding[0].encode() * 4
        assert lasting.everything() == there.keys() and len(lasting) == len(there)
        assert all(lasting.get(other) == known for other, known in there.items())


def test_the_oldest_goes_where_nobody_has_more_than_half() -> None:
    lasting = LastingConnections(MOST)
    for number in range(20):
        assert lasting.add(key("abc-"[number % 4], number), number, b"") == (number >= MOST)
    assert sorted(number for one in lasting.everything() if (number := lasting.get(one)) is not None) == list(
        range(12, 20)
    )


@given(steps, st.integers(1, MOST))
def test_less_room_lets_the_same_go_as_fewer_places_would(chosen: list[tuple[str, int, bool]], most: int) -> None:
    """As many as are too many, and what is left is as it was."""
    lasting = LastingConnections(MOST)
    for number, (owner, port, begins) in enumerate(chosen):
        one = key(owner, port)
        lasting.pop(one)
        if begins:
            lasting.add(one, number, b"" if owner == "-" else owner.encode() * 4)
    before = {one: lasting.get(one) for one in lasting.everything()}
    assert lasting.limit(most) == max(0, len(before) - most)
    assert len(lasting) == min(most, len(before)) and lasting.is_full == (len(before) >= most)
    assert {one: lasting.get(one) for one in lasting.everything()}.items() <= before.items()
    assert lasting.limit(MOST) == 0
