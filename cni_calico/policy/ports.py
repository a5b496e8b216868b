"""PURE: parses the lists of ports in rules: numbers, ranges and names.

Rule: a list is parsed once, however many rules hold the same list object. Kubernetes' policies give one rule for each
peer, and all of them have the list of the policy: the work is that of the text, not of peers times ports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from cni_calico.model.documents.fields import Wrong, parse_list, parse_text

WITH_PORTS = (6, 17, 132)
ICMP = {4: 1, 6: 58}
PORT_MAX = 65535
_FEW, _SHORT = 4, 32  # items of a list that is remembered, characters of each
_PORT_RANGE = re.compile(r"([0-9]{1,5})(?::([0-9]{1,5}))?")
_PORT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")

PortNames = frozenset[str]  # one remembers its hash, as PortRanges does


class PortRanges(tuple[tuple[int, int], ...]):
    """(low, high), sorted, each once. Its hash is computed once: rules that share a list are compared by it."""

    _hash: int

    def __new__(cls, ranges: Iterable[tuple[int, int]] = ()) -> PortRanges:
        self = super().__new__(cls, ranges)
        self._hash = tuple.__hash__(self)
        return self

    def __hash__(self) -> int:
        return self._hash


NO_RANGES = PortRanges()
NO_NAMES: PortNames = frozenset()


@lru_cache(maxsize=4096)
def _same_ranges(ranges: PortRanges) -> PortRanges:
    """The same object for equal lists."""
    return ranges


@lru_cache(maxsize=4096)
def _same_names(names: PortNames) -> PortNames:
    return names


class PortLists:
    """For the rules of one record, which must stay alive meanwhile."""

    def __init__(self) -> None:
        self._parsed: dict[tuple[int, bool], tuple[PortRanges, PortNames]] = {}

    def parse(self, raw: Any, at: str, protocol: int | None) -> tuple[PortRanges, PortNames]:
        """(ranges, names). Numbers need a protocol that has ports. Raises Wrong."""
        if raw is None:
            return NO_RANGES, NO_NAMES
        with_numbers = protocol in WITH_PORTS
        known = self._parsed.get((id(raw), with_numbers))
        if known is None:
            known = self._parsed[id(raw), with_numbers] = _parse_ports(parse_list(raw, at), at, with_numbers)
        return known


def _parse_ports(raw: Any, at: str, with_numbers: bool) -> tuple[PortRanges, PortNames]:
    if len(raw) == 1 and type(raw[0]) is int:
        known = _known((raw[0],), with_numbers)
        if known is not None:
            return known
    elif len(raw) <= _FEW and all(type(item) is int or (type(item) is str and len(item) < _SHORT) for item in raw):
        known = _known(tuple(raw), with_numbers)
        if known is not None:
            return known
    return _parse_items(raw, at, with_numbers)


@lru_cache(maxsize=1024)
def _known(items: tuple[int | str, ...], with_numbers: bool) -> tuple[PortRanges, PortNames] | None:
    """Most rules name one port or two, and the same ones. None for a list that is refused, which has to say where."""
    try:
        return _parse_items(items, "", with_numbers)
    except Wrong:
        return None


def _parse_items(raw: Iterable[Any], at: str, with_numbers: bool) -> tuple[PortRanges, PortNames]:
    ranges, names = set(), set()
    for i, item in enumerate(raw):
        found = parse_port(item, f"{at}[{i}]")
        if isinstance(found, str):
            names.add(found)
        elif not with_numbers:
            raise Wrong(f"{at}[{i}]", "a rule whose protocol is TCP, UDP or SCTP", item)
        else:
            ranges.add(found)
    return _same_ranges(PortRanges(sorted(ranges))), _same_names(frozenset(names))


def parse_port(raw: Any, at: str) -> tuple[int, int] | str:
    """A range, or the name of a port: a number, "80", "80:90", "http". Raises Wrong."""
    text = str(raw) if type(raw) is int and raw >= 0 else parse_text(raw, at)
    found = _PORT_RANGE.fullmatch(text)
    if found:
        first, last = int(found[1]), int(found[2] or found[1])
        if first <= last <= PORT_MAX:
            return first, last
    elif _PORT_NAME.fullmatch(text) and not text.isdigit():
        return text
    raise Wrong(at, "a port's number from 0 to 65535, two with a colon between them, or its name", raw)
