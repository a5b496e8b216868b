"""openat2(2) with RESOLVE_IN_ROOT: a path below a directory descriptor, symbolic links included.

Python 3.11 has no wrapper; the system call is made through libc's syscall().
"""

from __future__ import annotations

import ctypes
import os
from errno import ELOOP

_SYS_OPENAT2 = 437  # the same on every architecture (it was added after the numbers were unified)
_RESOLVE_IN_ROOT = 0x10
_LINKS_MAX = 40  # as many as the kernel follows


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

    Every link in it is resolved in that root, even one whose target does not exist yet: an absolute link would lead
    into this process's own root. The part that does not exist keeps its name (a file about to be written). Raises
    OSError.
    """
    for _ in range(_LINKS_MAX):
        head, missing = path.rstrip("/"), ""
        while True:
            try:
                real = real_path(root_fd, head or "/").rstrip("/")
                break
            except FileNotFoundError:
                head, _, name = head.rpartition("/")
                if name == ".." or not name:
                    raise
                missing = f"/{name}{missing}"
        reached = f"/proc/self/fd/{root_fd}{real}{missing}"
        first = missing.split("/")[1] if missing else ""
        try:
            target = os.readlink(f"/proc/self/fd/{root_fd}{real}/{first}") if first else ""
        except OSError:
            target = ""
        if not target:
            return reached
        rest = missing[1 + len(first) :]
        path = (target if target.startswith("/") else f"{real}/{target}") + rest
    raise OSError(ELOOP, os.strerror(ELOOP), path)
