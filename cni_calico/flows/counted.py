"""PURE: records as they are kept, each counted in the sums as it is.

Rule: what happens to a record between two settlements is counted once; of what has changed only so much is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cni_calico.flows.records import FlowRecord, record_from
from cni_calico.flows.ring import Ring
from cni_calico.flows.stores import RecordRow
from cni_calico.flows.sums import FlowSums

_MOST = 4_000  # records that have changed, with what they were


class CountedRecords:
    """A FlowStore over another one. ``also``: is told of each change too: the number, the record as it was, None for a
    new one, and as it is.
    """

    def __init__(self, store: Ring, sums: FlowSums) -> None:
        self._store, self._sums = store, sums
        self._read: tuple[int, FlowRecord | None] = 0, None
        self.also: Callable[[int, FlowRecord | None, FlowRecord], object] | None = None
        self._changed: dict[int, tuple[FlowRecord | None, FlowRecord]] = {}  # as it was, None for a new one; as it is

    def append(self, record: FlowRecord) -> int:
        number = self._store.append(record)
        self._changed[number] = None, record
        if len(self._changed) >= _MOST:
            self.settle()
        return number

    @property
    def next(self) -> int:
        return self._store.next

    def append_all(self, records: Sequence[FlowRecord], alike: Sequence[tuple[FlowRecord, int]]) -> int:
        if self.also is not None:
            first = self._store.next
            for record in records:
                self.append(record)
            return first
        for record, times in alike:
            self._sums.add(record, times)
        return self._store.append_all(records)

    def update(self, number: int, record: FlowRecord) -> None:
        changed = self._changed.get(number)
        if changed is not None:
            self._changed[number] = changed[0], record
        else:
            before = self._read[1] if self._read[0] == number else self._store.read(number)
            if before is not None:
                self._changed[number] = before, record
        self._store.update(number, record)
        if len(self._changed) >= _MOST:
            self.settle()

    def read(self, number: int) -> FlowRecord | None:
        record = self._store.read(number)
        self._read = number, record
        return record

    def rows(self, numbers: Sequence[int]) -> dict[int, RecordRow]:
        return self._store.rows(numbers)

    def end_all(self, ended: Sequence[tuple[int, RecordRow, FlowRecord]]) -> None:
        changed, change, told = self._changed, self._sums.change, self.also is not None
        for number, before, after in ended:
            known = changed.get(number)
            if known is not None:
                changed[number] = known[0], after
            elif told:
                changed[number] = record_from(before[: len(after)]), after
            else:
                change(record_from(before[: len(after)]), after)
        self._read = 0, None
        self._store.update_all([(number, after) for number, _, after in ended])
        if len(changed) >= _MOST:
            self.settle()

    def settle(self) -> None:
        for before, now in self._changed.values():
            if before is None:
                self._sums.add(now)
            else:
                self._sums.change(before, now)
        if self.also is not None:
            for number, (before, now) in self._changed.items():
                self.also(number, before, now)
        self._changed.clear()
