"""PURE: flows of an interval, summed by what they have in common.

Rule: a packet is in one interval only, whenever its connection is looked at, and each key has one update for an
interval. What there is no room for is counted. A connection begins once: where its service is known only later it goes
on with another key, and its begin goes with it if it is of the same interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cni_calico.flows.export.keys import ExportKey, ReportingSide
from cni_calico.flows.records import ENDED, FlowRecord

MOST_KEYS = 20_000
_MOST_LASTING = 120_000
_OURS = "projectcalico.org/"
_NO_GROWTH = (0, 0, 0, 0)
EndLabels = Mapping[str, str]


class ExportedFlow(NamedTuple):
    """One update. ``time``: when the interval began, seconds since 1970; "in" and "out" as the reporting end sees them.
    EndLabels are sorted.
    """

    key: ExportKey
    time: int
    source_labels: tuple[str, ...]
    destination_labels: tuple[str, ...]
    packets_in: int
    packets_out: int
    bytes_in: int
    bytes_out: int
    started: int
    completed: int
    live: int


@dataclass(slots=True)
class _Sum:
    source: dict[str, str] | None = None
    destination: dict[str, str] | None = None
    counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0])  # packets, bytes; packets back, bytes back
    started: int = 0
    completed: int = 0


class IntervalSums:
    """``keys_of`` a record; ``labels_of``: the labels of both ends of it. ``undecided``: connections that no policy
    decided about, which have no key; ``unknown_hits``: sides whose policy is of a kind that has no name there;
    ``lost``: what was not counted for want of room.
    """

    def __init__(
        self,
        keys_of: Callable[[FlowRecord], tuple[ExportKey, ...]],
        labels_of: Callable[[FlowRecord], tuple[EndLabels, EndLabels]],
    ) -> None:
        self._keys_of, self._labels_of = keys_of, labels_of
        self._sums: dict[ExportKey, _Sum] = {}
        self._live: dict[ExportKey, int] = {}
        self._lasting: dict[int, tuple[ExportKey, ...]] = {}  # by the number of the record
        self._newest = self._told = 0  # numbers of records; those up to ``_told`` began before this interval
        self.undecided = self.unknown_hits = self.lost = 0

    def note(self, number: int, before: FlowRecord | None, now: FlowRecord) -> None:
        """A record changes; ``before``: None for a new one."""
        keys, over = self._keys_of(now), _is_over(now)
        was, was_over = ((), False) if before is None else (self._keys_of(before), _is_over(before))
        if over and not was_over and not keys:
            self.undecided += 1
        more = _growth(before, now)
        self._newest = max(self._newest, number)
        former = {} if was == keys else {key._replace(service=None): key for key in was}
        for key in keys:
            began_as = key if was == keys else former.get(key._replace(service=None))
            started = began_as is None
            if began_as is not None and began_as != key:
                self._take_over(number, began_as, key, now)
            self.unknown_hits += started and not key.hits
            self._add(key, now, more, started=started, completed=over and (started or not was_over))
        self._end(number)
        if not over and len(self._lasting) < _MOST_LASTING:
            self._lasting[number] = keys
            for key in keys:
                self._live[key] = self._live.get(key, 0) + 1

    def _take_over(self, number: int, former: ExportKey, key: ExportKey, record: FlowRecord) -> None:
        """It was sent to a service, which nobody knew when it began."""
        found = self._sums.get(former)
        if number <= self._told or found is None or not found.started:
            return
        self._add(key, record, _NO_GROWTH, started=True, completed=False)
        found.started -= 1
        if not (found.started or found.completed or any(found.counts)):
            del self._sums[former]

    def _end(self, number: int) -> None:
        for key in self._lasting.pop(number, ()):
            left = self._live[key] - 1
            if left:
                self._live[key] = left
            else:
                del self._live[key]

    def _add(self, key: ExportKey, record: FlowRecord, more: Sequence[int], *, started: bool, completed: bool) -> None:
        found = self._sums.get(key)
        if found is None:
            if len(self._sums) >= MOST_KEYS:
                self.lost += 1
                return
            found = self._sums[key] = _Sum()
        for at, count in enumerate(more):
            found.counts[at] += count
        found.started += started
        found.completed += completed
        if started or found.source is None:
            source, destination = self._labels_of(record)
            found.source = _common(found.source, source)
            found.destination = _common(found.destination, destination)

    def take(self, began: int, oldest: int = 0) -> list[ExportedFlow]:
        """The updates of the interval that ends now, and forget them. ``oldest``: records before that are gone, and
        with them what is known of their ends.
        """
        sums, self._sums = self._sums, {}
        self._told = self._newest
        for number in [number for number in self._lasting if number < oldest]:
            self._end(number)
        return [self._update(key, one, began) for key, one in sums.items()]

    def _update(self, key: ExportKey, one: _Sum, began: int) -> ExportedFlow:
        there, size, back, size_back = one.counts
        into, out = ((there, size), (back, size_back))
        if key.reporter is ReportingSide.SOURCE:
            into, out = out, into
        counts = into[0], out[0], into[1], out[1]
        labels = _shown(one.source), _shown(one.destination)
        return ExportedFlow(key, began, *labels, *counts, one.started, one.completed, self._live.get(key, 0))


def _is_over(record: FlowRecord) -> bool:
    return record.denied or bool(record.flags & ENDED)


def _growth(before: FlowRecord | None, now: FlowRecord) -> tuple[int, int, int, int]:
    counts = now.packets, now.size, now.packets_back, now.size_back
    if before is None:
        return counts
    former = before.packets, before.size, before.packets_back, before.size_back
    packets, size, back, size_back = (max(0, more - less) for more, less in zip(counts, former, strict=True))
    return packets, size, back, size_back


def _common(known: dict[str, str] | None, labels: EndLabels) -> dict[str, str]:
    """Of all connections; what Calico itself adds only as long as there is one connection."""
    if known is None:
        return dict(labels)
    return {name: value for name, value in known.items() if labels.get(name) == value and not name.startswith(_OURS)}


def _shown(labels: dict[str, str] | None) -> tuple[str, ...]:
    return tuple(sorted(f"{name}={value}" for name, value in (labels or {}).items()))
