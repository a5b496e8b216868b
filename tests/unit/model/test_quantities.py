"""Kubernetes' quantities: what its own parser takes and how it rounds."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.quantities import MAX, parse_quantity

# what k8s.io/apimachinery's resource.ParseQuantity and Value() say of these
KNOWN = {
    "0": 0,
    "5": 5,
    "+5": 5,
    "-5": -5,
    "007": 7,
    "1.5": 2,
    "-1.5": -2,
    ".5k": 500,
    "5.": 5,
    "1.5k": 1500,
    "1e3": 1000,
    "1E3": 1000,
    "1E": 10**18,
    "1e-3": 1,
    "500m": 1,
    "1500m": 2,
    "1n": 1,
    "0n": 0,
    "1Ki": 1024,
    "1.5Gi": 3 * 2**29,
    "7Ei": 7 * 2**60,
    "8Ei": MAX,
    "9E": 9 * 10**18,
    "10E": MAX,
    "1e30": MAX,
    "1e99999999999999999": MAX,
    "1e-99999999999999999": 1,
}
WRONG = [
    "",
    " 46",
    "46 ",
    "1K",
    "1_000",
    "0x10",
    "1e",
    "1 k",
    "k",
    "-",
    ".",
    "--5",
    "1ki",
    "1m5",
    "٣",
    "nan",
    "inf",
    "1\n",
]


def test_known_values() -> None:
    assert {text: parse_quantity(text) for text in KNOWN} == KNOWN


@pytest.mark.parametrize("text", WRONG)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)


@given(
    st.from_regex(r"[0-9]{0,90}(\.[0-9]{0,90})?", fullmatch=True),
    st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]),
)
def test_the_value_is_exact_and_rounded_up(digits: str, suffix: str) -> None:
    if not digits.strip("."):
        return
    tens = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
    factor = (
        Fraction(2 ** (10 * ("KMGTPE".index(suffix[0]) + 1))) if suffix[1:] else Fraction(10) ** tens.get(suffix, 0)
    )
    whole, _, fraction = digits.partition(".")
    exact = Fraction(int((whole + fraction) or "0"), 10 ** len(fraction)) * factor
    assert parse_quantity(digits + suffix) == min(ceil(exact), MAX)


def test_a_mebibyte_of_digits() -> None:
    assert parse_quantity("9" * 2**20) == MAX
    assert parse_quantity("0." + "0" * 2**20 + "1") == 1
    assert parse_quantity("1." + "0" * 2**20 + "1") == 2
    assert parse_quantity("1e" + "9" * 2**20) == MAX
