"""The embedded store's file: opening it, what it may contain, and what SQLite's errors mean.

Rule: a file that is not ours, is damaged, is of a newer version or is on a network file system is refused by name and
left unchanged, including its mode. Only a write creates a store, and never where one has been lost. Connections are
never used by two threads at once nor across a fork, and never outlive the file they were opened for.

Never open the file by other means while a connection is open: closing that descriptor would drop SQLite's locks (POSIX
locks belong to the process, not to the descriptor).
"""

from __future__ import annotations

import _thread
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from typing import TypeVar

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
from cni_calico.regular import make_directories

StepResult = TypeVar("StepResult")

OPEN = faults.declare("local.open")

SCHEMA_VERSION = 1
APPLICATION_ID = 0x63616C69  # "cali"
# A change's id is revision << SUB_BITS | its place in the commit, so that the newest id gives the store's revision.
# ``previous`` is the id that a change replaced: with it compaction finds what to delete without searching.
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
# On these, SQLite's locks and shared memory do not work reliably between the hosts that share such a file.
_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "afs", "lustre", "gfs2", "ocfs2", "virtiofs", "gpfs", "coda")
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_proven: set[tuple[int, int]] = set()  # (device, inode) of files whose header this process has read
_proving = _thread.allocate_lock()


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


def patiently(step: Callable[[], StepResult], deadline: Deadline, doing: str) -> StepResult:
    """Repeat ``step`` while another process holds SQLite's lock, until the deadline.

    SQLite's own busy handler sleeps up to 100 ms at a time, but a commit takes less than one.
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
    """The file system type of the mount that contains ``path`` (absolute, resolved); "" if it is not listed.

    ``mountinfo``: the text of /proc/self/mountinfo (proc_pid_mountinfo(5)); of equal mount points the last one counts.
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
        return  # a block device is local. Network file systems, FUSE, overlay and tmpfs have anonymous devices.
    with open("/proc/self/mountinfo") as f:
        kind = filesystem_of(os.path.realpath(path), f.read())
    if kind.startswith(_REMOTE):
        raise DatastoreUnsupported(
            f"cannot open datastore {path}: it lies on a network or user-space file system ({kind})",
            details="put datastore_path on a local disk; to share data between hosts use etcd or Kubernetes",
        )


def marker_path(path: str) -> str:
    """The file next to a store which records that one was made there."""
    return f"{path}.was-made"


def lost(path: str, how: str) -> DatastoreDamaged:
    """A store existed and is gone: a new one would assign the addresses of running containers again."""
    return DatastoreDamaged(
        f"cannot open datastore {path}: {how}, and {marker_path(path)} says that a datastore was made here",
        details="put the file back from a backup; or run 'calicoctl datastore rebuild', which makes a new one in which"
        " the addresses of this host's containers are taken; or, when no container of this host is left, remove"
        f" {marker_path(path)}",
    )


def _create_file(path: str) -> None:
    """Make a complete, empty store, mode 0600 from the first moment; a missing directory is made with mode 0700."""
    directory = os.path.dirname(path)
    make_directories(directory, 0o700)
    _refuse_remote(directory, os.stat(directory).st_dev)
    temporary = f"{path}.new-{os.getpid()}-{time.monotonic_ns()}"
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        _write_schema(temporary)
        os.link(temporary, path)  # unlike rename, it never replaces what another process created meanwhile
    except FileExistsError:
        pass
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            try:
                os.unlink(temporary + suffix)
            except FileNotFoundError:
                pass
    _sync_directory(directory)


def _sync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _replace_empty(path: str) -> None:
    """Replace an empty file, which no process can have open, one process at a time. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # the second process finds another file, or none
        status = os.fstat(fd)
        _require_made_by_us(path, status)
        if not status.st_size and os.path.exists(path) and os.path.samestat(status, os.stat(path)):
            os.unlink(path)
            _create_file(path)
    finally:
        os.close(fd)


def _require_made_by_us(path: str, status: os.stat_result) -> None:
    """Raises DatastoreDamaged for an empty file that cannot be the beginning of a store: another program may need
    it.
    """
    if stat.S_IMODE(status.st_mode) != 0o600 or status.st_uid != os.geteuid():
        raise DatastoreDamaged(
            f"cannot open datastore {path}: it is an empty file that cni-calico did not make: its mode is"
            f" {stat.S_IMODE(status.st_mode):04o}, its owner {status.st_uid}, and a datastore has mode 0600 and owner"
            f" {os.geteuid()}",
            details="let datastore_path (DATASTORE_PATH) name another file; or remove this one if nothing needs it",
        )


def _may_have_been_made(path: str) -> bool:
    """Whether the file may once have had content: an earlier release wrote no marker."""
    return any(os.path.exists(name) for name in (marker_path(path), f"{path}-wal", f"{path}-journal"))


def _write_schema(path: str) -> None:
    connection = sqlite3.connect(_uri(path), uri=True, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        create_tables(connection)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()


def create_tables(connection: sqlite3.Connection) -> None:
    for statement in SCHEMA:
        connection.execute(statement)


def ensure_marker(path: str) -> None:
    """Write the marker file; stores of earlier releases get theirs at their next write. Raises OSError."""
    marker = marker_path(path)
    if os.path.exists(marker):
        return
    temporary = f"{marker}.{os.getpid()}-{time.monotonic_ns()}"
    try:
        with open(temporary, "x") as f:
            f.write("cni-calico made a datastore next to this file. If the datastore is lost, see docs/runbook.md.\n")
            f.flush()
            os.fsync(f.fileno())
        os.rename(temporary, marker)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    _sync_directory(os.path.dirname(path))


def _require_ours(path: str, status: os.stat_result) -> None:
    """Raises DatastoreUnsupported, DatastoreDamaged before anything is opened for writing or changed."""
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "something else")
        raise DatastoreUnsupported(
            f"cannot open datastore {path}: it is {kind}, not a file",
            details="datastore_path (DATASTORE_PATH) names a file that cni-calico made, or one that is not there yet",
        )
    if not status.st_size:
        if os.path.exists(marker_path(path)):
            raise lost(path, "it is empty")
        raise DatastoreDamaged(
            f"cannot open datastore {path}: it is empty, but a datastore never is",
            details=f"{path}-wal or {path}-journal shows that it once had content: put it back from a backup; or remove"
            " all of them when no container of this host has an address from it",
        )
    identity = (status.st_dev, status.st_ino)
    with _proving:
        if identity not in _proven:
            _require_header(path)
            _proven.add(identity)


def _require_header(path: str) -> None:
    # Only while this process has no connection to the file: see the module's docstring.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        header = os.pread(fd, 100, 0)
    finally:
        os.close(fd)
    if not header.startswith(b"SQLite format 3\0"):
        raise DatastoreDamaged(f"cannot open datastore {path}: it is not a database")
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise DatastoreUnsupported(f"cannot open datastore {path}: it is a database of another program")


def _uri(path: str) -> str:
    escaped = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{escaped}?mode=rw"  # rw: SQLite must not create it with its own mode


def _pragma(connection: sqlite3.Connection, name: str) -> int | bytes:
    value: int | bytes = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise DatastoreUnsupported(f"cannot open datastore {path}: it is a database of another program")
    version = _pragma(connection, "user_version")
    if version != SCHEMA_VERSION:
        raise DatastoreUnsupported(
            f"cannot open datastore {path}: it has schema version {version!r},"
            f" this program knows version {SCHEMA_VERSION}",
            details="use a release of cni-calico at least as new as the one that wrote it",
        )
    if _pragma(connection, "journal_mode") != b"wal" and _pragma(connection, "journal_mode = WAL") != b"wal":
        raise DatastoreUnsupported(f"cannot open datastore {path}: its file system does not allow shared memory files")
    # An address that was assigned must not be assigned again after a power loss: every commit reaches the disk.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = OFF")
    connection.execute("PRAGMA cache_size = -256")  # kB, for each connection; the system caches the file anyway


def open_connection(path: str, deadline: Deadline, *, create: bool) -> sqlite3.Connection | None:
    """A connection to the store; None if there is none yet and ``create`` is False.

    Raises DatastoreError, DeadlineExceeded.
    """
    doing = f"open datastore {path}"
    deadline.require(doing)
    connection = None
    try:
        faults.before(OPEN)
        status = _status(path, create=create)
        if status is None:
            return None
        _refuse_remote(path, status.st_dev)
        _require_ours(path, status)
        opened = sqlite3.connect(_uri(path), uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        connection = opened
        opened.text_factory = bytes  # text that is not UTF-8 must not fail a whole listing
        patiently(lambda: _prepare(opened, path), deadline, doing)
        if status.st_mode & 0o077:
            os.chmod(path, 0o600)
        if create:
            ensure_marker(path)
        faults.after(OPEN)
    except BaseException as e:
        if connection is not None:
            connection.close()
        if isinstance(e, (sqlite3.Error, OSError)):
            raise translated(e, doing) from e
        if isinstance(e, ValueError):  # a zero byte, half a surrogate pair
            raise DatastoreUnsupported(f"cannot open datastore {path!r}: no file can have this name") from e
        raise
    return connection


def _status(path: str, *, create: bool) -> os.stat_result | None:
    try:
        status = os.stat(path)
        if status.st_size or not stat.S_ISREG(status.st_mode) or _may_have_been_made(path):
            return status
        _require_made_by_us(path, status)
        if not create:
            return None  # left by a process that was killed while it made a store
        _replace_empty(path)
        return os.stat(path)
    except FileNotFoundError:
        pass
    if os.path.exists(marker_path(path)):
        raise lost(path, "it is gone")
    if not create:
        return None
    _create_file(path)
    return os.stat(path)


def empty_connection() -> sqlite3.Connection:
    """A connection that shows an empty store, for reads before a store exists."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.text_factory = bytes
    create_tables(connection)
    return connection
