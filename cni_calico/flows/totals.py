"""PURE: what the flows of an asked time add up to, as documents: records of the ring, and sums of what is older.

Rule: flows with the same ends, port and deciding rules are one, whatever five minutes they began in. What would be one
too many is counted, and said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from cni_calico.flows.names import EndName
from cni_calico.flows.query import Describer
from cni_calico.flows.records import FlowRecord
from cni_calico.flows.sums import FlowKey, SumCounts, key_of, record_of

_TotalKey = tuple[object, ...]


class FlowTotals:
    """At most ``most`` of them."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._found: dict[_TotalKey, tuple[FlowKey, EndName | None, EndName | None, SumCounts]] = {}
        self._rest = self._left_out = 0

    def add(self, key: FlowKey, source: EndName | None, destination: EndName | None, counts: SumCounts) -> None:
        """``source``, ``destination``: the names of the key's ends."""
        if key.is_rest:
            self._rest += counts.connections
            return
        total = (source or key.source, destination or key.destination, *key[2:9])
        known = self._found.get(total)
        if known is not None:
            known[3].add(counts)
        elif len(self._found) < self._most:
            self._found[total] = key, source, destination, replace(counts)
        else:
            self._left_out += counts.connections

    def add_record(self, record: FlowRecord, name_of: Callable[[int], EndName | None]) -> None:
        counts = SumCounts(record.began, record.last)
        counts.count(record)
        self.add(key_of(record), name_of(record.source_end), name_of(record.destination_end), counts)

    def documents(self, like: Describer) -> Iterator[dict[str, Any]]:
        """One for each, with ``connections``; then what is in none, as ``lost``."""
        names: list[EndName | None] = [None, None]
        describer = replace(like, name_of=names.__getitem__, given=None, passed_by=lambda record, decider: None)
        for key, source, destination, counts in self._found.values():
            if counts.connections > 0:
                names[:] = source, destination
                record = record_of(key._replace(source_end=0, destination_end=1), counts)
                yield {**describer.describe(record), "connections": counts.connections}
        if self._left_out:
            yield {"lost": self._left_out, "why": f"more than {self._most} different ones"}
        if self._rest:
            yield {"lost": self._rest, "why": "too many different ones in five minutes to be told apart"}
