"""Many messages that are read together are read as one by one."""

from __future__ import annotations

from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.kernel.netlink.layouts import Layouts

PLACE = 64
WANTED = ((1,), (2,), (3, 1))
NUMBERS = frozenset(((2,),))


def attribute(kind: int, value: bytes) -> bytes:
    return pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(kinds: tuple[int, int], number: int, text: bytes, nested: bool) -> bytes:
    first, second = kinds
    body = attribute(first, text) + attribute(second, number.to_bytes(4, "big"))
    body += attribute(0x8003, attribute(1, b"abcd")) if nested else attribute(4, bytes(8))
    return pack("=IH2x", 8 + len(body), 7) + body


MESSAGES = st.builds(
    message,
    st.sampled_from(((1, 2), (1, 5), (6, 2))),
    st.integers(0, 9),
    st.binary(min_size=3, max_size=5),
    st.booleans(),
)


def layouts(place: int, usual: int = 0) -> Layouts:
    return Layouts(8, WANTED, frozenset(((3,),)), place, numbers=NUMBERS, usual=usual)


def read(data: bytes, sizes: list[int], place: int) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    at, known = 0, layouts(place)
    while len(found) < len(sizes):
        left = len(sizes) - len(found)
        run = known.run(data, at, sizes[len(found)], left)
        at += sum(place or size + 3 & ~3 for size in sizes[len(found) : len(found) + len(run)])
        found += run
        assert 1 <= len(run) <= left
    return found


@given(st.lists(MESSAGES, min_size=1, max_size=6), st.lists(st.integers(0, 5), min_size=1, max_size=150))
def test_what_is_read_together_is_what_each_has(kinds: list[bytes], order: list[int]) -> None:
    chosen = [kinds[at % len(kinds)] for at in order]
    alone = [layouts(0).run(one, 0, len(one))[0] for one in chosen]
    sizes = [len(one) for one in chosen]
    assert read(b"".join(chosen), sizes, 0) == alone
    assert read(b"".join(one.ljust(PLACE, b"\xff") for one in chosen), sizes, PLACE) == alone


def test_what_is_usual_comes_without_the_rest() -> None:
    usual, other = message((1, 2), 3, b"text", False), message((1, 5), 3, b"text", False)
    known = layouts(0, 2)
    assert known.run(usual * 100, 0, len(usual)) == [(b"text", 3)]
    assert known.run(usual * 100, 0, len(usual)) == [(b"text", 3)] * 100 and known.slow == 1
    assert known.run(other, 0, len(other)) == [(b"text", b"", b"")]
    backwards = message((2, 1), 0, bytes(4), False)
    assert known.run(backwards, 0, len(backwards)) == [(bytes(4), 0, b"")]
