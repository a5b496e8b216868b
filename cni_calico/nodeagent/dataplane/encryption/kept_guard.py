"""PURE: the guard as it is kept in the file that requires it, for a start at which no record can be read.

Rule: what is kept is whole or nothing: a file of an earlier version, or one that somebody has changed, is nothing.
"""

from __future__ import annotations

import json
from typing import Any

from cni_calico.nodeagent.dataplane.encryption.guard import AddressRanges, DesiredGuard

_BITS = (32, 128)


def render_kept(guard: DesiredGuard) -> bytes:
    fields = {"devices": guard.devices, "prefixes": guard.prefixes, "guarded": guard.guarded}
    return json.dumps(fields).encode()


def parse_kept(text: bytes) -> DesiredGuard | None:
    """None: nothing is kept. What it was made from may have changed since: it is ``partial``."""
    try:
        fields: Any = json.loads(text)
        first, second = (_ranges(each, bits) for each, bits in zip(fields["guarded"], _BITS, strict=True))
        return DesiredGuard(_names(fields["devices"]), _names(fields["prefixes"]), (first, second), partial=True)
    except (ValueError, TypeError, KeyError):
        return None


def _names(given: Any) -> tuple[str, ...]:
    """Of interfaces, which become words of a script. Raises ValueError."""
    if not isinstance(given, list) or not all(isinstance(one, str) and one.isascii() and one for one in given):
        raise ValueError("no names")
    if any(sign in one for one in given for sign in '"\\ \n{};'):
        raise ValueError("no names of interfaces")
    return tuple(given)


def _ranges(given: Any, bits: int) -> AddressRanges:
    """Sorted, and apart from one another. Raises ValueError, TypeError."""
    found: list[tuple[int, int]] = []
    before = -1
    for low, high in given:
        if type(low) is not int or type(high) is not int or not before < low <= high < 1 << bits:
            raise ValueError("no ranges of addresses")
        found.append((low, high))
        before = high
    return tuple(found)
