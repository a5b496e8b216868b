"""Writes what can still be read of a damaged store into a new one.

Rule: works on a copy; the damaged file is never opened for writing. A page that cannot be read costs only the records
in it: all others are read by halving the ranges that fail. Lost records are named.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.datastore.encoding import decode_document
from cni_calico.datastore.interface import Write
from cni_calico.datastore.local.file import SUB_BITS
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDamaged
from cni_calico.model.keys import parse_path

PROBLEMS_MAX = 20


@dataclass(frozen=True, slots=True)
class Salvaged:
    """``saved``: the number of records; ``lost``: the keys of those that are not saved; ``problems``: what SQLite
    found.
    """

    saved: int
    lost: tuple[str, ...]
    problems: tuple[str, ...]


def read_problems(path: str) -> tuple[str, ...]:
    """What SQLite's own check finds wrong with the file, and records that are not documents; () if nothing is.

    Raises DatastoreDamaged if it cannot be opened at all, OSError.
    """
    with tempfile.TemporaryDirectory(prefix="calico-salvage-") as directory:
        connection = _open_copy(path, directory)
        try:
            records, lost = _read_records(connection)
            unreadable = [f"record {key} is not a document" for key, raw in records.items() if _decoded(raw) is None]
            return (*_check(connection), *(f"record {key} is lost" for key in lost), *unreadable)
        finally:
            connection.close()


def salvage(path: str, target: str, deadline: Deadline) -> Salvaged:
    """Write what can be read of the store at ``path`` into a new one at ``target``.

    Raises DatastoreDamaged if nothing can be read, DatastoreError, OSError.
    """
    with tempfile.TemporaryDirectory(prefix="calico-salvage-") as directory:
        connection = _open_copy(path, directory)
        try:
            problems = _check(connection)
            records, lost = _read_records(connection)
        finally:
            connection.close()
    writes = []
    for path_in_store, raw in sorted(records.items()):
        key, document = parse_path(path_in_store), _decoded(raw)
        if key is None or document is None:
            lost.append(path_in_store)
        else:
            writes.append(Write.create(key, document))
    if not writes:
        raise DatastoreDamaged(f"cannot salvage {path}: not one record of it can be read")
    store = LocalStore(target)
    try:
        for at in range(0, len(writes), store.max_commit):
            store.commit(writes[at : at + store.max_commit], deadline)
    finally:
        store.close()
    return Salvaged(len(writes), tuple(sorted(lost)), problems)


def _open_copy(path: str, directory: str) -> sqlite3.Connection:
    copy = f"{directory}/copy"
    for suffix in ("", "-wal"):
        if os.path.exists(path + suffix):
            shutil.copyfile(path + suffix, copy + suffix)
    connection = sqlite3.connect(copy, isolation_level=None)
    connection.text_factory = bytes
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as e:
        connection.close()
        raise DatastoreDamaged(f"cannot salvage {path}: {e}") from e
    return connection


def _check(connection: sqlite3.Connection) -> tuple[str, ...]:
    try:
        rows = connection.execute(f"PRAGMA integrity_check({PROBLEMS_MAX})").fetchall()
    except sqlite3.Error as e:
        return (str(e),)
    return tuple(text for (raw,) in rows if (text := raw.decode(errors="replace")) != "ok")


def _read_records(connection: sqlite3.Connection) -> tuple[dict[str, Any], list[str]]:
    """(the newest readable value of every key that exists, the keys whose newest value is lost)."""
    newest: dict[str, tuple[int, Any]] = {}
    for change, key, value in _changes(connection, 0, _newest_id(connection)):
        name = key.decode(errors="replace")
        if change > newest.get(name, (-1, None))[0]:
            newest[name] = (change, value)
    heads = _heads(connection)
    lost = sorted(key for key, change in heads.items() if newest.get(key, (-1, None))[0] != change)
    return {key: value for key, (_, value) in newest.items() if value is not None and key not in lost}, lost


def _newest_id(connection: sqlite3.Connection) -> int:
    try:
        return int(connection.execute("SELECT max(id) FROM change").fetchone()[0] or 0)
    except sqlite3.Error:
        return max(_heads(connection).values(), default=1 << 40)


def _changes(connection: sqlite3.Connection, first: int, last: int) -> Iterator[tuple[int, bytes, Any]]:
    """The rows of a range of ids, without those that cannot be read."""
    if first > last:
        return
    try:
        yield from connection.execute(
            "SELECT id, key, value FROM change WHERE id BETWEEN ? AND ?", (first, last)
        ).fetchall()
        return
    except sqlite3.Error:
        if last - first < 1 << SUB_BITS:
            if first != last:  # one commit: row by row, because it has few
                for one in range(first, min(last, first + 512) + 1):
                    yield from _changes(connection, one, one)
            return
    middle = (first + last) // 2
    yield from _changes(connection, first, middle)
    yield from _changes(connection, middle + 1, last)


def _heads(connection: sqlite3.Connection) -> dict[str, int]:
    """The keys of existing records, read from both ends up to what cannot be read."""
    found: dict[str, int] = {}
    for query in ("SELECT key, id FROM head ORDER BY key", "SELECT key, id FROM head ORDER BY key DESC"):
        try:
            for key, change in connection.execute(query):
                found[key.decode(errors="replace")] = change
        except sqlite3.Error:
            continue
        break
    return found


def _decoded(raw: Any) -> Mapping[str, Any] | None:
    try:
        return decode_document(raw) if isinstance(raw, bytes) else None
    except ValueError:
        return None
