"""The embedded store's connections: each has one user at a time, who returns it afterwards.

Rule: a connection is never used across a fork (SQLite's locks belong to the process that took them), nor after the file
it was opened for was replaced: addresses written into a file that no longer has a name would be lost.
"""

from __future__ import annotations

import os
import sqlite3

from cni_calico.datastore.local.file import empty_connection, ensure_marker, open_connection, translated
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreUnavailable

# Connections of the parent process: kept so that they are not closed here, which would affect the parent's database.
_inherited: list[sqlite3.Connection] = []
NO_FILE = (0, 0)


class SqlitePool:
    """Idle connections to one file; the last one given back is the next one borrowed (its statements are prepared)."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.closed = False
        self._pid = os.getpid()
        self._file = NO_FILE
        self._marked = NO_FILE  # the file whose marker is known to exist
        self._idle: list[sqlite3.Connection] = []

    def generation(self) -> tuple[int, int, int]:
        """(process, device, inode): connections of another generation must not be used. Zeros: no file yet."""
        try:
            status = os.stat(self.path)
        except (OSError, ValueError):  # opening it reports the problem
            return os.getpid(), *NO_FILE
        return os.getpid(), status.st_dev, status.st_ino

    def _settle(self) -> None:
        pid, *file = self.generation()
        if pid != self._pid:
            _inherited.extend(self._idle)
            self._idle, self._pid = [], pid
        if self._file != tuple(file):
            stale, self._idle = self._idle, []
            self._file = (file[0], file[1])
            for connection in stale:
                connection.close()

    def borrow(self, deadline: Deadline, *, create: bool = False) -> tuple[sqlite3.Connection, tuple[int, int]]:
        """A connection, and the file it belongs to (for ``give_back``).

        If there is no file yet: a connection that shows an empty store, or with ``create`` one to a new file. Raises
        DatastoreError, DeadlineExceeded.
        """
        if self.closed:
            raise DatastoreUnavailable(f"cannot use datastore {self.path}: it has been closed")
        while True:
            self._settle()
            before = self._file
            if self._idle and not (create and before == NO_FILE):
                if create:
                    self._mark(before)
                try:
                    return self._idle.pop(), self._file
                except IndexError:  # another thread has done it
                    pass
            connection = open_connection(self.path, deadline, create=create)
            if connection is None:
                return empty_connection(), NO_FILE
            self._settle()
            if before in (NO_FILE, self._file):
                return connection, self._file
            connection.close()  # the file was replaced while it was opened: it is unknown which one the connection has

    def _mark(self, file: tuple[int, int]) -> None:
        """Write the marker before a connection opened by a read is used for writing: a read does not write it."""
        if file == self._marked:
            return
        try:
            ensure_marker(self.path)
        except OSError as e:
            raise translated(e, f"open datastore {self.path}") from e
        self._marked = file

    def give_back(self, connection: sqlite3.Connection, file: tuple[int, int], *, broken: bool = False) -> None:
        """Return what ``borrow`` gave; a broken or stale connection is closed."""
        if broken or self.closed or file != self._file or connection.in_transaction:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Close what is idle now, and what is in use once it is returned."""
        self.closed = True
        if os.getpid() != self._pid:
            _inherited.extend(self._idle)
            self._idle = []
        while self._idle:
            self._idle.pop().close()
