"""What the embedded store does inside one SQLite transaction: read a snapshot, compare and write, compact.

Rule: every function runs on a connection inside a transaction that its caller opened; all except ``apply_commit`` also
leave ending it to the caller. Tables: see local/file.SCHEMA.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from cni_calico import faults
from cni_calico.datastore.encoding import WRITING, corrupt_record, decode_document, prefix_end
from cni_calico.datastore.interface import CommitConflict, Committed, Failed, Revision, Versioned, Write
from cni_calico.datastore.local.file import SUB_BITS
from cni_calico.errors import Compacted, OutcomeUnknown
from cni_calico.model.keys import Key

Row = tuple[Any, ...]  # key, id of the change, JSON, more

COMMIT = faults.declare("local.commit")

CHANGES_BYTES = 1024 * 1024  # as stored; decoded they take about ten times as much
COMPACT_EVERY = 64  # revisions; so that the work of compaction is spread evenly and stays small
_CURRENT = "SELECT h.key, h.id, c.value, c.created FROM head h LEFT JOIN change c ON c.id = h.id WHERE h.key "
_AT_REVISION = (
    "SELECT key, max(id), value FROM change WHERE id < ? AND key >= ? AND key < ?"
    " GROUP BY key HAVING value IS NOT NULL ORDER BY key"
)
_CHANGES = "SELECT key, id, value FROM change WHERE id >= ? AND id < ? AND key >= ? AND key < ? ORDER BY id"
_INSERT = "INSERT INTO change (id, key, previous, created, value) VALUES (?, ?, ?, ?, ?)"


def first_id(revision: int) -> int:
    """The lowest id of a revision's changes."""
    return revision << SUB_BITS


def newest_revision(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT max(id) FROM change").fetchone()[0] or 0) >> SUB_BITS


def compacted_revision(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT revision FROM compacted").fetchone()[0])


def current_rows(connection: sqlite3.Connection, paths: Sequence[str]) -> dict[str, Row]:
    """The rows of those keys that exist."""
    rows = connection.execute(f"{_CURRENT} IN ({','.join('?' * len(paths))})", tuple(paths))
    return {row[0].decode(): row for row in rows}


def listed_rows(connection: sqlite3.Connection, prefix: str, revision: Revision | None) -> tuple[int, list[Row]]:
    """(revision, rows under a prefix at that revision); ``revision`` None: now. Raises Compacted."""
    bounds = (prefix, prefix_end(prefix))
    newest = newest_revision(connection)
    if revision is None or revision == newest:
        return newest, connection.execute(f"{_CURRENT} >= ? AND h.key < ? ORDER BY h.key", bounds).fetchall()
    if not isinstance(revision, int) or not compacted_revision(connection) <= revision < newest:
        raise Compacted(f"cannot list {prefix}: revision {revision} is not kept")
    return revision, connection.execute(_AT_REVISION, (first_id(revision + 1), *bounds)).fetchall()


def changed_rows(connection: sqlite3.Connection, prefix: str, after: int) -> tuple[int, list[Row]]:
    """(a revision, rows of every change under a prefix after ``after`` and up to it).

    It is the newest revision, unless that would exceed CHANGES_BYTES; commits are never split. Raises Compacted.
    """
    newest = newest_revision(connection)
    if not compacted_revision(connection) <= after <= newest:
        raise Compacted(f"cannot watch {prefix}: changes since revision {after} are not kept")
    bounds = (first_id(after + 1), first_id(newest + 1), prefix, prefix_end(prefix))
    rows: list[Row] = []
    size = 0
    for row in connection.execute(_CHANGES, bounds):
        if size > CHANGES_BYTES and row[1] >> SUB_BITS != rows[-1][1] >> SUB_BITS:
            return int(rows[-1][1]) >> SUB_BITS, rows
        rows.append(row)
        size += len(row[2] or b"") if isinstance(row[2], bytes) else 0
    return newest, rows


def versioned(key: Key, row: Row) -> Versioned:
    """The record of a row. Raises CorruptRecord."""
    change, raw = row[1], row[2]
    try:
        if not isinstance(raw, bytes):
            raise ValueError("its value is missing" if raw is None else "its value is not a text")
        return Versioned(key, decode_document(raw), change >> SUB_BITS)
    except ValueError as e:
        raise corrupt_record(key, e) from e


def _require_as_expected(writes: Sequence[Write], paths: Sequence[str], current: dict[str, Row]) -> None:
    """Raises CommitConflict, or CorruptRecord if a record that would be compared or replaced cannot be read."""
    failed = []
    for index, (write, path) in enumerate(zip(writes, paths, strict=True)):
        if write.op == "remove":
            continue
        found = versioned(write.key, current[path]) if path in current else None
        if write.op != "put" and (found.revision if found else None) != write.revision:
            failed.append(Failed(index, write.key, found))
    if failed:
        raise CommitConflict(failed)


def _planned_changes(
    writes: Sequence[Write], paths: Sequence[str], texts: Sequence[str | None], current: dict[str, Row], revision: int
) -> list[tuple[int, str, int, int, str | None]]:
    changes: list[tuple[int, str, int, int, str | None]] = []
    for write, path, text in zip(writes, paths, texts, strict=True):
        row = current.get(path)
        if write.op in WRITING or (write.op in ("delete", "remove") and row):
            previous = row[1] if row else 0
            created = row[3] if row and row[3] is not None else revision
            changes.append((first_id(revision) + len(changes), path, previous, created, text))
    return changes


def apply_commit(
    connection: sqlite3.Connection,
    writes: Sequence[Write],
    paths: Sequence[str],
    texts: Sequence[str | None],
    *,
    keep: int,
    doing: str,
) -> Committed:
    """Compare, write, and commit the transaction.

    Raises CommitConflict, CorruptRecord, sqlite3.Error and OSError if nothing was written, OutcomeUnknown if that is
    uncertain.
    """
    newest = newest_revision(connection)
    current = current_rows(connection, paths)
    _require_as_expected(writes, paths, current)
    revision = newest + 1
    changes = _planned_changes(writes, paths, texts, current, revision)
    if not changes:
        return Committed(newest)
    connection.executemany(_INSERT, changes)
    kept = [(path, change) for change, path, _, _, text in changes if text is not None]
    gone = [(path,) for _, path, _, _, text in changes if text is None]
    if kept:
        connection.executemany("INSERT OR REPLACE INTO head (key, id) VALUES (?, ?)", kept)
    if gone:
        connection.executemany("DELETE FROM head WHERE key = ?", gone)
    if revision % COMPACT_EVERY == 0:
        _compact(connection, revision - keep)
    faults.before(COMMIT)
    try:
        connection.execute("COMMIT")
        faults.after(COMMIT)
    except (sqlite3.Error, OSError) as e:
        raise OutcomeUnknown(f"cannot {doing}: {e}") from e
    return Committed(revision, [Versioned(w.key, w.value, revision) for w in writes if w.value is not None])


def _compact(connection: sqlite3.Connection, upto: int) -> None:
    """Delete what was replaced or deleted at or before revision ``upto``; the newest change always stays."""
    done = compacted_revision(connection)
    if upto <= done:
        return
    bounds = (first_id(done + 1), first_id(upto + 1))
    connection.execute("DELETE FROM change WHERE id IN (SELECT previous FROM change WHERE id >= ? AND id < ?)", bounds)
    connection.execute("DELETE FROM change WHERE id >= ? AND id < ? AND value IS NULL", bounds)
    connection.execute("UPDATE compacted SET revision = ?", (upto,))
