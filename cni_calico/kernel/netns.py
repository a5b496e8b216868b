"""Network namespaces: opened and checked, entered and left again.

Rule: setns affects only the calling thread. A thread that cannot return to its own namespace must not do anything else
in the other one, so it ends. Python 3.11 has no os.setns: libc's is called through ``_ctypes`` (0.4 ms of import, where
ctypes takes 5 ms).
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl
from typing import Any

from cni_calico.errors import KernelError, NetnsGone

CLONE_NEWNET = 0x40000000
_NS_GET_NSTYPE = 0xB703
_OWN = "/proc/thread-self/ns/net"
_LOST = 70  # exit code of a process whose main thread cannot return


def _load_setns() -> Callable[[int, int], None]:
    own: Callable[[int, int], None] | None = getattr(os, "setns", None)
    if own is not None:
        return own
    import _ctypes

    class _Function(_ctypes.CFuncPtr):
        _flags_ = 1 | 8  # FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
        _restype_ = type("_Int", (_ctypes._SimpleCData,), {"_type_": "i"})

    dlopen: Any = _ctypes.dlopen  # None (which the type does not allow) means this program
    process = dlopen(None, 0)
    function = _Function(_ctypes.dlsym(process, "setns"))

    def setns(fd: int, kind: int) -> None:
        if function(fd, kind) != 0:
            number = _ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return setns


_setns: Callable[[int, int], None] | None = None


def enter(fd: int) -> None:
    """Move the calling thread into the network namespace ``fd``. Raises OSError."""
    global _setns
    if _setns is None:
        _setns = _load_setns()
    _setns(fd, CLONE_NEWNET)


def open_netns(path: str) -> int:
    """A descriptor of the network namespace at ``path``; the caller closes it. Raises NetnsGone."""
    try:
        # nsfs files are regular; opening anything else could block or have effects
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise NetnsGone(f"cannot open network namespace {path!r}: not a namespace")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as e:  # ValueError: a zero byte in the path
        reason = e.strerror if isinstance(e, OSError) else str(e)
        raise NetnsGone(f"cannot open network namespace {path!r}: {reason}", errno=getattr(e, "errno", 0) or 0) from e
    try:
        require_netns(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def require_netns(fd: int, path: str) -> None:
    """Raises NetnsGone, naming ``path``, unless ``fd`` is a network namespace, and not the host's own.

    The descriptor may have come from another process. A path such as /proc/PID/ns/net names the host's own namespace
    once the PID belongs to another process: a pod there would take over the host, a DEL would remove the host's
    interfaces.
    """
    try:
        kind = ioctl(fd, _NS_GET_NSTYPE)
    except OSError as e:
        raise NetnsGone(f"cannot use network namespace {path!r}: not a namespace", errno=e.errno or 0) from e
    if kind != CLONE_NEWNET:
        raise NetnsGone(f"cannot use network namespace {path!r}: a namespace, but not a network namespace")
    if is_own(fd):
        raise NetnsGone(f"cannot use network namespace {path!r}: it is the host's own")


def is_own(fd: int) -> bool:
    """Whether ``fd`` is the namespace that the calling thread is in."""
    theirs, ours = os.fstat(fd), os.stat(_OWN)
    return (theirs.st_ino, theirs.st_dev) == (ours.st_ino, ours.st_dev)


def open_own() -> int:
    """A descriptor of the calling thread's own network namespace."""
    return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def inside(fd: int, home: int | None = None) -> Iterator[None]:
    """Run the body with the calling thread in the namespace ``fd``; ``home`` is where it comes from, if known."""
    back = open_own() if home is None else home
    try:
        try:
            enter(fd)
        except OSError as e:
            raise KernelError(f"cannot enter a network namespace: {e.strerror}", errno=e.errno or 0) from e
        try:
            yield
        finally:
            try:
                enter(back)
            except OSError:
                _end_thread()
    finally:
        if home is None:
            os.close(back)


def _end_thread() -> None:
    from _thread import get_native_id

    if get_native_id() == os.getpid():
        os._exit(_LOST)
    sys.exit(_LOST)
