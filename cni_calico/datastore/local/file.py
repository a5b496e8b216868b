"""The embedded store's file: opening it, what may lie in it, and what SQLite's errors mean.

Rule: a file that is not ours, is damaged, is of a newer version or lies on a network file system is refused with its
name and left as it is. Connections are never used by two threads at once nor over a fork, and never outlive the file
they were opened for.

Never open the file by other means while a connection is open: closing that descriptor would drop SQLite's locks
(POSIX locks belong to the process, not to the descriptor).
"""

from __future__ import annotations

import os
import sqlite3
import time

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    DatastoreDamaged,
    DatastoreDenied,
    DatastoreError,
    DatastoreUnavailable,
    DatastoreUnsupported,
    DeadlineExceeded,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

OPEN = faults.declare("local.open")

SCHEMA_VERSION = 1
APPLICATION_ID = 0x63616C69  # "cali"
# A change's id is revision << SUB_BITS | its place in the commit, so that the newest id tells the store's revision.
# ``previous`` is the id that a change replaced: compaction finds what may go without searching.
SCHEMA = (
    "CREATE TABLE change (id INTEGER PRIMARY KEY, key TEXT NOT NULL, previous INTEGER NOT NULL,"
    " created INTEGER NOT NULL, value TEXT)",
    "CREATE TABLE head (key TEXT PRIMARY KEY, id INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE compacted (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL)",
    "INSERT INTO compacted VALUES (1, 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
SUB_BITS = 10

_BUSY = (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED
_DAMAGED = (1, 11, 26)  # SQLITE_ERROR (a table is missing), SQLITE_CORRUPT, SQLITE_NOTADB
_DENIED = (3, 8, 23)  # SQLITE_PERM, SQLITE_READONLY, SQLITE_AUTH
# SQLite's locks and shared memory do not work, or not reliably, between the hosts that share such a file.
_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "afs", "lustre", "gfs2", "ocfs2", "virtiofs", "gpfs", "coda")


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def translated(error: Exception, doing: str) -> DatastoreError:
    """What an error of SQLite, of the file system or an injected one means."""
    text = f"cannot {doing}: {error}"
    if isinstance(error, sqlite3.Error):
        code = _code(error)
        if code in _DAMAGED:
            return DatastoreDamaged(text)
        if code in _DENIED:
            return DatastoreDenied(text)
    if isinstance(error, PermissionError):
        return DatastoreDenied(text)
    return DatastoreUnavailable(text)


def patiently(step: Callable[[], T], deadline: Deadline, doing: str) -> T:
    """Repeat ``step`` while another process holds SQLite's lock, until the deadline.

    SQLite's own busy handler sleeps up to 100 ms at a time, a commit takes less than one.
    """
    pause_s = 0.0003
    while True:
        try:
            return step()
        except sqlite3.OperationalError as e:
            if _code(e) not in _BUSY:
                raise
            if deadline.remaining_s() <= pause_s:
                raise DeadlineExceeded(f"cannot {doing}: another process holds the lock of the datastore file") from e
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.004)


def filesystem_of(path: str, mountinfo: str) -> str:
    """The file system type of the mount that ``path`` (absolute, resolved) lies on; "" when it is not listed.

    ``mountinfo``: the text of /proc/self/mountinfo (proc_pid_mountinfo(5)); the last of equal mount points counts.
    """
    best, found = "", ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = fields[4]
        if "\\" in point:  # blanks are written as \\040
            point = point.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")
        inside = path == point or path.startswith(point if point.endswith("/") else point + "/")
        if inside and len(point) >= len(best):
            best, found = point, right.split(" ")[0]
    return found


def _refuse_remote(path: str, device: int) -> None:
    if os.major(device) != 0:
        return  # a block device: local. Network file systems, FUSE, overlay and tmpfs have anonymous devices.
    with open("/proc/self/mountinfo") as f:
        kind = filesystem_of(os.path.realpath(path), f.read())
    if kind.startswith(_REMOTE):
        raise DatastoreUnsupported(
            f"cannot open datastore {path}: it lies on a network or user-space file system ({kind})",
            details="put datastore_path on a local disk; to share data between hosts use etcd or Kubernetes",
        )


def _create_file(path: str) -> None:
    """An empty file, mode 0600 from its first moment, in a directory of mode 0700 when that is missing too."""
    directory = os.path.dirname(path)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    _refuse_remote(directory, os.stat(directory).st_dev)
    temporary = f"{path}.new-{os.getpid()}-{time.monotonic_ns()}"
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        os.link(temporary, path)  # unlike rename it never replaces what another process created meanwhile
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _uri(path: str) -> str:
    escaped = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{escaped}?mode=rw"  # rw: SQLite must not create it with a mode of its own


def _pragma(connection: sqlite3.Connection, name: str) -> int | bytes:
    value: int | bytes = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _create_schema(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _pragma(connection, "user_version") == 0:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise DatastoreUnsupported(f"cannot open datastore {path}: it is a database of another program")
            for statement in SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    version = _pragma(connection, "user_version")
    if version == 0:
        _create_schema(connection, path)
        version = _pragma(connection, "user_version")
    if version != SCHEMA_VERSION:
        raise DatastoreUnsupported(
            f"cannot open datastore {path}: it has schema version {version!r},"
            f" this program knows version {SCHEMA_VERSION}",
            details="use a release of cni-calico at least as new as the one that wrote it",
        )
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise DatastoreUnsupported(f"cannot open datastore {path}: it is a database of another program")
    if _pragma(connection, "journal_mode") != b"wal" and _pragma(connection, "journal_mode = WAL") != b"wal":
        raise DatastoreUnsupported(f"cannot open datastore {path}: its file system does not allow shared memory files")
    # An address handed out must not be handed out again after a power loss: every commit reaches the disk.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = OFF")
    connection.execute("PRAGMA cache_size = -256")  # kB, for each connection; the system caches the file anyway


def open_connection(path: str, deadline: Deadline) -> sqlite3.Connection:
    """A connection to the store, created when missing. Raises DatastoreError, DeadlineExceeded."""
    doing = f"open datastore {path}"
    deadline.require(doing)
    connection = None
    try:
        faults.before(OPEN)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            _create_file(path)
            status = os.stat(path)
        _refuse_remote(path, status.st_dev)
        if status.st_mode & 0o077:
            os.chmod(path, 0o600)
        opened = sqlite3.connect(_uri(path), uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        connection = opened
        opened.text_factory = bytes  # text that is not UTF-8 must not fail a whole listing
        patiently(lambda: _prepare(opened, path), deadline, doing)
        faults.after(OPEN)
    except BaseException as e:
        if connection is not None:
            connection.close()
        if isinstance(e, (sqlite3.Error, OSError)):
            raise translated(e, doing) from e
        raise
    return connection
