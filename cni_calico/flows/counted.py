"""PURE: records as they are kept, each counted in the sums as it is.

Rule: what happens to a record between two settlements is counted once; of what has changed only so much is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cni_calico.flows.live import FlowStore
from cni_calico.flows.records import FlowRecord
from cni_calico.flows.sums import FlowSums

_MOST = 4_000  # records that have changed, with what they were


class CountedRecords:
    """A FlowStore over another one. ``also``: is told of each change too: the number, the record as it was, None for a
    new one, and as it is.
    """

    def __init__(self, store: FlowStore, sums: FlowSums) -> None:
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

    def expect(self, numbers: Sequence[int]) -> None:
        self._store.expect(numbers)

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
