"""Takes from this process, for good, what it could change on this host with.

Rule: two things. The process gets a mount namespace in which everything is mounted read-only, also /proc/sys and for
the programs that it starts; and every door, of the kernel and of datastores, refuses its effect at its fault point,
before it happens: of the points that there are only those of ``READING`` may be passed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from errno import EACCES, ENOENT, ENOTCONN, ESTALE

from cni_calico import faults
from cni_calico.errors import KernelError

# what only reads, or is no effect by itself: a program that is started gets no other files than this process
READING = frozenset(
    (
        *("process.start", "file.lock", "local.open", "local.read", "etcd.read", "kubernetes.read"),
        *("kubernetes.watch", "bird.connect"),
    )
)
_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
# below a mount that hides it, or gone; a user's own (FUSE), whose server has ended, too: nobody here can write there
_OUT_OF_REACH = (ENOENT, EACCES, ENOTCONN, ESTALE)
_KEPT = {"nosuid": 0x2, "nodev": 0x4, "noexec": 0x8, "noatime": 0x400, "nodiratime": 0x800, "relatime": 0x200000}


class RefusedWrite(faults.Injected):
    """What a door was about to do."""

    def __init__(self, point: str) -> None:
        super().__init__(point, "before")
        self.strerror = f"{point} would change something, and this is a rehearsal"

    def __str__(self) -> str:
        return str(self.strerror)


def become_read_only(writable: Collection[str] = ()) -> None:
    """``writable``: directories that stay as they are. For a process with one thread, as root. Raises KernelError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS):
        raise _failed("get mounts of our own")
    _mount(libc, "/", _RECURSIVE | _PRIVATE)
    for directory in writable:
        if os.path.isdir(directory):
            _mount(libc, directory, _BIND | _RECURSIVE, source=directory)
    kept = {os.path.realpath(directory) for directory in writable}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [parse_mount(line) for line in file]
    for path, flags in mounts:
        if not any(path == one or path.startswith(f"{one}/") for one in kept):
            _mount(libc, path, _REMOUNT | _BIND | _READ_ONLY | flags)
    faults.install(_refuse)


def parse_mount(line: str) -> tuple[str, int]:
    """Where it is, and with which flags: a line of /proc/self/mountinfo (proc_pid_mountinfo(5))."""
    fields = line.split(" ")
    path = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape").encode("latin-1")
    flags = sum(_KEPT.get(option, 0) for option in fields[5].split(","))
    return path.decode("utf-8", "surrogateescape"), flags


def _mount(libc: ctypes.CDLL, path: str, flags: int, source: str = "none") -> None:
    if libc.mount(os.fsencode(source), os.fsencode(path), None, ctypes.c_ulong(flags), None):
        if ctypes.get_errno() in _OUT_OF_REACH and flags & _REMOUNT:
            return
        raise _failed(f"mount {path} read-only")


def _failed(what: str) -> KernelError:
    errno = ctypes.get_errno()
    return KernelError(
        f"cannot {what}: {os.strerror(errno)}",
        details="a rehearsal needs root, with CAP_SYS_ADMIN and CAP_NET_ADMIN: it makes sure that it changes nothing",
        errno=errno,
    )


def _refuse(point: str, when: str) -> None:
    if when == "before" and point not in READING:
        raise RefusedWrite(point)
