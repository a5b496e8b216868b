"""Nothing that somebody else wrote makes a parser fail in another way than its own."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hostile.targets import TARGETS

NASTY = (
    *(b"\0", b"\xff", b"\xed\xa0\x80", b"-1", b"9" * 5000, b"1e999", b"NaN", b"null", b"[]", b"{}", b'""', b"true"),
    *(b"[" * 3000, b'{"a":' * 3000, b"- " * 3000, b"(" * 3000, b"&a [*a, *a]", b"!!python/object:os.system", b"%s%n"),
    *(b"..", b"/", b"\\ud800", b"\r\n", b"\r\n\r\n", b"0x10", b"10.0.0.0/99", b"::ffff:1.2.3.4", b"fe80::1%eth0"),
    b"\xc0\x0c",  # a name of DNS that points to another
)


@st.composite
def mutated(draw: st.DrawFn, example: bytes) -> bytes:
    """The example with some places cut, doubled, or replaced by something nasty."""
    data = example
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 12)))
        piece = draw(st.one_of(st.sampled_from(NASTY), st.binary(max_size=6), st.just(data[at:end] * 2)))
        data = data[:at] + piece + data[end:]
    return data


@pytest.mark.parametrize("name", TARGETS)
def test_the_example_is_what_it_is_meant_for(name: str) -> None:
    TARGETS[name].parse(TARGETS[name].example)


@pytest.mark.parametrize("name", TARGETS)
def test_anything_at_all(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.one_of(mutated(target.example), mutated(target.example), st.binary(max_size=64)))
    def attempt(data: bytes) -> None:
        try:
            target.parse(data)
        except target.errors:
            pass

    attempt()


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("nasty", NASTY, ids=lambda nasty: repr(nasty[:12]))
def test_what_is_nasty_in_every_place(name: str, nasty: bytes) -> None:
    """In place of each of its parts in turn, and before and after all of it."""
    target = TARGETS[name]
    step = max(1, len(target.example) // 40)
    for at in range(0, len(target.example) + 1, step):
        try:
            target.parse(target.example[:at] + nasty + target.example[at + step :])
        except target.errors:
            pass
