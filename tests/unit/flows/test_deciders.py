"""The file of numbers line by line, and what decided in words."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.flows.deciders import END, FIRST, FIXED, REASONS, REFUSED, Decider, parse_line, render_line

_TEXT = st.text(max_size=20)
_deciders = st.builds(
    Decider, _TEXT, _TEXT, _TEXT, _TEXT, *(st.booleans(), st.integers(-2, 9999), _TEXT, _TEXT, st.booleans())
)
DENY = Decider("NetworkPolicy", "shop", "database", "default", True, 3, "Deny", "x")


@given(st.integers(FIRST, 2**32 - 1), _deciders)
def test_a_line_is_read_as_it_was_written(number: int, decider: Decider) -> None:
    line = render_line(number, decider)
    assert line.endswith("\n") and line.count("\n") == 1 and parse_line(line) == (number, decider)


@given(st.one_of(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)))
def test_another_line_is_none(line: str) -> None:
    assert parse_line(line) is None


@pytest.mark.parametrize("wrong", [{"number": 7}, {"number": "300"}, {"ingress": 1}, {"index": True}, {"name": None}])
def test_a_line_with_a_wrong_value_is_none(wrong: dict[str, object]) -> None:
    right = json.loads(render_line(300, DENY))
    assert parse_line(json.dumps(right)) == (300, DENY) and parse_line(json.dumps({**right, **wrong})) is None


def test_fixed_reasons_have_numbers_of_their_own() -> None:
    assert len(REASONS) == len(FIXED) and all(0 < number < FIRST for number in REASONS)


@pytest.mark.parametrize(
    ("decider", "said"),
    [
        (DENY, "ingress: shop/database rule 3"),
        (
            Decider("NetworkPolicy", "shop", "a", "web", True, END, "Deny"),
            "ingress: end of tier web (policies: shop/a)",
        ),
        (Decider("Profile", "", "", "", False, END, "Deny"), "egress: no policy or profile allowed it"),
        (Decider("Profile", "", "kns.a", "", False, 0, "Allow"), "egress: profile kns.a rule 0"),
        (Decider("GlobalNetworkPolicy", "", "g", "", True, REFUSED, "Deny"), "ingress: g, which cannot be enforced"),
    ],
)
def test_in_words(decider: Decider, said: str) -> None:
    assert decider.sentence() == said
