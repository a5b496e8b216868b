"""PURE: Kubernetes' quantities ("10M", "1.5k", "500m", "1e3", "2Gi") as whole numbers.

Rule: what Kubernetes' own parser takes is taken, with its value rounded up as it does, and nothing else is; the work is
linear in the text, however many digits a stranger has written.
"""

from __future__ import annotations

import re

MAX = 2**63 - 1  # Kubernetes keeps no larger quantity: a larger one counts as this
# compiled at the first quantity that there is: most pods have none
_FORM = r"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(?:(n|u|m|k|M|G|T|P|E|[KMGTPE]i)|[eE]([+-]?[0-9]+))?"
_TENS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_TWOS = {f"{letter}i": 10 * (i + 1) for i, letter in enumerate("KMGTPE")}
_FAR = 40  # decimal places from the point, beyond which only "too large" or "nearly nothing" is left to say
_KEPT = 2 * _FAR  # digits that can decide about a whole number below MAX


def parse_quantity(text: str) -> int:
    """The quantity, rounded up (away from zero), at most ``MAX`` either way. Raises ValueError."""
    found = re.fullmatch(_FORM, text)
    if found is None:
        raise ValueError("not a quantity of Kubernetes, such as 10M, 1.5k or 2Gi")
    sign, whole, fraction, only_fraction, suffix, exponent = found.groups(default="")
    fraction = fraction or only_fraction
    size = _size(
        (whole + fraction).lstrip("0"),
        _tens(exponent) + _TENS.get(suffix, 0) - len(fraction),
        1 << _TWOS.get(suffix, 0),
    )
    return -size if sign == "-" else size


def _tens(exponent: str) -> int:
    """The exponent; one of more digits than any text has places is only far away."""
    digits = exponent.lstrip("+-").lstrip("0")
    far = int(digits[:12] or "0")
    return -far if exponent.startswith("-") else far


def _size(digits: str, scale: int, factor: int) -> int:
    """``digits`` x 10^``scale`` x ``factor``, rounded up, at most ``MAX``."""
    if not digits or len(digits) + scale < -_FAR:
        return 1 if digits else 0
    if len(digits) + scale > _FAR:
        return MAX
    number, rest = int(digits[:_KEPT]), digits[_KEPT:]
    scale += len(rest)
    if rest.strip("0"):  # a little more than the digits that are kept
        number, scale = number * 10 + 1, scale - 1
    value, tens = number * factor, int(10 ** abs(scale))
    return min(value * tens if scale >= 0 else -(-value // tens), MAX)
