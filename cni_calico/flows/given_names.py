"""PURE: names of other nodes' ends that whoever asks gives along with the question.

Rule: a given name is for an end that this node has no name for, and only from the moment on at which its pod was made:
whoever had the address before had another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from ipaddress import ip_address
from typing import Any, NamedTuple

MOST_GIVEN = 500
OF_NOW = "labelsOfNow"  # of an end in a document: nobody has recorded its labels
_LATEST_S = 1e11


class GivenName(NamedTuple):
    """``since``: seconds since 1970."""

    address: str
    kind: str
    namespace: str
    name: str
    since: float
    labels: Mapping[str, str]


def parse_given(found: Any) -> tuple[GivenName, ...]:
    """From a request. Raises ValueError."""
    if not isinstance(found, list) or len(found) > MOST_GIVEN:
        raise ValueError(f"names must be a list of at most {MOST_GIVEN}")
    return tuple(map(_parse_one, found))


def _parse_one(found: Any) -> GivenName:
    if isinstance(found, list) and len(found) == len(GivenName._fields) - 1:
        found = [*found, {}]  # an older calicoctl's, which gives no labels
    if not isinstance(found, list) or len(found) != len(GivenName._fields):
        raise ValueError(f"a name has {', '.join(GivenName._fields)}")
    address, kind, namespace, name, since, labels = found
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise ValueError("labels have a text for each key")
    if not all(isinstance(text, str) for text in (address, kind, namespace, name)):
        raise ValueError("a name has four texts and a time")
    if isinstance(since, bool) or not isinstance(since, int | float) or not abs(since) <= _LATEST_S:
        raise ValueError("a name is given from a time on")
    return GivenName(str(ip_address(address)), kind, namespace, name, float(since), labels)


class GivenNames:
    def __init__(self, given: Iterable[GivenName]) -> None:
        self._given = {ip_address(one.address).packed: one for one in given}

    def __bool__(self) -> bool:
        return bool(self._given)

    def get(self, address: bytes, began: int) -> GivenName | None:
        """``began``: of the connection, microseconds since 1970."""
        found = self._given.get(address)
        return None if found is None or began < found.since * 1e6 else found

    def name(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The document with the names that it lacks."""
        return {**document, **{side: self._named(document[side], document["start"]) for side in _SIDES}}

    def _named(self, end: Mapping[str, Any], start: str) -> Mapping[str, Any]:
        if "name" in end:
            return end
        found = self.get(ip_address(end["ip"]).packed, _micros(start))
        if found is None:
            return end
        named = {"kind": found.kind, "namespace": found.namespace, "name": found.name}
        return {**end, **named, "labels": dict(found.labels), OF_NOW: True}


_SIDES = ("source", "destination")


def _micros(text: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1e6)
    except ValueError:
        return 0
