"""openat2(2) with RESOLVE_IN_ROOT: a path below a directory descriptor, symbolic links included.

Python 3.11 has no wrapper; the system call is made through libc's syscall().
"""

from __future__ import annotations

import ctypes
import os

_SYS_OPENAT2 = 437  # the same on every architecture (it came after the numbers were unified)
_RESOLVE_IN_ROOT = 0x10


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_libc = ctypes.CDLL(None, use_errno=True)


def open_in_root(root_fd: int, path: str, flags: int) -> int:
    """Open ``path`` as if ``root_fd`` were "/". Raises OSError."""
    how = _How(flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
    fd: int = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(root_fd),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return fd


def real_path(root_fd: int, path: str) -> str:
    """The path of an existing file below ``root_fd`` with every link resolved, as seen from that root."""
    fd = open_in_root(root_fd, path, os.O_PATH)
    try:
        root, real = os.readlink(f"/proc/self/fd/{root_fd}"), os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return real if root == "/" else real.removeprefix(root) or "/"


def below(root_fd: int, path: str) -> str:
    """A path through /proc/self/fd that reaches ``path`` below ``root_fd`` from this process.

    Links in the directory part are resolved in the root; the last component is left alone when it does not exist (a
    file about to be written). Raises OSError when the directory does not exist.
    """
    if not path.startswith("/"):
        path = "/" + path
    prefix = f"/proc/self/fd/{root_fd}"
    try:
        return prefix + real_path(root_fd, path)
    except FileNotFoundError:
        directory, name = os.path.split(path)
        if directory == "/":
            return f"{prefix}/{name}"
        try:
            return f"{prefix}{real_path(root_fd, directory)}/{name}"
        except FileNotFoundError:
            return prefix + path
