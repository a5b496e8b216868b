"""Opens files that a configuration names, and makes directories; something other than a file at that path neither
blocks us nor fills our memory.

Rule: only a regular file is read (a FIFO would block the call, a terminal or a disk would have effects), and only up to
a limit. A write either writes everything or raises. A directory that is made never has the umask's mode.
"""

from __future__ import annotations

import os
from errno import EFBIG, EINVAL, EISDIR, ENOTDIR

READ_LIMIT = 4 * 1024 * 1024
_TYPE, _REGULAR, _DIRECTORY = 0o170000, 0o100000, 0o040000  # as in the module stat, whose import costs time


def require_name(path: str) -> None:
    """Raises OSError for a name that JSON can contain but no file can have: a zero byte, half a surrogate pair."""
    try:
        if b"\0" not in os.fsencode(path):
            return
    except UnicodeEncodeError:
        pass
    raise OSError(EINVAL, "no file can have this name", repr(path))


def open_regular(path: str, *, follow: bool = True) -> int:
    """A descriptor for reading; of what a link leads to only if that is to be followed. Raises OSError."""
    require_name(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        require_regular(fd, path)
    except OSError:
        os.close(fd)
        raise
    return fd


def require_regular(fd: int, path: str) -> int:
    """The size of the open file, in bytes. Raises OSError if it is something else: a device, a FIFO."""
    status = os.fstat(fd)
    kind = status.st_mode & _TYPE
    if kind == _DIRECTORY:
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), path)
    if kind != _REGULAR:
        raise OSError(EINVAL, "it is not a regular file", path)
    return status.st_size


def read_regular(path: str, limit: int = READ_LIMIT, *, follow: bool = True) -> bytes:
    """The content, at most ``limit`` bytes. Raises OSError."""
    fd = open_regular(path, follow=follow)
    try:
        data = bytearray()
        while chunk := os.read(fd, 65536):
            data += chunk
            if len(data) > limit:
                raise OSError(EFBIG, f"it has more than {limit} bytes", path)
        return bytes(data)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``: a disk that fills up accepts a part and reports it only at the next attempt. Raises
    OSError.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def append_whole(path: str, data: bytes, *, durable: bool = False) -> None:
    """Append to a file that only its owner reads; it is made, with its directory, where it is missing. After a failure
    it is as long as before. Raises OSError.
    """
    make_directories(os.path.dirname(path), 0o700)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    fd = os.open(path, flags, 0o600)
    try:
        before = require_regular(fd, path)
        try:
            write_all(fd, data)
            if durable:
                os.fdatasync(fd)
        except OSError:
            os.ftruncate(fd, before)
            raise
    finally:
        os.close(fd)


def make_directories(path: str, mode: int) -> None:
    """Make a directory, and those above it that are missing: each gets ``mode`` whatever the umask is. One that exists,
    or a link to one, stays as it is. Raises OSError.
    """
    missing: list[str] = []
    while path and not os.path.isdir(path):
        missing.append(path)
        above = os.path.dirname(path.rstrip("/"))
        if above == path:
            break
        path = above
    for each in reversed(missing):
        try:
            os.mkdir(each, 0o700)  # nobody else gets in before it has its mode
        except FileExistsError:
            if not os.path.isdir(each):
                raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), each) from None
            continue
        os.chmod(each, mode)
