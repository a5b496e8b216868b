"""A file that says something only while its writer lives: whoever reads it learns whether that one has ended.

Rule: each content is a new file with the writer's lock on it (writer_lock.py); the lock on the one before goes only
when the new one has the name, so a reader never takes a living writer for one that has ended.
"""

from __future__ import annotations

import os

from cni_calico.kernel.writer_lock import hold_lock, is_held

_READ_ATTEMPTS = 10  # while the file is being replaced


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
