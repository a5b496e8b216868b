"""Lock files that threads and processes wait for until their deadline.

Rule: every holder uses flock on its own descriptor, so the lock also excludes threads and ends with its process. A file
that is removed while somebody waits for it is no longer a lock: whoever gets the lock checks whether the path still
leads to this file, and starts again if not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EAGAIN, EEXIST
from fcntl import LOCK_EX, LOCK_NB, flock

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import AttachmentBusy, KernelError
from cni_calico.regular import make_directories, require_regular

LOCK = faults.declare("file.lock")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02


@contextmanager
def file_lock(path: str, deadline: Deadline) -> Iterator[None]:
    """Hold the lock file at ``path``, which stays there. Raises AttachmentBusy at the deadline, KernelError."""
    fd = _acquire(path, path, deadline)
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def attachment_lock(directory: str, label: str, deadline: Deadline, shown: str = "") -> Iterator[None]:
    """Hold the lock of the attachment ``label``, which errors call ``shown``; its file is removed afterwards.

    Raises AttachmentBusy at the deadline, KernelError.
    """
    path = lock_path(directory, label)
    _make_directory(directory)
    fd = _acquire(path, f"attachment {shown or label}", deadline)
    try:
        yield
    finally:
        # removed while it is held: a waiter then finds another file, or none, at the path
        try:
            os.unlink(path)
        except OSError:
            pass  # left behind, it does no harm
        os.close(fd)


def lock_path(directory: str, label: str) -> str:
    """A name for the label, which may be longer than a file name and contain any character."""
    from _sha1 import sha1

    return f"{directory}/{sha1(label.encode()).hexdigest()}.lock"


def _make_directory(directory: str) -> None:
    try:
        make_directories(directory, 0o700)
    except OSError as e:
        raise KernelError(f"cannot create directory {directory}: {e.strerror}", errno=e.errno or EEXIST) from e


def _acquire(path: str, what: str, deadline: Deadline) -> int:
    try:
        faults.before(LOCK)
        fd = _try(path)
        if fd is None:
            fd = _wait(path, what, deadline)
        try:
            faults.after(LOCK)
        except BaseException:
            os.close(fd)
            raise
    except OSError as e:
        reason = str(e) if isinstance(e, faults.Injected) else e.strerror
        raise KernelError(f"cannot lock {what}: {reason}", errno=e.errno or 0) from e
    return fd


def _wait(path: str, what: str, deadline: Deadline) -> int:
    """Take a lock that another holder has. Raises AttachmentBusy at the deadline."""
    from cni_calico.backoff import Backoff

    pause = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    while not deadline.expired():
        time.sleep(min(pause.next(), deadline.remaining_s()))
        fd = _try(path)
        if fd is not None:
            return fd
    raise AttachmentBusy(f"cannot lock {what}: another call holds it")


def _try(path: str) -> int | None:
    """The descriptor that holds the lock; None if another holder has it or the file was removed meanwhile."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o600)
    try:
        require_regular(fd, path)
        flock(fd, LOCK_EX | LOCK_NB)
        ours, there = os.fstat(fd), os.stat(path)
        if (ours.st_ino, ours.st_dev) == (there.st_ino, there.st_dev):
            return fd
    except FileNotFoundError:
        pass
    except OSError as e:
        if e.errno != EAGAIN:
            os.close(fd)
            raise
    os.close(fd)
    return None
