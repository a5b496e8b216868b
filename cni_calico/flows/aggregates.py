"""The sums of flows in a file (flows.db): a day of connections, added up by five minutes, within a budget of disk.

Rule: history may be lost, never a start, and never a record of the ring: whatever is wrong with the file, sums are kept
in memory for ten minutes, and it is said. A file that is malformed, of another version or not ours is set aside (one is
kept) and begun anew. What is too old goes, and the oldest first where the file would be too large; its pages are used
again, so that it never grows beyond its budget.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from cni_calico.flows.database import NamedSum, SumsDatabase, is_malformed
from cni_calico.flows.label_history import LabelHistory
from cni_calico.flows.labels import LabelVersions
from cni_calico.flows.names import FOLDED_NETWORK, SUMS_KEPT_S, EndName
from cni_calico.flows.sums import (
    BUCKET_S,
    NETWORK,
    FlowKey,
    FlowSums,
    SumCounts,
    UnwrittenSums,
    Within,
    coarser,
    network_name,
    no_sets,
)
from cni_calico.log import Log
from cni_calico.regular import make_directories

NAME = "flows.db"
MOST_BYTES, MOST_DENIED_BYTES = 256 << 20, 32 << 20
_EVERY_S, _IN_MEMORY_S = 10.0, 600
_AT_ONCE, _ALL = 500, 1 << 30  # sums: some 20 ms
AskedOfFile = TypeVar("AskedOfFile")


class FlowAggregates:
    """``sums``: to add to. ``name_of``: the name that a number stands for. ``trouble``: why nothing is written, or "".
    ``lost``: connections that are in no sum, because nothing could be written for too long. ``within``: as in ``sums``.
    ``labels_of``: that an end has and had lately, as somebody tells of it.
    """

    def __init__(
        self,
        path: str,
        name_of: Callable[[int], EndName | None],
        log: Log,
        now: float,
        most_bytes: int = MOST_BYTES,
        kept_s: int = SUMS_KEPT_S,
        within: Within = no_sets,
        labels_of: Callable[[EndName], LabelVersions] = lambda name: (),
    ) -> None:
        self.path, self.trouble, self.lost = path, "", 0
        self._within = within
        self.sums = FlowSums(within=within)
        self._name_of, self._log, self._most_bytes, self._kept_s = name_of, log, most_bytes, kept_s
        self._labels = LabelHistory(labels_of, int(now * 1e6))
        self._database: SumsDatabase | None = None
        self._ends: dict[tuple[int, bytes], tuple[int, int]] = {}  # (number in the file, a bucket that keeps it)
        self._tidied, self._next = 0, now
        self.flush(now)

    def keep(self, seconds: int) -> None:
        """From now on; what is too old goes with the next five minutes."""
        self._kept_s = seconds

    def close(self, now: float) -> None:
        self.flush(now, force=True)
        self._close()

    def _close(self) -> None:
        self._distrust()
        if self._database is not None:
            self._database.close()
            self._database = None

    def _distrust(self) -> None:
        """What is known of the file may not be there any more."""
        self._ends.clear()
        self._labels.forget()

    @property
    def size(self) -> int:
        """Bytes of disk."""
        return sum(map(_size, (self.path, f"{self.path}-wal", f"{self.path}-shm")))

    def due_s(self, now: float) -> float:
        """How long ``flush`` has nothing to do."""
        return max(0.0, self._next - now) if self.sums.unwritten else float("inf")

    # -- writing ------------------------------------------------------------------------------------------------------

    def flush(self, now: float, *, force: bool = False) -> None:
        """Write what has been added, every ten seconds, if it is much a part at each call. Nothing is raised."""
        if not force and self._next - _EVERY_S <= now < self._next:
            return
        self._next = now + _EVERY_S
        taken = self.sums.take(_ALL if force else _AT_ONCE)
        try:
            self._write_somewhere(taken, int(now))
            self._tell("")
            if self.sums.unwritten:
                self._next = now
        except (sqlite3.Error, OSError) as e:
            self._distrust()
            self.lost += self.sums.give_back(taken, (int(now) - _IN_MEMORY_S) // BUCKET_S)
            self._tell(f"sums of flows are kept in memory, for ten minutes only: cannot write {self.path}: {_why(e)}")

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            self._log.warning(trouble)
        self.trouble = trouble

    def _write_somewhere(self, taken: UnwrittenSums, now: int) -> None:
        """In a new file if this one is malformed."""
        try:
            self._write(taken, now)
        except sqlite3.Error as e:
            if not is_malformed(e):
                raise
            self._set_aside(e)
            self._write(taken, now)

    def _set_aside(self, why: sqlite3.Error) -> None:
        """Raises OSError."""
        self._close()
        os.replace(self.path, f"{self.path}.bad")
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(self.path + suffix)
        self._log.warning(f"{self.path} is set aside as {self.path}.bad, and sums of flows begin anew: {why}")

    def _write(self, taken: UnwrittenSums, now: int) -> None:
        oldest = (now - self._kept_s) // BUCKET_S
        database = self._opened()
        with database.transaction():
            for bucket, sums in taken.items():
                for key, counts in sums.items() if bucket >= oldest else ():
                    self._put(database, bucket, key, counts)
        taken.clear()
        if self._tidied != now // BUCKET_S:
            self._tidied = now // BUCKET_S
            self._forget(database, oldest)
        # with the room that another flush and SQLite's log may need
        while database.used_bytes > self._most_bytes // 8 * 7 and (first := database.oldest()) is not None:
            self._forget(database, first + 1)

    def _opened(self) -> SumsDatabase:
        if self._database is not None and not self._database.is_there():
            self._close()  # somebody has removed its file
        if self._database is None:
            make_directories(os.path.dirname(self.path), 0o700)
            self._database = SumsDatabase(self.path)
        return self._database

    def _forget(self, database: SumsDatabase, oldest: int) -> None:
        self._distrust()
        with database.transaction():
            database.forget(oldest)

    def _put(self, database: SumsDatabase, bucket: int, key: FlowKey, counts: SumCounts) -> None:
        if counts.made:
            for number in (key.source_end, key.destination_end):
                if number and number != NETWORK and (name := self._name_of(number)) is not None:
                    self._labels.note(database, bucket, name)
            database.add(bucket, [self._intern(database, bucket, *end) for end in _ends_of(key)], key, counts)
            return
        for one in (key, *coarser(key, self._within)):
            source, destination = (self._find(database, *end) for end in _ends_of(one))
            if source is not None and destination is not None:
                if database.change(bucket, (source, destination), one, counts):
                    return  # else what it was counted as has gone, and it with that

    def _intern(self, database: SumsDatabase, bucket: int, name: int, address: bytes) -> int:
        known = self._ends.get((name, address))
        if known is not None and known[1] >= bucket:
            return known[0]
        number = database.intern(bucket, self._named(name, address), address)
        self._ends[name, address] = number, bucket
        return number

    def _find(self, database: SumsDatabase, name: int, address: bytes) -> int | None:
        known = self._ends.get((name, address))
        return database.find(self._named(name, address), address) if known is None else known[0]

    def _named(self, name: int, address: bytes) -> EndName | None:
        return EndName(FOLDED_NETWORK, "", network_name(address)) if name == NETWORK else self._name_of(name)

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def is_readable(self) -> bool:
        return self._database is not None

    @property
    def oldest(self) -> float | None:
        """When the oldest sums begin, in seconds since 1970; None if there are none, or none can be read."""
        try:
            first = None if self._database is None else self._database.oldest()
        except sqlite3.Error:
            return None
        return None if first is None else float(first * BUCKET_S)

    def read(self, begin: int, end: int) -> Iterator[list[NamedSum]]:
        """The sums of these buckets, without the last one, a bucket at a time; a sum may come in two parts. What cannot
        be read is left out, and told as a trouble.
        """
        there = {bucket for bucket in self.sums.unwritten if begin <= bucket < end}
        there.update(self._asked(lambda database: database.buckets(begin, end)))
        for bucket in sorted(there):
            unwritten = [
                (
                    key,
                    self._named(key.source_end, key.source),
                    self._named(key.destination_end, key.destination),
                    counts,
                )
                for key, counts in self.sums.unwritten.get(bucket, {}).items()
            ]
            yield [*unwritten, *self._asked(partial(SumsDatabase.read, bucket=bucket))]

    def labels_of(self, name: EndName) -> LabelVersions:
        """All that are known of it."""
        found = self._asked(lambda database: [self._labels.versions(database, name)])
        return found[0] if found else self._labels.versions(None, name)

    def _asked(self, ask: Callable[[SumsDatabase], list[AskedOfFile]]) -> list[AskedOfFile]:
        try:
            return [] if self._database is None else ask(self._database)
        except sqlite3.Error as e:
            self._tell(f"sums of flows cannot be read from {self.path}: {e}")
            if is_malformed(e):
                with suppress(OSError):
                    self._set_aside(e)
            return []


def _ends_of(key: FlowKey) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
    return (key.source_end, key.source), (key.destination_end, key.destination)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _why(error: sqlite3.Error | OSError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
