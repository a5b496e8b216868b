"""PURE: what the flows of an asked time add up to, as documents: records of the ring, and sums of what is older.

Rule: flows with the same ends, port and deciding rules are one, whatever five minutes they began in, if the ends had
the same labels. Of five minutes in which an end's labels changed it is not known who had which: such an end is
``relabelled``, and has the later ones. What would be one too many is counted, and said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from cni_calico.flows.labels import LabelsMeant, LabelsSince, LabelVersions, labels_at
from cni_calico.flows.names import EndName
from cni_calico.flows.query import Describer
from cni_calico.flows.records import FlowRecord
from cni_calico.flows.sums import BUCKET_US, FlowKey, SumCounts, key_of, record_of

_TotalKey = tuple[object, ...]
_BothMeant = tuple[LabelsMeant | None, LabelsMeant | None]
_SIDES = "source", "destination"


class FlowTotals:
    """At most ``most`` of them. ``labels_of``: an end's, and since when."""

    def __init__(self, labels_of: Callable[[EndName], LabelVersions] = lambda name: (), most: int = 10_000) -> None:
        self._most, self._labels_of = most, labels_of
        self._found: dict[_TotalKey, tuple[FlowKey, EndName | None, EndName | None, SumCounts, _BothMeant]] = {}
        self._rest = self._left_out = 0

    def add(
        self,
        key: FlowKey,
        source: EndName | None,
        destination: EndName | None,
        counts: SumCounts,
        until: int | None = None,
    ) -> None:
        """``source``, ``destination``: the names of the key's ends. ``until``: when the last connection began; None:
        some time in its five minutes.
        """
        if key.is_rest:
            self._rest += counts.connections
            return
        if until is None:
            until = counts.began // BUCKET_US * BUCKET_US + BUCKET_US - 1
        meant = self._meant(source, counts.began, until), self._meant(destination, counts.began, until)
        told = [None if one is None else (one.since, one.changed) for one in meant]
        total = (source or key.source, destination or key.destination, *key[2:9], *told)
        known = self._found.get(total)
        if known is not None:
            known[3].add(counts)
        elif len(self._found) < self._most:
            self._found[total] = key, source, destination, replace(counts), meant
        else:
            self._left_out += counts.connections

    def add_record(self, record: FlowRecord, name_of: Callable[[int], EndName | None]) -> None:
        counts = SumCounts(record.began, record.last)
        counts.count(record)
        names = name_of(record.source_end), name_of(record.destination_end)
        self.add(key_of(record), *names, counts, record.began)

    def _meant(self, name: EndName | None, began: int, until: int) -> LabelsMeant | None:
        return None if name is None else labels_at(self._labels_of(name), began, until)

    def documents(self, like: Describer) -> Iterator[dict[str, Any]]:
        """One for each, with ``connections``; then what is in none, as ``lost``."""
        names: list[EndName | None] = [None, None]
        told: dict[EndName, LabelVersions] = {}
        describer = replace(
            like,
            name_of=names.__getitem__,
            given=None,
            passed_by=lambda record, decider: None,
            labels_of=lambda name: told.get(name, ()),
        )
        for key, source, destination, counts, meant in self._found.values():
            if counts.connections > 0:
                names[:] = source, destination
                told.clear()
                for name, one in zip(names, meant, strict=True):
                    if name is not None and one is not None:
                        told[name] = [LabelsSince(0, one.labels)]
                record = record_of(key._replace(source_end=0, destination_end=1), counts)
                found = {**describer.describe(record), "connections": counts.connections}
                for side, one in zip(_SIDES, meant, strict=True):
                    if one is not None and one.changed:
                        found[side]["relabelled"] = True
                yield found
        if self._left_out:
            yield {"lost": self._left_out, "why": f"more than {self._most} different ones"}
        if self._rest:
            yield {"lost": self._rest, "why": "too many different ones in five minutes to be told apart"}
