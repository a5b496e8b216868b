"""A file that says something only while its writer lives: that one holds a lock on it until it ends, however it ends.

Rule: nobody who may only read the file can make it look as if its writer lived, or keep the writer from writing: asking
takes no lock, and the lock is there before the file has its name. It is one of an open file description
(fcntl_locking(2), F_OFD_SETLK), which every process that sees the file sees, in other containers too, and also this
process itself. Each content is a new file; the lock on the one before goes only when the new one has the name, so a
reader never takes a living writer for one that has ended.
"""

from __future__ import annotations

import os
from _struct import pack, unpack_from
from fcntl import F_OFD_GETLK, F_OFD_SETLK, F_RDLCK, F_UNLCK, F_WRLCK, fcntl

_READ_ATTEMPTS = 10  # while the file is being replaced
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, process ID; length 0 is the whole file


def hold_lock(fd: int) -> int:
    """Lock a file that is open for writing and has no name yet that others know; returns another descriptor of it. The
    lock stays until that one is closed. Raises OSError.
    """
    held = os.dup(fd)
    try:
        fcntl(held, F_OFD_SETLK, pack(_FLOCK, F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except BaseException:
        os.close(held)
        raise
    return held


def is_held(fd: int) -> bool:
    """Whether the writer of an open file still holds its lock. Raises OSError."""
    answer = fcntl(fd, F_OFD_GETLK, pack(_FLOCK, F_RDLCK, os.SEEK_SET, 0, 0, 0))
    return bool(unpack_from("h", answer)[0] != F_UNLCK)


class HeldFile:
    """For its only writer."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = -1

    def write(self, data: bytes) -> None:
        """Replace the content; a crash in between leaves the old one. Raises OSError."""
        from cni_calico.kernel.files import Files  # not for those who only read

        locks: list[int] = []
        try:
            Files().write_atomic(self.path, data, 0o644, durable=False, prepare=lambda fd: locks.append(hold_lock(fd)))
        except BaseException:
            for lock in locks:
                os.close(lock)
            raise
        before, self._lock = self._lock, locks[0]
        if before >= 0:
            os.close(before)

    def remove(self) -> None:
        """Whoever wrote it. Raises OSError."""
        if os.path.exists(self.path):
            os.unlink(self.path)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def read_held(path: str) -> tuple[bytes, bool]:
    """The content, and whether its writer lives. Raises OSError."""
    data, lives = b"", False
    for _ in range(_READ_ATTEMPTS):
        with open(path, "rb") as file:
            lives, data = is_held(file.fileno()), file.read()
            is_there = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
        if lives or is_there:
            break
    return data, lives
