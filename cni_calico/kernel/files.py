"""The files of the caller: every path in a request is resolved in the caller's root, whichever process serves it.

Rule: with ``root_fd`` None paths are this process's own; with an O_PATH descriptor of the caller's "/" they resolve
below it (openat2 RESOLVE_IN_ROOT), so a resident server in another mount namespace sees what the caller sees. Writes
are atomic (temporary name, fsync, rename, fsync of the directory).
"""

from __future__ import annotations

import os
from collections.abc import Callable

from cni_calico import faults
from cni_calico.regular import make_directories, read_regular, require_name, write_all

WRITE = faults.declare("file.write")
RENAME = faults.declare("file.rename")
REMOVE = faults.declare("file.remove")
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class Files:
    """Reads and writes below one root."""

    def __init__(self, root_fd: int | None = None) -> None:
        self.root_fd = root_fd

    def path(self, path: str) -> str:
        """A path under which this process reaches the caller's ``path``. Raises OSError."""
        require_name(path)
        if self.root_fd is None:
            return path
        from cni_calico.kernel.openat2 import below

        return below(self.root_fd, path)

    def read_bytes(self, path: str) -> bytes:
        """The content of a regular file, at most regular.READ_LIMIT bytes. Raises OSError."""
        return read_regular(self.path(path))

    def read_text(self, path: str) -> str:
        """The content as UTF-8. Raises OSError, UnicodeDecodeError."""
        return self.read_bytes(path).decode()

    def holds(self, path: str, data: bytes) -> bool:
        """Whether that is the file's content; False if it cannot be read."""
        try:
            return self.read_bytes(path) == data
        except OSError:
            return False

    def exists(self, path: str) -> bool:
        try:
            return os.path.exists(self.path(path))
        except OSError:
            return False

    def is_executable(self, path: str) -> bool:
        real = self.path(path)
        return os.path.isfile(real) and os.access(real, os.X_OK)

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted; none if it does not exist."""
        try:
            return sorted(os.listdir(self.path(directory)))
        except FileNotFoundError:
            return []

    def make_directory(self, directory: str, mode: int = 0o700) -> None:
        make_directories(self.path(directory), mode)

    def write_atomic(
        self,
        path: str,
        data: bytes,
        mode: int = 0o600,
        *,
        durable: bool = True,
        prepare: Callable[[int], object] | None = None,
    ) -> None:
        """Replace ``path`` by ``data``: after a crash the file has the old content or the new, never a part.

        Without ``durable`` that holds only for a crash of this process, not of the machine. ``prepare`` gets the open
        file before it has its name.
        """
        target = self.path(path)
        directory, name = os.path.split(target)
        temporary = os.path.join(directory, f".{name[:200]}.{os.getpid()}.new")
        faults.before(WRITE)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            try:
                os.fchmod(fd, mode)
                write_all(fd, data)
                if durable:
                    os.fsync(fd)
                if prepare is not None:
                    prepare(fd)
            finally:
                os.close(fd)
            faults.after(WRITE)
            faults.before(RENAME)
            os.rename(temporary, target)
        except BaseException:
            _remove_leftover(temporary)
            raise
        if durable:
            _sync_directory(directory)
        faults.after(RENAME)

    def append(self, path: str, data: bytes, mode: int = 0o600) -> int:
        """Append to a file; returns its new size. Raises OSError."""
        faults.before(WRITE)
        fd = os.open(self.path(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | _SAFELY, mode)
        try:
            write_all(fd, data)
            size = os.lseek(fd, 0, os.SEEK_CUR)
        finally:
            os.close(fd)
        faults.after(WRITE)
        return size

    def remove(self, path: str) -> None:
        """Remove a file; absent is success."""
        faults.before(REMOVE)
        try:
            os.unlink(self.path(path))
        except FileNotFoundError:
            return
        faults.after(REMOVE)


def _remove_leftover(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # the error being raised says more


def _sync_directory(directory: str) -> None:
    fd = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
