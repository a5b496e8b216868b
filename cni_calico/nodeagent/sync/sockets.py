"""Opens the socket in a workload's volume: ``<prefix>/mount/<volume>/socket``, for any user of the pod.

Rule: whoever has the volume may put anything in its directory, at any moment; no link in it is followed, and nothing
outside of it is changed.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

DIRECTORY, NAME = "mount", "socket"
_MODE, _WAITING = 0o777, 16
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class VolumeSocket:
    """A listening socket that does not block."""

    def __init__(self, prefix: str, volume: str) -> None:
        """An older socket there is replaced. Raises OSError."""
        parent = os.open(f"{prefix}/{DIRECTORY}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._directory = os.open(volume, _OPEN, dir_fd=parent)
        finally:
            os.close(parent)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._remove()
            self.listener.bind(f"/proc/self/fd/{self._directory}/{NAME}")  # a path of any length, and no link
            self._open_to_all()
            self.listener.listen(_WAITING)
            self.listener.setblocking(False)
        except OSError:
            self.close()
            raise

    def _remove(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(NAME, dir_fd=self._directory)

    def _open_to_all(self) -> None:
        """The mode of what was found to be a socket, whatever has the name by now. Raises OSError."""
        found = os.open(NAME, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory)
        try:
            if not stat.S_ISSOCK(os.fstat(found).st_mode):
                raise FileExistsError(17, "it was replaced by something else", NAME)
            os.chmod(f"/proc/self/fd/{found}", _MODE)
        finally:
            os.close(found)

    def close(self) -> None:
        """Nobody can join any more."""
        self.listener.close()
        with suppress(OSError):  # a directory in its place stays
            self._remove()
        os.close(self._directory)
