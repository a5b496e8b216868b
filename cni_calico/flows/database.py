"""The database of flows' sums: its tables, and what is asked of them.

Rule: every error is SQLite's or the system's; what to do about it is up to whoever has opened it. An end is written
once, with the newest five minutes (bucket) that refer to it, and goes with them; so do the labels that it had, of which
equal ones are there once. A file of a program that kept no labels gets their tables; that program ignores them.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from cni_calico.flows.labels import LabelsSince, parse_labels, render_labels
from cni_calico.flows.names import EndName
from cni_calico.flows.sums import FlowKey, SumCounts

_VERSION, _APPLICATION = 1, 0x63666C77  # "cflw"
_PAGE, _BUSY_S = 4096, 0.2
_MALFORMED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB)
_MOST = 1 << 60  # bytes of a sum: SQLite's integers have 63 bits
_SETTINGS = (
    f"page_size = {_PAGE}",
    "journal_mode = WAL",
    "synchronous = NORMAL",
    f"journal_size_limit = {4 << 20}",
    "wal_autocheckpoint = 500",
    "cache_size = -1024",
    "trusted_schema = OFF",
)
_SCHEMA = (
    "CREATE TABLE end (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,"
    " address BLOB NOT NULL, bucket INTEGER NOT NULL, UNIQUE (kind, namespace, name, address))",
    "CREATE TABLE flow (bucket INTEGER NOT NULL, source INTEGER NOT NULL, destination INTEGER NOT NULL,"
    " port INTEGER NOT NULL, protocol INTEGER NOT NULL, egress INTEGER NOT NULL, ingress INTEGER NOT NULL,"
    " host_out INTEGER NOT NULL, host_in INTEGER NOT NULL, denied_by INTEGER NOT NULL,"
    " connections INTEGER NOT NULL, packets INTEGER NOT NULL, size INTEGER NOT NULL, packets_back INTEGER NOT NULL,"
    " size_back INTEGER NOT NULL, ended INTEGER NOT NULL, measured INTEGER NOT NULL, began INTEGER NOT NULL,"
    " last INTEGER NOT NULL, PRIMARY KEY (bucket, source, destination, port, protocol, egress, ingress, host_out,"
    " host_in, denied_by)) WITHOUT ROWID",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
)
_LABELS_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS label_set (id INTEGER PRIMARY KEY, labels TEXT NOT NULL UNIQUE)",
    "CREATE TABLE IF NOT EXISTS labelled (kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,"
    " since INTEGER NOT NULL, labels INTEGER NOT NULL, bucket INTEGER NOT NULL,"
    " PRIMARY KEY (kind, namespace, name, since)) WITHOUT ROWID",
)
_COUNT_LABELS_SCHEMA = "SELECT count(*) FROM sqlite_schema WHERE name IN ('label_set', 'labelled')"
_ADD = (
    "INSERT INTO flow VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)"
    " ON CONFLICT DO UPDATE SET connections = connections + ?11, packets = packets + ?12, size = size + ?13,"
    " packets_back = packets_back + ?14, size_back = size_back + ?15, ended = ended + ?16, measured = measured + ?17,"
    " began = min(began, ?18), last = max(last, ?19)"
)
_CHANGE = (
    "UPDATE flow SET connections = connections + ?11, packets = packets + ?12, size = size + ?13,"
    " packets_back = packets_back + ?14, size_back = size_back + ?15, ended = ended + ?16, measured = measured + ?17,"
    " began = min(began, ?18), last = max(last, ?19)"
    " WHERE bucket = ?1 AND source = ?2 AND destination = ?3 AND port = ?4 AND protocol = ?5 AND egress = ?6"
    " AND ingress = ?7 AND host_out = ?8 AND host_in = ?9 AND denied_by = ?10"
)
_INTERN = (
    "INSERT INTO end (kind, namespace, name, address, bucket) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET bucket = max(bucket, excluded.bucket) RETURNING id"
)
_FIND = "SELECT id FROM end WHERE kind = ? AND namespace = ? AND name = ? AND address = ?"
_READ = (
    "SELECT s.address, d.address, port, protocol, egress, ingress, host_out, host_in, denied_by,"
    " s.kind, s.namespace, s.name, d.kind, d.namespace, d.name, began, last, connections, packets, size, packets_back,"
    " size_back, ended, measured"
    " FROM flow JOIN end s ON s.id = source JOIN end d ON d.id = destination WHERE flow.bucket = ?"
)

_INTERN_LABELS = (
    "INSERT INTO label_set (labels) VALUES (?) ON CONFLICT DO UPDATE SET labels = excluded.labels RETURNING id"
)
_KEEP_LABELS = (
    "INSERT INTO labelled VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET labels = excluded.labels, bucket = max(bucket, excluded.bucket)"
)
_LABELS_OF = (
    "SELECT since, label_set.labels FROM labelled LEFT JOIN label_set ON label_set.id = labelled.labels"
    " WHERE kind = ? AND namespace = ? AND name = ? ORDER BY since"
)

NamedSum = tuple[FlowKey, EndName | None, EndName | None, SumCounts]
"""A sum with the names of its ends; the numbers that its key has in their place mean nothing."""


class OtherDatabase(sqlite3.DatabaseError):
    """A file that this program has not made, or another version of it has."""


def is_malformed(error: sqlite3.Error) -> bool:
    """Whether another file is needed; a missing table or column is SQLITE_ERROR."""
    code = int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
    return isinstance(error, OtherDatabase) or code in _MALFORMED


class SumsDatabase:
    """It is made where there is none. Raises OtherDatabase; as every method, sqlite3.Error and OSError."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _require_ours(path)
        self._connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        try:
            version = self._pragma("application_id"), self._pragma("user_version")
            if self._pragma("page_count") and version != (_APPLICATION, _VERSION):
                raise OtherDatabase("it is of another program or version")
            for setting in _SETTINGS:
                self._connection.execute(f"PRAGMA {setting}").fetchall()
            if version != (_APPLICATION, _VERSION):
                self._make(_SCHEMA)
            if self._connection.execute(_COUNT_LABELS_SCHEMA).fetchone()[0] < len(_LABELS_SCHEMA):
                self._make(_LABELS_SCHEMA)
        except BaseException:
            self.close()
            raise

    def _make(self, schema: Sequence[str]) -> None:
        with self.transaction():
            for statement in schema:
                self._connection.execute(statement)

    def is_there(self) -> bool:
        """Whether the path still leads to this file."""
        try:
            status = os.lstat(self._path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    # -- writing, in a transaction ------------------------------------------------------------------------------------

    def intern(self, bucket: int, name: EndName | None, address: bytes) -> int:
        """The number of an end, which it has as long as this bucket is there."""
        (number,) = self._connection.execute(_INTERN, (*_texts(name), address, bucket)).fetchone()
        return int(number)

    def find(self, name: EndName | None, address: bytes) -> int | None:
        found = self._connection.execute(_FIND, (*_texts(name), address)).fetchone()
        return None if found is None else int(found[0])

    def add(self, bucket: int, ends: Sequence[int], key: FlowKey, counts: SumCounts) -> None:
        self._connection.execute(_ADD, _values(bucket, ends, key, counts))

    def change(self, bucket: int, ends: Sequence[int], key: FlowKey, counts: SumCounts) -> bool:
        """Returns whether there is such a sum."""
        return bool(self._connection.execute(_CHANGE, _values(bucket, ends, key, counts)).rowcount)

    def forget(self, oldest: int) -> None:
        """What is in older buckets, with the ends that nothing else refers to, and their labels."""
        self._connection.execute("DELETE FROM flow WHERE bucket < ?", (oldest,))
        self._connection.execute("DELETE FROM end WHERE bucket < ?", (oldest,))
        self._connection.execute("DELETE FROM labelled WHERE bucket < ?", (oldest,))
        self._connection.execute("DELETE FROM label_set WHERE id NOT IN (SELECT labels FROM labelled)")

    def keep_labels(self, bucket: int, name: EndName, labels: LabelsSince) -> None:
        """The labels of an end from a time on, as long as this bucket is there."""
        (number,) = self._connection.execute(_INTERN_LABELS, (render_labels(labels.labels),)).fetchone()
        self._connection.execute(_KEEP_LABELS, (*_texts(name), labels.since, number, bucket))

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Of the file's pages, those that have something."""
        return (self._pragma("page_count") - self._pragma("freelist_count")) * _PAGE

    def labels_of(self, name: EndName) -> list[LabelsSince]:
        """The oldest first. Raises OtherDatabase for what no recorder has written."""
        found = self._connection.execute(_LABELS_OF, _texts(name)).fetchall()
        try:
            return [LabelsSince(int(since), parse_labels(text)) for since, text in found]
        except (TypeError, ValueError) as e:
            raise OtherDatabase(f"it has labels that cannot be some: {e}") from e

    def oldest(self) -> int | None:
        (found,) = self._connection.execute("SELECT min(bucket) FROM flow").fetchone()
        return None if found is None else int(found)

    def buckets(self, begin: int, end: int) -> list[int]:
        """Those that there are, from ``begin`` on, before ``end``."""
        asked = "SELECT DISTINCT bucket FROM flow WHERE bucket >= ? AND bucket < ?"
        return [int(bucket) for (bucket,) in self._connection.execute(asked, (begin, end))]

    def read(self, bucket: int) -> list[NamedSum]:
        """Raises OtherDatabase for what no recorder has written."""
        try:
            return [_parse(row) for row in self._connection.execute(_READ, (bucket,)).fetchall()]
        except (TypeError, ValueError) as e:
            raise OtherDatabase(f"it has a sum that cannot be one: {e}") from e


def _require_ours(path: str) -> tuple[int, int]:
    """Which file it is; it is made if there is none. SQLite would follow links, and give it a mode of its own."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise OtherDatabase("it is no file, or another user's")
    if status.st_mode & 0o077:
        os.chmod(path, 0o600)
    return status.st_dev, status.st_ino


def _texts(name: EndName | None) -> tuple[str, str, str]:
    return ("", "", "") if name is None else (name.kind, name.namespace, name.name)


def _values(bucket: int, ends: Sequence[int], key: FlowKey, counts: SumCounts) -> tuple[int, ...]:
    decided = key.egress, key.ingress, key.host_out, key.host_in, key.denied_by
    carried = counts.packets, min(_MOST, counts.size), counts.packets_back, min(_MOST, counts.size_back)
    counted = counts.connections, *carried, counts.ended, counts.measured, counts.began, counts.last
    return bucket, *ends, key.port, key.protocol, *decided, *counted


def _parse(row: tuple[Any, ...]) -> NamedSum:
    if len(row[0]) not in (0, 4, 16) or len(row[0]) != len(row[1]):
        raise ValueError(f"addresses of {len(row[0])} and {len(row[1])} bytes")
    source, destination = (EndName(*name) if name[0] else None for name in (row[9:12], row[12:15]))
    began, last, connections, *carried, ended, measured = map(int, row[15:])
    packets, size, packets_back, size_back = carried
    counts = SumCounts(began, last, connections, packets, size, packets_back, size_back, ended, measured)
    key = FlowKey._make((bytes(row[0]), bytes(row[1]), *map(int, row[2:9]), 0, 0))
    return key, source, destination, counts
